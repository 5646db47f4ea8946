"""A batch held against the cycles before it: sums that add up, and how far from them a batch may be. Pure.

A rate or a mean is far from its history where it is several times as large or small, and the difference is more than chance: a
small batch may have no accept at all, and a model that learns may be accepted twice as often. Standard errors of a difference of
two independent means, sqrt(s^2 (1/n + 1/m)); a rate's s^2 is p (1 - p), with one accept and one reject added to its history
(Laplace's rule), since a history without an accept would otherwise have no error at all.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import polars as pl

from infra.cycles import index, manifest_of
from infra.records import Manifest, Profile, RewardTotals
from infra.settings import Settings
from infra.store import ObjectStore

LEAST_CYCLES = 3
"""With fewer cycles behind it a batch is held against nothing."""
DRIFT_SIGMAS = 5.0
"""Standard errors from which on a difference is no chance."""


@dataclass(frozen=True)
class ExpectedRange:
    """Where a value is expected."""

    low: float
    high: float


ANY_RATE, ANY_LENGTH = ExpectedRange(0.0, 1.0), ExpectedRange(0.0, math.inf)


def profile(samples: pl.DataFrame) -> Profile:
    """A batch's sums. What was accepted is told by its characters, whatever the kind of feedback."""
    judged = samples.filter(pl.col("outcome") != "nothing")
    shown = judged["shown_characters"]
    return Profile(
        samples=samples.height,
        judged=judged.height,
        accepted=int((judged["accepted_characters"] > 0).sum()),
        shown_characters=int(shown.sum()),
        shown_characters_squared=int((shown**2).sum()),
    )


def merged(profiles: Iterable[Profile]) -> Profile:
    """Profiles added up."""
    every = list(profiles)
    return Profile(**{name: sum(getattr(p, name) for p in every) for name in Profile.model_fields})


def earlier(store: ObjectStore, cycles: int) -> list[Profile]:
    """Profiles of the last cycles that were sealed, newest first; those older than profiles are left out."""
    return [m.profile for m in _sealed(store, cycles) if m.profile.judged]


def returns(store: ObjectStore, settings: Settings) -> list[RewardTotals]:
    """Rewards of the last cycles that were sealed, newest first; a cycle with other reward settings says nothing of these."""
    asked = settings.reward.model_dump(mode="json")
    alike = [
        manifest
        for manifest in _sealed(store, settings.collect.history_cycles)
        if store.get_json(f"cycles/{manifest.cycle}/settings.json")["reward"] == asked
    ]
    return [found for manifest in alike for found in manifest.returns]


def _sealed(store: ObjectStore, cycles: int) -> list[Manifest]:
    sealed = [cycle for cycle, objects in index(store).items() if "manifest.json" in objects]
    return [manifest_of(store, cycle) for cycle in reversed(sealed[len(sealed) - min(cycles, len(sealed)) :])]


def rate(found: Profile) -> float:
    """Share of what was shown that was accepted."""
    return found.accepted / max(found.judged, 1)


def length(found: Profile) -> float:
    """Mean characters shown."""
    return found.shown_characters / max(found.judged, 1)


def rate_range(batch: Profile, history: Sequence[Profile], factor: float) -> ExpectedRange:
    """Where a batch's acceptance rate is expected after these cycles."""
    if len(history) < LEAST_CYCLES or not batch.judged:
        return ANY_RATE
    past = merged(history)
    usual = (past.accepted + 1) / (past.judged + 2)
    chance = DRIFT_SIGMAS * math.sqrt(usual * (1 - usual) * (1 / batch.judged + 1 / past.judged))
    return ExpectedRange(max(0.0, min(usual / factor, usual - chance)), min(1.0, max(usual * factor, usual + chance)))


def length_range(batch: Profile, history: Sequence[Profile], factor: float) -> ExpectedRange:
    """Where a batch's mean shown length is expected after these cycles."""
    if len(history) < LEAST_CYCLES or not batch.judged:
        return ANY_LENGTH
    past = merged(history)
    usual = length(past)
    variance = max(past.shown_characters_squared / past.judged - usual**2, 0.0)
    chance = DRIFT_SIGMAS * math.sqrt(variance * (1 / batch.judged + 1 / past.judged))
    return ExpectedRange(max(0.0, min(usual / factor, usual - chance)), max(usual * factor, usual + chance))
