"""Signed rewards and advantages: pure.

A completion is an episode of one action with its reward at the end, undiscounted, so that the Monte-Carlo return of every token
is the reward (Sutton and Barto 2018, "Reinforcement Learning", eq. 3.8 with gamma = 1). There is no critic (REINFORCE with
baseline, eq. 13.11):

    A_i = R_i - b              normalise off
    A_i = (R_i - b) / std(R)   normalise on; std of the batch's population, 1 where all rewards are equal

The baseline b is the batch's mean, the mean of earlier cycles, or 0. Under the batch's own mean, a batch of one reward teaches
nothing; under the other two rejections alone make what was rejected less likely.

Two settings keep long completions, whose accepts are rare, from drowning the rest. A share of the mean may be taken among
completions of like length: what is then learnt is to be right rather than to be short. And a completion's advantage may fall with
a power of its length, so that in a sum over tokens each completion has its part.

The other estimator, `group` (GRPO: Shao et al. 2024, "DeepSeekMath", section 4.1.2), takes completions of one prompt together:

    A_i = (R_i - mean(R of the group)) / std(R of the group), zero where all of a group have the same reward

A rejection is worth less than nothing, so that showing pays only above a certain chance of an accept (Cursor, "Improving Cursor
Tab with online RL", 2025: +0.75 accepted, -0.25 rejected, 0 nothing shown: above 25 %).

Two words on a completion have no reward of their own. What is retained of an accepted one some time later is the accept, told
better: all of it earns `accepted`, a part of it its share (tasks/join.py). And what was withheld was seen by nobody, so that no
reward of it is a measurement: a fixed one would pay the model for being unsure, or for being sure, whatever is right. It has a
bucket of its own and is not trained on.
"""

import math
from collections import defaultdict
from collections.abc import Hashable, Sequence

import polars as pl

from infra.records import Returns
from infra.settings.schema import Reward


def reward(settings: Reward) -> pl.Expr:
    """What samples were worth. A partial accept earns the accepted share of an accept and the rest of a reject."""
    outcome, accepted = pl.col("outcome"), pl.col("accepted_characters")
    length = settings.per_character * pl.min_horizontal(accepted, pl.lit(settings.max_characters))
    kept = accepted / pl.max_horizontal("shown_characters", pl.lit(1))
    return (
        pl.when(outcome == "accepted")
        .then(settings.accepted + length)
        .when(outcome == "partially_accepted")
        .then(kept * settings.accepted + (1 - kept) * settings.rejected + length)
        .when(outcome == "rejected")
        .then(pl.lit(settings.rejected))
        .when(outcome == "nothing")
        .then(pl.lit(settings.nothing))
    )


def advantages(rewards: Sequence[float], lengths: Sequence[int], settings: Reward, past: Sequence[Returns] = ()) -> list[float]:
    """Returns minus their baseline, over their standard deviation where asked for, each times its completion's weight.

    Args:
        past: rewards of earlier cycles, for the running baseline.
    """
    if not rewards:
        return []
    mean = _mean(rewards)
    deviation = math.sqrt(_mean([(r - mean) ** 2 for r in rewards]))
    scale = 1 / deviation if settings.normalise and deviation >= 1e-8 else 1.0
    typical = max(_mean(lengths), 1.0)
    weights = [(typical / max(length, 1)) ** settings.length_exponent for length in lengths]
    return [scale * weight * c for weight, c in zip(weights, _centred(rewards, lengths, settings, past), strict=True)]


def _centred(rewards: Sequence[float], lengths: Sequence[int], settings: Reward, past: Sequence[Returns]) -> list[float]:
    """Returns minus their baseline. A length that earlier cycles never had has the mean of all of theirs."""
    if settings.baseline == "none":
        return list(rewards)
    usual = past if settings.baseline == "running" and past else by_length(rewards, lengths)
    mean, alike = _mean_of(usual), means_by_length(usual)
    share = settings.baseline_by_length
    return [
        r - (1 - share) * mean - share * alike.get(length.bit_length(), mean) for r, length in zip(rewards, lengths, strict=True)
    ]


def group_advantages(rewards: Sequence[float], groups: Sequence[Hashable]) -> list[float]:
    """Returns minus their group's mean, over its standard deviation (of the population)."""
    members: dict[Hashable, list[float]] = defaultdict(list)
    for r, group in zip(rewards, groups, strict=True):
        members[group].append(r)
    means = {group: _mean(found) for group, found in members.items()}
    deviations = {group: math.sqrt(_mean([(r - means[group]) ** 2 for r in found])) for group, found in members.items()}
    return [
        (r - means[group]) / deviations[group] if deviations[group] >= 1e-8 else 0.0
        for r, group in zip(rewards, groups, strict=True)
    ]


def estimated(
    rewards: Sequence[float],
    lengths: Sequence[int],
    prompts: Sequence[Hashable],
    settings: Reward,
    past: Sequence[Returns] = (),
) -> list[float]:
    """The advantages of rewarded samples, by the estimator that the settings name."""
    if settings.estimator == "group":
        return group_advantages(rewards, prompts)
    return advantages(rewards, lengths, settings, past)


def by_length(rewards: Sequence[float], lengths: Sequence[int]) -> tuple[Returns, ...]:
    """Rewards of completions of like length added up, shortest first: what a cycle keeps for the baseline of later ones."""
    groups: dict[int, list[float]] = defaultdict(list)
    for r, length in zip(rewards, lengths, strict=True):
        groups[length.bit_length()].append(r)
    return tuple(Returns(bits=bits, samples=len(groups[bits]), reward=math.fsum(groups[bits])) for bits in sorted(groups))


def means_by_length(found: Sequence[Returns]) -> dict[int, float]:
    """Mean reward by the number of bits of completions' tokens: 1, 2 to 3, 4 to 7, ..."""
    groups: dict[int, list[Returns]] = defaultdict(list)
    for one in found:
        groups[one.bits].append(one)
    return {bits: _mean_of(group) for bits, group in groups.items()}


def _mean_of(found: Sequence[Returns]) -> float:
    return math.fsum(one.reward for one in found) / sum(one.samples for one in found)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def rewarded(samples: pl.DataFrame, settings: Reward, past: Sequence[Returns] = ()) -> pl.DataFrame:
    """Samples with their `reward` and `advantage`; `prompt` is the same for those of one prompt."""
    found = samples.with_columns(reward=reward(settings))
    assert not found["reward"].null_count(), "a judge has rewarded it, no setting does"
    rewards, lengths, prompts = (found[name].to_list() for name in ("reward", "tokens", "prompt"))
    return found.with_columns(advantage=pl.Series(estimated(rewards, lengths, prompts, settings, past), dtype=pl.Float64))
