"""The figures of A/B tests in words: consoles, pages, MLflow, Prefect and exports all write them by these functions.

A mean stands with its interval and its number of requests, a difference with its interval.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from infra.records import Rate, Verdict
from infra.records.base import Arm


@dataclass(frozen=True)
class MetricWords:
    """How a metric of the A/B test is written."""

    title: str
    """The metric in words."""
    digits: int = 4
    """Digits after the point of its means and differences."""


METRIC_WORDS: dict[str, MetricWords] = {
    "accepted": MetricWords("acceptance per request"),
    "characters": MetricWords("kept characters per request", 3),
    "annoyed": MetricWords("annoyances per request"),
    "shown": MetricWords("shown per request"),
    "cancelled": MetricWords("explicit cancels per request"),
    "quick": MetricWords("rejections under 750 ms per request"),
    "empty": MetricWords("empty answers per request"),
    "failed": MetricWords("failures per request"),
    "requests_per_user": MetricWords("requests per user (difference: of logarithms)", 3),
    "ttft_p50": MetricWords("share with the first token later than the median"),
    "ttft_p95": MetricWords("share with the first token in the slowest 5 %"),
    "total_p50": MetricWords("share that ends later than the median"),
    "total_p95": MetricWords("share that ends in the slowest 5 %"),
    "length": MetricWords("characters of a judged completion", 2),
    "saved": MetricWords("seconds saved per request", 3),
}
"""By name (tasks/experiments/counting/metrics.py)."""


@dataclass(frozen=True)
class ArmRow:
    """An arm of a test in words."""

    arm: Arm
    version: str
    users: int
    requests: int
    """Requests that count."""
    acceptance: str
    """Acceptance per request, % with its interval; empty where it is unknown."""
    kept: str
    """Kept characters per request with their interval; empty where they are unknown."""
    saved: str = ""
    """Seconds saved per request with their interval; empty where they are unknown."""

    def brief(self) -> str:
        """Return the row as a short part of a sentence."""
        rate = f"{self.acceptance} accepted of " if self.acceptance else ""
        return f"{self.arm} v{self.version}: {rate}{self.requests} requests"

    def line(self) -> str:
        """Return the whole row as a part of a sentence."""
        others = ((self.kept, "kept characters per request"), (self.saved, "seconds saved per request"))
        return "; ".join([f"{self.brief()} of {self.users} users", *(f"{mean} {of}" for mean, of in others if mean)])


@dataclass(frozen=True)
class Gain:
    """The sum of the differences of successive tests."""

    estimate: float
    low: float
    high: float
    tests: int


def title(metric: str) -> str:
    """Return a metric in words; its name where an earlier version measured it."""
    return METRIC_WORDS[metric].title if metric in METRIC_WORDS else metric.replace("_", " ")


def digits(metric: str) -> int:
    """Return the digits after the point of a metric's means and differences."""
    return METRIC_WORDS[metric].digits if metric in METRIC_WORDS else 4


def share(rate: Rate) -> str:
    """Return a rate as a percentage with its interval."""
    return f"{100 * rate.rate:.1f} % [{100 * rate.low:.1f}, {100 * rate.high:.1f}]"


def mean(metric: str, rate: Rate) -> str:
    """Return a metric's mean with its interval, in its unit."""
    low, high = (f"{bound:.{digits(metric)}f}" for bound in (rate.low, rate.high))
    return f"{rate.rate:.{digits(metric)}f} [{low}, {high}]"


def change(metric: str, estimate: float, low: float, high: float) -> str:
    """Return a metric's difference with its interval, in its unit."""
    first, *bounds = (f"{value:+.{digits(metric)}f}" for value in (estimate, low, high))
    return f"{first} [{', '.join(bounds)}]"


def when(seconds: float) -> str:
    """Return a time, in Unix seconds, in words."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def sampled(share: float) -> str:
    """Return a share of users, whose requests alone are counted, in words; empty for all users."""
    return "" if share >= 1 else f", of a sample of 1 in {1 / share:,.0f} users (collect.most_requests)"


def arm_rows(verdict: Verdict, champion: str, challenger: str) -> list[ArmRow]:
    """Return the arms of a verdict that counted requests; the versions are those of its test."""
    versions: Mapping[Arm, str] = {"champion": champion, "challenger": challenger}
    return [
        ArmRow(
            arm=arm,
            version=version,
            users=verdict.users.get(arm, 0),
            requests=verdict.requests[arm],
            acceptance=share(verdict.acceptance[arm]) if arm in verdict.acceptance else "",
            kept=mean("characters", verdict.kept[arm]) if arm in verdict.kept else "",
            saved=mean("saved", verdict.saved[arm]) if arm in verdict.saved else "",
        )
        for arm, version in versions.items()
        if arm in verdict.requests
    ]


def summed(verdicts: Sequence[Verdict]) -> Gain | None:
    """Return the sum of the differences of acceptance of successive tests; None without one, or where one was not compared.

    The tests are of different requests, so the squares of the intervals' halves add up.
    """
    if not verdicts or any(verdict.estimate is None for verdict in verdicts):
        return None
    estimate = sum(verdict.estimate or 0.0 for verdict in verdicts)
    half = math.hypot(*(((verdict.high or 0.0) - (verdict.low or 0.0)) / 2 for verdict in verdicts))
    if len(verdicts) == 1:
        return Gain(estimate, verdicts[0].low or 0.0, verdicts[0].high or 0.0, 1)
    return Gain(estimate, estimate - half, estimate + half, len(verdicts))


def points(estimate: float, low: float, high: float) -> str:
    """Return a difference of shares in percentage points with its interval."""
    return f"{100 * estimate:+.2f} [{100 * low:+.2f}, {100 * high:+.2f}] points"


def metrics_of(verdict: Verdict) -> Iterator[tuple[str, float]]:
    """Yield the figures of a verdict as MLflow's metrics of its version's run: name and value."""
    for name, rates in (
        ("acceptance", verdict.acceptance),
        ("kept_characters", verdict.kept),
        ("seconds_saved", verdict.saved),
    ):
        for arm, rate in rates.items():
            yield from ((f"test.{name}.{arm}{part}", getattr(rate, of)) for part, of in RATE_PARTS.items())
    for part, value in (("", verdict.estimate), (".low", verdict.low), (".high", verdict.high)):
        if value is not None:
            yield f"test.acceptance.difference{part}", value
    yield from ((f"test.requests.{arm}", float(count)) for arm, count in verdict.requests.items())


RATE_PARTS = {"": "rate", ".low": "low", ".high": "high"}
