"""The metrics of the A/B test, in one table: a metric is added, changed or removed here.

Its words are in infra/pages/figures.py, its name for settings in infra/settings/experiment.py, and its simulated sum in
evals/bench/experiments/simulate.py.

Each metric is a number for every request. The test compares its sum over a denominator between the arms
(tasks/statistics/ratios.py):

    requests   all requests of the test
    shown      all requests, with the sum estimated from answered completions: shown per request times the sum per answered one. A
               shown completion without an answer is missing data, not a rejection (tasks/statistics/answered.py)
    judged     those whose answer is known: the developer decided, or the editor does not report it because it was not accepted
               (tasks/labels/unreported.py)
    decided    those on which the developer decided
    user       one number a user (designs.py)
    labelled   those that were judged or had nothing to show; only in plans of earlier versions

A share of requests above a percentile of the champion's times stands for that percentile: it is a mean per request, so its error
is clustered as the others', and equal models have equal shares. Of both arms' times, a challenger with half of the requests could
be above the 95th percentile in 10 % more of them at most. Accepted, kept and decided (there: judged) are those of
tasks/labels/measures.py.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import polars as pl

from infra.pages.figures import METRIC_WORDS
from infra.records import Plan, PlannedMetric
from infra.records.experiments import Denominator
from infra.settings.schema import Experiment
from tasks.labels.measures import ACCEPTED, ANSWERED, CANCELLED, JUDGED, KEPT, QUICK, SAVED, VISIBLE


@dataclass(frozen=True)
class Metric:
    """A metric of the A/B test."""

    name: str
    """Name of its sum, and of its margin in `experiment.margins`."""
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

    @property
    def title(self) -> str:
        return METRIC_WORDS[self.name].title


def of_reporting_users(labelled: pl.DataFrame) -> pl.DataFrame:
    """Return labelled requests with `reports`, whether the user's editor reports any, and with `unreported` only for these: no
    report from an editor that never reports is no information."""
    reports = JUDGED.any().over("user")
    return labelled.with_columns(reports=reports, unreported=pl.col("unreported") & reports)


def with_references(rows: pl.DataFrame, before: pl.DataFrame, plan: Plan) -> pl.DataFrame:
    """Return requests with the columns that their values refer to.

    typical: whether it is among its user's first ones on the arm, as many as count at most (experiment.max_user_weight). Else a
        user with most of all requests would decide the percentiles and `usual`.
    usual: of the completions shown to users whose editor reports, the share without an answer that is usual for the client and
        its way to report, over both arms. Where one arm alone has such requests, a fault of that arm would pass for usual: there
        it is the share before the test, if any is known.

    Args:
        rows: requests of reporting users (of_reporting_users), each with its `arm` and `user`.
        before: those before the test.
    """
    made = rows.group_by("arm", "user").len()["len"]
    most = plan.max_user_weight * (float(np.median(made.to_numpy())) if len(made) else 0.0)
    rows = rows.with_columns(typical=pl.int_range(pl.len()).over("arm", "user") < most)
    missing = _MISSING.sum() / pl.len()
    kinds = rows.filter(_DUE, "typical").group_by(_KIND).agg(usual=missing, arms=pl.col("arm").n_unique())
    kinds = kinds.join(before.filter(_DUE).group_by(_KIND).agg(earlier=missing), on=_KIND, how="left")
    usual = pl.when(pl.col("arms") < 2).then(pl.coalesce("earlier", "usual")).otherwise("usual")
    return rows.join(kinds.select(*_KIND, usual=usual), on=_KIND, how="left", maintain_order="left")


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
    """1 if a time is above this quantile of the champion's typical requests (before a test perhaps of nobody: then of all), or
    missing."""
    typical = pl.col(time).filter("typical")
    of_champion = pl.col(time).filter(pl.col("typical") & (pl.col("arm") == "champion"))
    usual = pl.coalesce(of_champion.quantile(quantile), typical.quantile(quantile))
    return lambda _: (pl.col(time) > usual).fill_null(True)


def _known(found: pl.Expr) -> Callable[[Plan], pl.Expr]:
    """1 if it is found (tasks/labels/measures.py); 0 where it is unknown."""
    return lambda _: found.fill_null(False)


def _length(_: Plan) -> pl.Expr:
    """Characters shown, if the developer decided."""
    return pl.when(JUDGED).then("shown_characters").otherwise(0)


METRICS: tuple[Metric, ...] = (
    Metric("accepted", "success", "more", "shown", 0.1, _known(ACCEPTED), relative=True, weight=0.9),
    Metric("characters", "success", "more", "shown", 0.15, _characters, relative=True, weight=0.05),
    Metric("annoyed", "success", "fewer", "shown", 0.1, _annoyed, relative=True, weight=0.05),
    Metric("shown", "guardrail", "more", "requests", 0.5, lambda _: VISIBLE, relative=True),
    Metric("cancelled", "guardrail", "fewer", "shown", 0.05, _known(CANCELLED)),
    Metric("quick", "guardrail", "fewer", "shown", 0.05, _known(QUICK)),
    Metric("empty", "guardrail", "fewer", "requests", 0.25, lambda _: pl.col("blank"), immediate=True),
    Metric("failed", "guardrail", "fewer", "requests", 0.02, _failed, immediate=True),
    Metric("requests_per_user", "guardrail", "more", "user", 0.2, None),
    *(
        Metric(name, "guardrail", "fewer", "requests", margin, _later_than(time, share), immediate=True)
        for name, margin, time, share in (
            ("ttft_p50", 0.15, "ttft_ms", 0.5),
            ("ttft_p95", 0.05, "ttft_ms", 0.95),
            ("total_p50", 0.25, "total_ms", 0.5),
            ("total_p95", 0.1, "total_ms", 0.95),
        )
    ),
    Metric("length", "guardrail", "same", "decided", 0.75, _length, relative=True),
)
BY_NAME = {metric.name: metric for metric in METRICS}
DENOMINATORS: dict[str, pl.Expr] = {"requests": pl.lit(1), "labelled": ANSWERED | ~VISIBLE, "judged": ANSWERED, "decided": JUDGED}
REPORTED: dict[str, pl.Expr] = {"saved": SAVED}
"""Sums that are shown beside the metrics and decide nothing."""
_DUE = VISIBLE & pl.col("reports")
_MISSING = _DUE & ~ANSWERED
_KIND = ("client", "rules")
"""What the usual share of missing answers depends on: two editors with the same requests may report in different ways."""
CHECKED: dict[str, pl.Expr] = {
    "visible": VISIBLE,
    "closed": (pl.col("finish_reason") == "disconnected") & pl.col("ttft_ms").is_null(),
    "unanswered": _MISSING.cast(pl.Float64) - pl.when(_DUE).then("usual").otherwise(0.0),
}
"""Sums of the quality checks. `visible`: completions shown, which `judged` is compared with. `closed`: requests that the editor
closed before their first token. `unanswered`: completions shown without an answer, of users whose editor reports, above the share
that is usual for the client and its way to report; negative where fewer are missing (tasks/experiments/verdict/missing.py)."""
SUMS = (*DENOMINATORS, *CHECKED, *(metric.name for metric in METRICS if metric.value), *REPORTED)
"""Names of the sums of a user."""


def values(plan: Plan) -> dict[str, pl.Expr]:
    """Return the value of every sum for a request, which has the columns of with_references."""
    of_metrics = {metric.name: metric.value(plan) for metric in METRICS if metric.value}
    return {name: value.cast(pl.Float64) for name, value in {**DENOMINATORS, **CHECKED, **of_metrics, **REPORTED}.items()}


def planned(metric: Metric, settings: Experiment) -> PlannedMetric:
    """Return a metric as a plan holds it."""
    fields = {name: getattr(metric, name) for name in PlannedMetric.model_fields}
    return PlannedMetric(**fields | {"margin": settings.margins.get(metric.name, metric.margin)})
