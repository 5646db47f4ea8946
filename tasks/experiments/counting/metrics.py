"""The metrics of the A/B test, in one table: a metric is added, changed or removed here and nowhere else.

Each metric is a number for every request. The test compares its sum over a denominator between the arms
(tasks/statistics/ratios.py):

    requests   all requests of the test
    shown      per request, from estimated from answered completions: shown per request times the sum per answered one. A shown
    completion without an answer is missing data, not a rejection (designs.py) judged     those whose answer is known: the
    developer decided, or the editor does not report it because it was not accepted
               (tasks/labels/unreported.py)
    decided    those on which the developer decided
    user       one number a user (designs.py)
    labelled   those that were judged or had nothing to show; only in plans of earlier versions

A share of requests above a percentile of both arms' times stands for that percentile: it is a mean per request, so its error is
clustered as the others', and equal models have equal shares. Accepted, kept and decided (there: judged) are those of
tasks/labels/measures.py.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import polars as pl

from infra.records import Plan, PlannedMetric
from infra.records.experiments import Denominator
from infra.settings.schema import Experiment
from tasks.labels.measures import ACCEPTED, CANCELLED, JUDGED, KEPT, QUICK


@dataclass(frozen=True)
class Metric:
    """A metric of the A/B test."""

    name: str
    """Name of its sum, and of its margin in `experiment.margins`."""
    title: str
    """The metric in words."""
    role: Literal["success", "guardrail"]
    """See infra.records.PlannedMetric."""
    better: Literal["more", "fewer", "same"]
    """Direction of a gain."""
    per: Denominator
    """Denominator of its sum."""
    margin: float
    """Loss that is tolerated for a gain in another metric, if `experiment.margins` has no other: a share of the champion's mean
    if `relative`, else in the metric's unit."""
    value: Callable[[Plan], pl.Expr] | None
    """Its value for a labelled request (tasks/labels/attribution.py), 0 for one that nobody judged if it is per `shown` or
    `decided`; None for a metric per user."""
    relative: bool = False
    """Whether its margin is a share of the champion's mean."""
    weight: float = 0.0
    """See infra.records.PlannedMetric. Acceptance has most of alpha, so that little of its power is lost by the others."""
    immediate: bool = False
    """See infra.records.PlannedMetric."""
    digits: int = 4
    """Digits after the point in a verdict's reason."""


SHOWN = JUDGED | ~(pl.col("withheld") | pl.col("blank"))
"""Text may have been shown. Unlike in tasks/labels/measures.py this includes requests whose connection the editor closed: they
are missing data, not requests without text."""
ANSWERED = JUDGED | (pl.col("unreported") & SHOWN & ~pl.col("cache_hit"))
"""The outcome is known; `unreported` is that of `of_reporting_users`. A completion that Continue shows again from its cache may
be accepted then."""


def of_reporting_users(labelled: pl.DataFrame) -> pl.DataFrame:
    """Return labelled requests, with `unreported` only for users whose editor reports other requests: no report from an editor
    that never reports is no information."""
    return labelled.with_columns(unreported=pl.col("unreported") & JUDGED.any().over("user"))


def _characters(plan: Plan) -> pl.Expr:
    """Kept characters, at most `experiment.max_characters`, so that one long accept does not outweigh many."""
    return pl.min_horizontal(KEPT, pl.lit(plan.max_characters))


def _annoyed(_: Plan) -> pl.Expr:
    """1 if text was shown and none of it was accepted or reported as kept. A request that the editor closed showed nothing."""
    closed = ~JUDGED & (pl.col("finish_reason") == "disconnected")
    return ANSWERED & ~closed & (pl.max_horizontal(pl.col("accepted_characters", "kept_characters").fill_null(0)) == 0)


def _failed(_: Plan) -> pl.Expr:
    """1 if the assigned version did not answer to the end; `served`: whether it alone answered."""
    return ~pl.col("served") | (pl.col("finish_reason") == "error")


def _later_than(time: str, quantile: float) -> Callable[[Plan], pl.Expr]:
    """1 if a time is above this quantile of all requests of the test, or missing."""
    return lambda _: (pl.col(time) > pl.col(time).quantile(quantile)).fill_null(True)


def _known(found: pl.Expr) -> Callable[[Plan], pl.Expr]:
    """1 if it is found (tasks/labels/measures.py); 0 where it is unknown."""
    return lambda _: found.fill_null(False)


def _length(_: Plan) -> pl.Expr:
    """Characters shown, if the developer decided."""
    return pl.when(JUDGED).then("shown_characters").otherwise(0)


METRICS: tuple[Metric, ...] = (
    Metric("accepted", "acceptance per request", "success", "more", "shown", 0.1, _known(ACCEPTED), relative=True, weight=0.9),
    Metric(
        "characters",
        "accepted characters per request",
        "success",
        "more",
        "shown",
        0.15,
        _characters,
        relative=True,
        weight=0.05,
        digits=3,
    ),
    Metric("annoyed", "annoyances per request", "success", "fewer", "shown", 0.1, _annoyed, relative=True, weight=0.05),
    Metric("shown", "shown per request", "guardrail", "more", "requests", 0.5, lambda _: SHOWN, relative=True),
    Metric("cancelled", "explicit cancels per request", "guardrail", "fewer", "shown", 0.05, _known(CANCELLED)),
    Metric("quick", "rejections under 750 ms per request", "guardrail", "fewer", "shown", 0.05, _known(QUICK)),
    Metric(
        "empty", "empty answers per request", "guardrail", "fewer", "requests", 0.25, lambda _: pl.col("blank"), immediate=True
    ),
    Metric("failed", "failures per request", "guardrail", "fewer", "requests", 0.02, _failed, immediate=True),
    Metric("requests_per_user", "requests per user (logarithm)", "guardrail", "more", "user", 0.2, None, digits=3),
    *(
        Metric(name, title, "guardrail", "fewer", "requests", margin, _later_than(time, share), immediate=True)
        for name, title, margin, time, share in (
            ("ttft_p50", "first token later than the median", 0.15, "ttft_ms", 0.5),
            ("ttft_p95", "first token in the slowest 5 %", 0.05, "ttft_ms", 0.95),
            ("total_p50", "end later than the median", 0.25, "total_ms", 0.5),
            ("total_p95", "end in the slowest 5 %", 0.1, "total_ms", 0.95),
        )
    ),
    Metric("length", "characters of a judged completion", "guardrail", "same", "decided", 0.75, _length, relative=True, digits=2),
)
BY_NAME = {metric.name: metric for metric in METRICS}
DENOMINATORS: dict[str, pl.Expr] = {"requests": pl.lit(1), "labelled": ANSWERED | ~SHOWN, "judged": ANSWERED, "decided": JUDGED}
SUMS = (*DENOMINATORS, "visible", *(metric.name for metric in METRICS if metric.value))
"""Names of the sums of a user. `visible`: completions shown, which `judged` is compared with."""


def values(plan: Plan) -> dict[str, pl.Expr]:
    """Return the value of every sum for a request."""
    of_metrics = {metric.name: metric.value(plan) for metric in METRICS if metric.value}
    return {name: value.cast(pl.Float64) for name, value in {**DENOMINATORS, "visible": SHOWN, **of_metrics}.items()}


def planned(metric: Metric, settings: Experiment) -> PlannedMetric:
    """Return a metric as a plan holds it."""
    fields = {name: getattr(metric, name) for name in PlannedMetric.model_fields}
    return PlannedMetric(**fields | {"margin": settings.margins.get(metric.name, metric.margin)})
