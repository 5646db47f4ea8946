"""Statistics of a cycle's batch and their bounds: the row that the suite expectations_batch.json checks. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

import polars as pl

from infra.records import Profile
from infra.settings.schema import Collect
from tasks.labels.accounting import RequestAccounting
from tasks.labels.shares import sample_shares
from tasks.validation.drift import length, length_range, profile, rate, rate_range

UNKNOWN_VERSION = "unknown_policy_version"
BEYOND_ANY = 1e18
"""In place of an infinite bound, which JSON cannot hold."""
ROUNDING = 1e-9


@dataclass(frozen=True)
class BatchStats:
    """Statistics of a window's requests and samples."""

    duplicate_share: float
    """Share of requests that were delivered again or trained before."""
    unknown_version_share: float
    """Share of requests with a version that the registry does not know."""
    clock_skew_seconds: float
    """Seconds by which the newest event is ahead of the collector's clock; negative where it is behind."""
    user_share: float
    """Share of the samples of the user with the most."""
    credential_share: float
    """Share of the samples of the credential with the most."""
    project_share: float
    """Share of the samples of the project with the most."""
    accepted_of_judged: float
    """Share of the judged samples that were accepted in part or in full."""
    shown_length: float
    """Mean characters shown of the judged samples."""


MAX_DUPLICATES = 0.1
"""Maximum share of a window's requests that were delivered or trained on before. More are events that were shipped twice."""
MAX_UNKNOWN_VERSIONS = 0.05
"""Maximum share of a window's requests from versions that the registry does not know. These requests are never trained on."""
MAX_CLOCK_SKEW_SECONDS = 60.0
"""Maximum seconds by which an event's time is ahead of the collector's clock: windows are cut by time."""
Bounds = dict[str, float]
"""Minimum and maximum of each statistic, by the parameter's name in the suite."""


def batch_stats(accounting: RequestAccounting, skew: float) -> BatchStats:
    """Return the statistics of a window before its rows are validated."""
    samples, requests = accounting.samples, max(accounting.requests - accounting.counts.unsampled, 1)
    sums = profile(samples)
    return BatchStats(
        duplicate_share=accounting.buckets["duplicate"] / requests,
        unknown_version_share=accounting.quarantined.get(UNKNOWN_VERSION, 0) / requests,
        clock_skew_seconds=skew,
        **{f"{name}_share": largest_share(samples[name]) for name in ("user", "credential", "project")},
        accepted_of_judged=rate(sums),
        shown_length=length(sums),
    )


def bounds(samples: pl.DataFrame, history: Sequence[Profile], settings: Collect) -> Bounds:
    """Return the bounds of each statistic, from the settings and the earlier cycles."""
    sums = profile(samples)
    accepted = rate_range(sums, history)
    shown = length_range(sums, history)
    return {
        "duplicate_share_max": MAX_DUPLICATES,
        "unknown_version_share_max": MAX_UNKNOWN_VERSIONS,
        "clock_skew_seconds_max": MAX_CLOCK_SKEW_SECONDS,
        **{f"{name}_share_max": share + ROUNDING for name, share in sample_shares(settings).items()},
        "accepted_of_judged_min": accepted.low,
        "accepted_of_judged_max": accepted.high,
        "shown_length_min": shown.low,
        "shown_length_max": min(shown.high, BEYOND_ANY),
    }


def largest_share(names: pl.Series) -> float:
    """Return the share of the most frequent name."""
    return max(names.value_counts()["count"], default=0) / max(len(names), 1)


FIGURES = tuple(field.name for field in fields(BatchStats))


def as_row(stats: BatchStats) -> dict[str, list[float]]:
    """Return the statistics as columns of one row."""
    row = {name: getattr(stats, name) for name in FIGURES}
    assert all(map(math.isfinite, row.values())), row
    return {name: [value] for name, value in row.items()}
