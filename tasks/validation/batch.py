"""What a cycle's batch is as a whole, and what it may be: the one row that the suite expectations_batch.json speaks of. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

import polars as pl

from infra.records import Profile
from infra.settings.schema import Collect
from tasks.labels.accounting import RequestAccounting
from tasks.validation.drift import length, length_range, profile, rate, rate_range

UNKNOWN_VERSION = "unknown_policy_version"
BEYOND_ANY = 1e18
"""In place of an infinite bound, which JSON cannot hold."""
ROUNDING = 1e-9


@dataclass(frozen=True)
class BatchStats:
    """A window's requests and the samples of them, in figures."""

    duplicate_share: float
    """Requests that were delivered again or trained before, of all."""
    unknown_version_share: float
    """Requests by versions that the registry does not know, of all."""
    clock_skew_seconds: float
    """How far the newest event lies ahead of the collector's clock; below zero where none does."""
    user_share: float
    """Samples of the user who has most, of all."""
    project_share: float
    """Samples of the project that has most, of all."""
    acceptance_rate: float
    """Of the samples with something shown, those accepted in part or whole."""
    shown_length: float
    """Mean characters shown."""


Bounds = dict[str, float]
"""Least and most of each figure, by the names that the suite gives them."""


def batch_stats(accounts: RequestAccounting, skew: float) -> BatchStats:
    """The figures of a window before its rows are validated."""
    samples, requests = accounts.samples, max(accounts.requests, 1)
    found = profile(samples)
    return BatchStats(
        duplicate_share=accounts.buckets["duplicate"] / requests,
        unknown_version_share=accounts.quarantined.get(UNKNOWN_VERSION, 0) / requests,
        clock_skew_seconds=skew,
        user_share=largest_share(samples["user"]),
        project_share=largest_share(samples["project"]),
        acceptance_rate=rate(found),
        shown_length=length(found),
    )


def bounds(samples: pl.DataFrame, history: Sequence[Profile], settings: Collect) -> Bounds:
    """What each figure may be, after the settings and the cycles before."""
    found = profile(samples)
    accepted = rate_range(found, history, settings.max_history_factor)
    shown = length_range(found, history, settings.max_history_factor)
    return {
        "duplicate_share_max": settings.max_duplicates,
        "unknown_version_share_max": settings.max_unknown_versions,
        "clock_skew_seconds_max": settings.max_clock_skew_seconds,
        "user_share_max": allowed_share(samples["user"].n_unique(), settings.max_user_share),
        "project_share_max": allowed_share(samples["project"].n_unique(), settings.max_project_share),
        "acceptance_rate_min": accepted.low,
        "acceptance_rate_max": accepted.high,
        "shown_length_min": shown.low,
        "shown_length_max": min(shown.high, BEYOND_ANY),
    }


def allowed_share(groups: int, share: float) -> float:
    """The share that one of so many may have: with few of them, an equal one."""
    return max(share, 1 / max(groups, 1)) + ROUNDING


def largest_share(names: pl.Series) -> float:
    """Share of the most frequent name."""
    return max(names.value_counts()["count"], default=0) / max(len(names), 1)


FIGURES = tuple(field.name for field in fields(BatchStats))


def as_row(found: BatchStats) -> dict[str, list[float]]:
    """The figures as columns of one row."""
    row = {name: getattr(found, name) for name in FIGURES}
    assert all(map(math.isfinite, row.values())), row
    return {name: [value] for name, value in row.items()}
