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
a power of its length, so that in a sum over tokens each completion has its part. A third takes the means within each language:
where one is easier than another, its completions are otherwise pushed up as a whole.

The other estimator, `group` (GRPO: Shao et al. 2024, "DeepSeekMath", section 4.1.2), takes completions of one prompt together:

    A_i = (R_i - mean(R of the group)) / std(R of the group), zero where all of a group have the same reward

A rejection is worth less than nothing, so that showing pays only above a certain chance of an accept (Cursor, "Improving Cursor
Tab with online RL", 2025: +0.75 accepted, -0.25 rejected, 0 nothing shown: above 25 %).

Two words on a completion have no reward of their own. What is retained of an accepted one some time later is the accept, told
better: all of it earns `accepted`, a part of it its share (tasks/labels/attribution.py). And what was withheld was seen by nobody, so that no
reward of it is a measurement: a fixed one would pay the model for being unsure, or for being sure, whatever is right. It has a
bucket of its own and is not trained on.
"""

import math
from collections import defaultdict
from collections.abc import Hashable, Sequence

import polars as pl

from infra.records import RewardTotals
from infra.settings.schema import Reward
from tasks.rewards.user_cap import cap_user_weight

UNKNOWN_LANGUAGE = ""
"""The language of code of which no client tells it, and of all that are too rare."""
LEAST_OF_A_LANGUAGE = 50
"""Samples from which on a language has means of its own: those of fewer would be noise, and take the signal along."""


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


def advantages(
    rewards: Sequence[float],
    lengths: Sequence[int],
    settings: Reward,
    past: Sequence[RewardTotals] = (),
    languages: Sequence[str] = (),
) -> list[float]:
    """Returns minus their baseline, over their standard deviation where asked for, each times its completion's weight.

    Args:
        past: rewards of earlier cycles, for the running baseline.
        languages: of each completion; none: nobody told any.
    """
    if not rewards:
        return []
    mean = _mean(rewards)
    deviation = math.sqrt(_mean([(r - mean) ** 2 for r in rewards]))
    scale = 1 / deviation if settings.normalise and deviation >= 1e-8 else 1.0
    typical = max(_mean(lengths), 1.0)
    weights = [(typical / max(length, 1)) ** settings.length_exponent for length in lengths]
    centred = _centred(rewards, lengths, languages or [UNKNOWN_LANGUAGE] * len(rewards), settings, past)
    return [scale * weight * c for weight, c in zip(weights, centred, strict=True)]


def _centred(
    rewards: Sequence[float], lengths: Sequence[int], languages: Sequence[str], settings: Reward, past: Sequence[RewardTotals]
) -> list[float]:
    """Returns minus their baseline. A length that a language never had has the mean of all of its own."""
    if settings.baseline == "none":
        return list(rewards)
    usual = past if settings.baseline == "running" and past else reward_totals(rewards, lengths, languages)
    own = _common(usual) if settings.baseline_by_language else frozenset()
    groups: dict[Hashable, list[RewardTotals]] = defaultdict(list)
    for one in usual:
        language = one.language if one.language in own else UNKNOWN_LANGUAGE
        groups[language].append(one)
        groups[language, one.bits].append(one)
    means = {group: _mean_of(found) for group, found in groups.items()}
    every, share = _mean_of(usual), settings.baseline_by_length
    found = []
    for r, length, told in zip(rewards, lengths, languages, strict=True):
        language = told if told in own else UNKNOWN_LANGUAGE
        mean = means.get(language, every)
        found.append(r - (1 - share) * mean - share * means.get((language, length.bit_length()), mean))
    return found


def _common(usual: Sequence[RewardTotals]) -> frozenset[str]:
    """Languages with enough samples for a mean of their own."""
    samples: dict[str, int] = defaultdict(int)
    for one in usual:
        samples[one.language] += one.samples
    return frozenset(language for language, count in samples.items() if count >= LEAST_OF_A_LANGUAGE)


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


def estimate_advantages(
    rewards: Sequence[float],
    lengths: Sequence[int],
    prompts: Sequence[Hashable],
    settings: Reward,
    past: Sequence[RewardTotals] = (),
    languages: Sequence[str] = (),
) -> list[float]:
    """The advantages of rewarded samples, by the estimator that the settings name."""
    if settings.estimator == "group":
        return group_advantages(rewards, prompts)
    return advantages(rewards, lengths, settings, past, languages)


def reward_totals(rewards: Sequence[float], lengths: Sequence[int], languages: Sequence[str]) -> tuple[RewardTotals, ...]:
    """Rewards of completions of one language and like length added up: what a cycle keeps for the baseline of later ones."""
    groups: dict[tuple[str, int], list[float]] = defaultdict(list)
    for r, length, language in zip(rewards, lengths, languages, strict=True):
        groups[language, length.bit_length()].append(r)
    return tuple(
        RewardTotals(language=language, bits=bits, samples=len(found), reward=math.fsum(found))
        for (language, bits), found in sorted(groups.items())
    )


def _mean_of(found: Sequence[RewardTotals]) -> float:
    return math.fsum(one.reward for one in found) / sum(one.samples for one in found)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def reward_samples(
    samples: pl.DataFrame, settings: Reward, max_user_weight: float, past: Sequence[RewardTotals] = ()
) -> pl.DataFrame:
    """Return samples with their `reward` and their `advantage`, in which no user has more than a share of the weight.

    The whole pipeline: reward, advantage, weight by user (tasks/rewards/user_cap.py).
    """
    return cap_user_weight(with_advantages(samples, settings, past), max_user_weight)


def with_advantages(samples: pl.DataFrame, settings: Reward, past: Sequence[RewardTotals] = ()) -> pl.DataFrame:
    """Samples with their `reward` and `advantage`; `prompt` is the same for those of one prompt."""
    found = samples.with_columns(reward=reward(settings))
    assert not found["reward"].null_count(), "a judge has rewarded it, no setting does"
    rewards, lengths, prompts, languages = (found[name].to_list() for name in ("reward", "tokens", "prompt", "language"))
    advantages = estimate_advantages(rewards, lengths, prompts, settings, past, languages)
    return found.with_columns(advantage=pl.Series(advantages, dtype=pl.Float64))
