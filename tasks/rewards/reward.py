"""Compute the reward and the advantage of each sample. Pure; the theory is in infra/docs/how/rewards.md.

`reward_samples` is the whole pipeline: `reward`, `estimate_advantages`, and the cap on the weight of each user.
"""

import math
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence

import polars as pl

from infra.records import RewardTotals
from infra.settings.schema import Reward
from tasks.labels.measures import KEPT
from tasks.rewards.weights import cap_weights

NOTHING = 0.0
"""Reward of a completion without text to show."""
NO_RESPONSE = 0.5
"""Factor of the reward of a completion that nobody answered, by its kept share: silence is more ambiguous than a rejection."""
UNKNOWN_LANGUAGE = ""
"""The language of code whose client names none, and of languages with too few samples."""
LEAST_OF_A_LANGUAGE = 50
"""Samples from which on a language has its own means; the means of fewer samples would be noise."""


def reward(settings: Reward) -> pl.Expr:
    """Return the reward by outcome and by `kept_characters`, those in the settled text; null where that is unknown.

    An accept earns the kept share of an accept and the rest of a rejection, and so does a partial accept by its accepted share.
    A rejection costs only the share that the developer did not then write. Without an answer, the reward is the kept share,
    tempered by NO_RESPONSE; without a settled text it has no reward.
    """
    outcome, shown = pl.col("outcome"), pl.max_horizontal("shown_characters", pl.lit(1))
    kept = pl.when(pl.col("kept_characters").is_not_null()).then(pl.min_horizontal("kept_characters", shown))

    def by_share(share: pl.Expr) -> pl.Expr:
        return share * settings.accepted + (1 - share) * settings.rejected

    return (
        pl.when(outcome.is_in(["accepted", "partially_accepted"]))
        .then(by_share(KEPT / shown))
        .when(outcome == "rejected")
        .then(settings.rejected * (1 - kept.fill_null(0) / shown))
        .when(outcome == "nothing")
        .then(pl.lit(NOTHING))
        .when(outcome == "unjudged")
        .then(NO_RESPONSE * by_share(kept / shown))
    )


def advantages(
    rewards: Sequence[float],
    lengths: Sequence[int],
    settings: Reward,
    past: Sequence[RewardTotals] = (),
    languages: Sequence[str] = (),
) -> list[float]:
    """Return each reward minus its baseline, over the batch's standard deviation if normalised, times a weight by length.

    A_i = R_i - b or (R_i - b) / std(R): Sutton and Barto 2018, "Reinforcement Learning", eq. 13.11.

    Args:
        lengths: tokens of each completion.
        past: rewards of earlier cycles, for the running baseline.
        languages: language of each completion; empty if unknown.
    """
    if not rewards:
        return []
    mean = _mean(rewards)
    deviation = math.sqrt(_mean([(r - mean) ** 2 for r in rewards]))
    scale = 1 / deviation if settings.normalise and deviation >= 1e-8 else 1.0
    typical = max(_mean(lengths), 1.0)
    weights = [(typical / max(length, 1)) ** settings.length_exponent for length in lengths]
    centred = _subtract_baseline(rewards, lengths, languages or [UNKNOWN_LANGUAGE] * len(rewards), settings, past)
    return [scale * weight * c for weight, c in zip(weights, centred, strict=True)]


def _subtract_baseline(
    rewards: Sequence[float], lengths: Sequence[int], languages: Sequence[str], settings: Reward, past: Sequence[RewardTotals]
) -> list[float]:
    """Rewards minus their baseline. A length that is new to a language takes the language's mean."""
    if settings.baseline == "none":
        return list(rewards)
    history = past if settings.baseline == "running" and past else reward_totals(rewards, lengths, languages)
    common = _common_languages(history) if settings.baseline_by_language else frozenset()
    groups: dict[Hashable, list[RewardTotals]] = defaultdict(list)
    for totals in history:
        group = totals.language if totals.language in common else UNKNOWN_LANGUAGE
        groups[group].append(totals)
        groups[group, totals.bits].append(totals)
    means = {group: _mean_of_totals(members) for group, members in groups.items()}
    overall, share = _mean_of_totals(history), settings.baseline_by_length
    centred = []
    for r, length, language in zip(rewards, lengths, languages, strict=True):
        group = language if language in common else UNKNOWN_LANGUAGE
        mean = means.get(group, overall)
        centred.append(r - (1 - share) * mean - share * means.get((group, length.bit_length()), mean))
    return centred


