"""Compare a batch with the cycles before it.

A rate or a mean drifts if it differs from its history by a factor and by more than chance: a small batch may have no accept at
all, and a model that learns may be accepted twice as often. The standard error of a difference of two independent means is
sqrt(s^2 (1/n + 1/m)). A rate's s^2 is p (1 - p), with one accept and one rejection added to its history (Laplace's rule), since
a history without an accept would otherwise have no error.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import polars as pl

from infra.records import Profile
from infra.storage.cycles import index, manifest_of, sealed
from infra.storage.store import ObjectStore

HISTORY_CYCLES = 10
"""Number of earlier cycles with which a batch is compared."""
LEAST_CYCLES = 3
"""Earlier cycles without which a batch is not compared."""
DRIFT_FACTOR, DRIFT_SIGMAS = 4.0, 5.0
"""Factor, in either direction, and standard errors from which on together a difference counts as drift, which stops a cycle."""


@dataclass(frozen=True)
class ExpectedRange:
    """The bounds of an expected value."""

    low: float
    high: float


ANY_RATE, ANY_LENGTH = ExpectedRange(0.0, 1.0), ExpectedRange(0.0, math.inf)


def profile(samples: pl.DataFrame) -> Profile:
    """Return a batch's sums. A sample with accepted characters counts as accepted, whatever the kind of feedback."""
    judged = samples.filter(~pl.col("outcome").cast(pl.String).is_in(["nothing", "unjudged"]))
    shown = judged["shown_characters"]
    return Profile(
        samples=samples.height,
        judged=judged.height,
        accepted=int((judged["accepted_characters"] > 0).sum()),
        shown_characters=int(shown.sum()),
        shown_characters_squared=int((shown**2).sum()),
    )


def merged(profiles: Iterable[Profile]) -> Profile:
    terms = list(profiles)
    return Profile(**{name: sum(getattr(p, name) for p in terms) for name in Profile.model_fields})


def earlier(store: ObjectStore, cycles: int = HISTORY_CYCLES) -> list[Profile]:
    """Return the profiles of the last sealed cycles, newest first; manifests without a profile are left out."""
    manifests = (manifest_of(store, cycle) for cycle in sealed(index(store))[::-1][:cycles])
    return [manifest.profile for manifest in manifests if manifest.profile.judged]


def rate(sums: Profile) -> float:
    """Return the share of shown completions that were accepted."""
    return sums.accepted / max(sums.judged, 1)


def length(sums: Profile) -> float:
    """Return the mean characters shown."""
    return sums.shown_characters / max(sums.judged, 1)


def rate_range(batch: Profile, history: Sequence[Profile]) -> ExpectedRange:
    """Return the range of a batch's acceptance rate after these cycles."""
    if len(history) < LEAST_CYCLES or not batch.judged:
        return ANY_RATE
    past = merged(history)
    expected = (past.accepted + 1) / (past.judged + 2)
    tolerance = DRIFT_SIGMAS * math.sqrt(expected * (1 - expected) * (1 / batch.judged + 1 / past.judged))
    return ExpectedRange(
        max(0.0, min(expected / DRIFT_FACTOR, expected - tolerance)), min(1.0, max(expected * DRIFT_FACTOR, expected + tolerance))
    )


def length_range(batch: Profile, history: Sequence[Profile]) -> ExpectedRange:
    """Return the range of a batch's mean shown length after these cycles."""
    if len(history) < LEAST_CYCLES or not batch.judged:
        return ANY_LENGTH
    past = merged(history)
    expected = length(past)
    variance = max(past.shown_characters_squared / past.judged - expected**2, 0.0)
    tolerance = DRIFT_SIGMAS * math.sqrt(variance * (1 / batch.judged + 1 / past.judged))
    return ExpectedRange(
        max(0.0, min(expected / DRIFT_FACTOR, expected - tolerance)), max(expected * DRIFT_FACTOR, expected + tolerance)
    )
