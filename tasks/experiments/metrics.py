"""The metrics of the A/B test, in one table: a metric is added, changed or removed here and nowhere else.

Each metric is a number for every request; the test compares its mean per request between the arms (evals/statistics.py).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import polars as pl

from infra.settings.schema import Experiment

Role = Literal["success", "guardrail", "diagnostic"]


@dataclass(frozen=True)
class Metric:
    """A metric of the A/B test."""

    name: str
    """Name of its sum in evals.statistics.Totals."""
    title: str
    """The metric in words, per request."""
    role: Role
    """success: a sure gain promotes, a sure loss rejects. guardrail: a sure loss rejects, and a loss so far delays a promotion.
    diagnostic: it stands beside the verdict and decides nothing."""
    value: Callable[[Experiment], pl.Expr]
    """Its value for a labelled request (tasks/labels/attribution.py), a whole number."""
    digits: int = 4
    """Digits after the point in a verdict's reason."""
    gain: str = ""
    """Reason of a promotion by this metric."""
    behind: str = ""
    """Reason for which a promotion waits while this guardrail has lost so far."""
    loss: str = ""
    """Reason of a rejection by this metric."""


JUDGED = pl.col("outcome").is_not_null()


def _accepted(_: Experiment) -> pl.Expr:
    """1 where at least half of what was shown was kept."""
    share = pl.col("accepted_characters") / pl.max_horizontal("shown_characters", pl.lit(1))
    return (JUDGED & (share >= 0.5)).fill_null(False).cast(pl.Int64)


def _characters(settings: Experiment) -> pl.Expr:
    """Accepted characters, at most `experiment.max_characters`, so that one long accept does not outweigh many."""
    limit = pl.lit(settings.max_characters)
    return pl.when(JUDGED).then(pl.min_horizontal("accepted_characters", limit)).otherwise(0)


def _shown(_: Experiment) -> pl.Expr:
    """1 where the developer saw something; a request with a label was shown."""
    return (JUDGED | ~(pl.col("withheld") | pl.col("blank"))).cast(pl.Int64)


ACCEPTED = Metric("accepted", "acceptance per request", "success", _accepted, gain="accepted more", loss="accepted less")
CHARACTERS = Metric(
    "characters",
    "accepted characters per request",
    "guardrail",
    _characters,
    digits=3,
    behind="accepted more often, but fewer characters so far",
    loss="fewer accepted characters",
)
SHOWN = Metric("shown", "something shown", "diagnostic", _shown)
METRICS: tuple[Metric, ...] = (ACCEPTED, CHARACTERS, SHOWN)
