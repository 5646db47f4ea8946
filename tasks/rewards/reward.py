"""Compute the reward and the advantage of each action of a cycle. Pure; the theory is in infra/docs/how/rewards.md.

`reward_samples` is the whole pipeline: `reward` of the served texts, the advantages of all actions by place (actions.py), and the
caps on the weight of each user.
"""

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from infra.records import RewardTotals, Sample
from infra.settings.schema import Reward
from tasks.labels.measures import KEPT
from tasks.rewards.actions import SILENCE, Action, Kind, decide
from tasks.rewards.weights import cap_weights

NO_RESPONSE = 0.5
"""Factor of the reward of a completion that nobody answered, by its kept share: no answer is more ambiguous than a rejection."""
EVERY = ("written", "served", "drawn")
"""The kinds that train.actions names."""


@dataclass(frozen=True)
class DrawnAction:
    """A text of a place that the cycle drew, or silence, with its reward and without an advantage."""

    sample: Sample
    place: str
    """Id of the request."""
    kind: Kind
    share: float
    """As in actions.Action, and so is `copies`."""
    copies: int = 1

    @property
    def action(self) -> Action:
        """The member of its group."""
        return Action(self.place, self.kind, self.sample.reward, self.share, not self.sample.shown_characters, self.copies)


@dataclass(frozen=True, eq=False)
class RewardedActions:
    """The samples of a cycle with their advantages."""

    samples: pl.DataFrame
    """With `reward`, `advantage` and `settled_weight`; without silence, an empty settled text has no tokens."""
    drawn: tuple[Sample, ...] = ()
    """Those that teach."""


def reward(settings: Reward, line: pl.Expr | None = None) -> pl.Expr:
    """Return the reward of a served text, by outcome and by `kept_characters`, those in the settled text; null where unknown.

    An accept earns the worth of its kept characters (actions.py), and so does a partial accept of its accepted ones. A rejection
    costs only the share that the developer did not then write. Without an answer, the reward is that of an accept, tempered by
    NO_RESPONSE; without a settled text it has no reward.

    Args:
        line: characters of the settled line behind what was typed over, null where unknown: a text is then worth its kept share.
    """
    outcome, shown = pl.col("outcome"), pl.max_horizontal("shown_characters", pl.lit(1))
    kept = pl.when(pl.col("kept_characters").is_not_null()).then(pl.min_horizontal("kept_characters", shown))

    def by_worth(characters: pl.Expr) -> pl.Expr:
        # A kept text may have further lines.
        other = shown if line is None else pl.when(line.is_not_null()).then(pl.max_horizontal(line, characters)).otherwise(shown)
        return settings.rejected + (settings.accepted - settings.rejected) * 2 * characters / (shown + other)

    return (
        pl.when(outcome.is_in(["accepted", "partially_accepted"]))
        .then(by_worth(KEPT))
        .when(outcome == "rejected")
        .then(settings.rejected * (1 - kept.fill_null(0) / shown))
        .when(outcome == "nothing")
        .then(pl.lit(SILENCE))
        .when(outcome == "unjudged")
        .then(NO_RESPONSE * by_worth(kept))
    )


def with_rewards(samples: pl.DataFrame, settings: Reward) -> pl.DataFrame:
    """Return samples with `reward`: 0 for one without sampled tokens, of which only the settled text is trained on."""
    behind = pl.col("settled").str.slice(pl.col("typed_over").fill_null(0))
    first = behind.str.split("\n").list.first().str.strip_chars_end().str.len_chars()  # as of drawn texts
    line = pl.when(first > 0).then(first) if "settled" in samples.columns else None
    sampled = pl.col("tokens") > 0
    rewarded = samples.with_columns(reward=pl.when(sampled).then(reward(settings, line)).otherwise(0.0))
    assert not rewarded["reward"].null_count(), "a sample has an outcome without a reward in the settings, such as judged"
    return rewarded


def reward_samples(
    samples: pl.DataFrame,
    settings: Reward,
    shares: Mapping[str, float],
    kinds: Collection[str] = EVERY,
    drawn: Sequence[DrawnAction] = (),
) -> RewardedActions:
    """Return a cycle's actions with their advantages, in which no user has more than their share of the weight.

    Args:
        samples: with the columns of `samples.with_settled_tokens` (tasks/labels/samples.py).
        shares: largest share by the column that names the group.
        kinds: those that teach (train.actions).
        drawn: at places of the samples.

    Raises:
        TooFewToShare: fewer groups have weight than the shares ask for.
    """
    rewarded = with_rewards(samples, settings).drop("advantage", strict=False).with_row_index("row")
    if not settings.silence:
        texts = pl.when(_is_written()).then("settled_token_ids").otherwise(pl.lit([], pl.List(pl.Int64)))
        rewarded = rewarded.with_columns(settled_token_ids=texts)
    sampled = rewarded.filter(pl.col("tokens") > 0)
    rows = sampled.select("id", "reward", pl.col("outcome").cast(pl.String)).iter_rows()
    served = [Action(name, "served", earned, blank=outcome == "nothing") for name, earned, outcome in rows]
    written = frozenset(rewarded.filter(_is_written())["id"])
    found = decide(served, [one.action for one in drawn], written, settings, kinds)
    of_served = sampled.select("row", advantage=pl.Series(found[: len(served)], dtype=pl.Float64))
    rewarded = rewarded.join(of_served, on="row", how="left", maintain_order="left").drop("row")
    teaching = [one.sample.model_copy(update={"advantage": a}) for one, a in zip(drawn, found[len(served) :], strict=True) if a]
    advantages = rewarded.with_columns(pl.col("advantage").fill_null(0.0))
    capped, factors = cap_weights(advantages, teaching, shares, written="written" in kinds)
    pairs = zip(teaching, factors, strict=True)
    return RewardedActions(capped, tuple(row.model_copy(update={"advantage": row.advantage * factor}) for row, factor in pairs))


def _is_written() -> pl.Expr:
    """Whether a settled text is an action of its own. The end token alone, where the line was complete already, is silence, whose
    reward is 0."""
    tokens, line = pl.col("settled_token_ids").list.len(), pl.col("settled").str.split("\n").list.first()
    return (tokens > 0) & ~((tokens == 1) & (line.str.strip_chars() == "").fill_null(False))


def reward_totals(rewards: Sequence[float], lengths: Sequence[int], languages: Sequence[str]) -> tuple[RewardTotals, ...]:
    """Return reward totals by language and length; they can be added."""
    grouped: dict[tuple[str, int], list[float]] = defaultdict(list)
    for r, length, language in zip(rewards, lengths, languages, strict=True):
        if length:
            grouped[language, length.bit_length()].append(r)
    return tuple(
        RewardTotals(language=language, bits=bits, samples=len(values), reward=math.fsum(values))
        for (language, bits), values in sorted(grouped.items())
    )