def _common_languages(history: Sequence[RewardTotals]) -> frozenset[str]:
    """Languages with enough samples for a mean of their own."""
    samples: dict[str, int] = defaultdict(int)
    for totals in history:
        samples[totals.language] += totals.samples
    return frozenset(language for language, count in samples.items() if count >= LEAST_OF_A_LANGUAGE)


def group_advantages(rewards: Sequence[float], groups: Sequence[Hashable]) -> list[float]:
    """Return each reward minus its group's mean, over the group's standard deviation; 0 where a group's rewards are equal.

    GRPO: Shao et al. 2024, "DeepSeekMath", section 4.1.2, with the standard deviation of the population.
    """
    members: dict[Hashable, list[float]] = defaultdict(list)
    for r, group in zip(rewards, groups, strict=True):
        members[group].append(r)
    means = {group: _mean(values) for group, values in members.items()}
    deviations = {group: math.sqrt(_mean([(r - means[group]) ** 2 for r in values])) for group, values in members.items()}
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
    """Return the advantages by `settings.estimator`; `prompts` are equal for completions of one prompt."""
    if settings.estimator == "group":
        return group_advantages(rewards, prompts)
    return advantages(rewards, lengths, settings, past, languages)


def reward_totals(rewards: Sequence[float], lengths: Sequence[int], languages: Sequence[str]) -> tuple[RewardTotals, ...]:
    """Return the rewards totalled by language and bit length of the token count, for the baseline of later cycles."""
    groups: dict[tuple[str, int], list[float]] = defaultdict(list)
    for r, length, language in zip(rewards, lengths, languages, strict=True):
        groups[language, length.bit_length()].append(r)
    return tuple(
        RewardTotals(language=language, bits=bits, samples=len(values), reward=math.fsum(values))
        for (language, bits), values in sorted(groups.items())
    )


def _mean_of_totals(groups: Sequence[RewardTotals]) -> float:
    return math.fsum(totals.reward for totals in groups) / sum(totals.samples for totals in groups)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def reward_samples(
    samples: pl.DataFrame, settings: Reward, shares: Mapping[str, float], past: Sequence[RewardTotals] = ()
) -> pl.DataFrame:
    """Return samples with `reward` and `advantage`, in which no group has more than its share of the weight.

    Args:
        shares: largest share by the column that names the group.

    Raises:
        TooFewToShare: fewer groups have weight than the shares ask for.
    """
    return cap_weights(with_advantages(samples, settings, past), shares)


def with_advantages(samples: pl.DataFrame, settings: Reward, past: Sequence[RewardTotals] = ()) -> pl.DataFrame:
    """Return samples with `reward` and `advantage`; their `prompt` is equal for completions of one prompt.

    A sample without sampled tokens, of which only the settled text is trained on, has neither: both are 0, and it has no part in
    any mean.
    """
    numbered = samples.with_row_index("row_number")
    rewarded = numbered.filter(pl.col("tokens") > 0).with_columns(reward=reward(settings))
    assert not rewarded["reward"].null_count(), "a sample has an outcome without a reward in the settings, such as judged"
    rewards, lengths, prompts, languages = (rewarded[name].to_list() for name in ("reward", "tokens", "prompt", "language"))
    advantages = estimate_advantages(rewards, lengths, prompts, settings, past, languages)
    scored = rewarded.select("row_number", "reward", advantage=pl.Series(advantages, dtype=pl.Float64))
    joined = numbered.drop("reward", "advantage", strict=False).join(scored, on="row_number", how="left", maintain_order="left")
    return joined.drop("row_number").with_columns(pl.col("reward", "advantage").fill_null(0.0))
