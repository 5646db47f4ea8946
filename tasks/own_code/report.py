"""The gain of a candidate over the champion on the held-out files of the code that it learnt from, by the cycle's objects."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from infra.records import CycleOutcome, LearnedRepository
from infra.storage import cycles
from infra.storage.store import ObjectStore
from tasks.evaluation.gate.paired import Column, Levels, differences
from tasks.own_code.code import PREFIX

MEASURES = {
    "exact": ("whole line right", "rate"),
    "edit_similarity": ("similarity", "mean"),
    "matching_characters": ("right characters", "mean"),
}
"""Measures of the report by their names in evaluation.json: words, and whether each place has 0 or 1."""
LEVEL = 0.025
"""One-sided level of each bound, so that the interval has 95 %."""


@dataclass(frozen=True)
class Gain:
    """A measure on the held-out files of one repository, paired by place and clustered by file."""

    repository: str
    measure: str
    champion: float
    candidate: float
    difference: float
    low: float | None
    """None, as `high`: too few files of equal size."""
    high: float | None
    places: int
    files: int

    def __str__(self) -> str:
        bounds = "too few files" if self.low is None or self.high is None else f"{self.low:+.4g}, {self.high:+.4g}"
        return (
            f"{self.repository}, {MEASURES[self.measure][0]}: {self.champion:.4g} -> {self.candidate:.4g}, "
            f"{self.difference:+.4g} [{bounds}] at {self.places} places of {self.files} held-out files"
        )


@dataclass(frozen=True)
class Report:
    """A cycle of own code."""

    cycle: str
    repositories: tuple[LearnedRepository, ...]
    gains: tuple[Gain, ...]
    gate: str
    """The offline gate's verdict with its reason; empty where there was no evaluation."""
    outcome: CycleOutcome | None
    """None while the cycle runs."""

    def lines(self) -> Iterator[str]:
        """Yield the report for people."""
        for one in self.repositories:
            spoken = ", ".join(f"{name or 'none'} {count}" for name, count in one.languages.items())
            left = ", ".join(f"{count} {reason}" for reason, count in one.left_out.items()) or "nothing"
            places = f"{one.places} positions in {one.files} files ({spoken})"
            yield f"{one.name}: {places}; {one.held_out_files} files held out; left out: {left}"
        yield from map(str, self.gains)
        if self.gate:
            yield f"offline gate: {self.gate}"
        if self.outcome:
            yield f"{self.cycle}: {self.outcome.result}: {self.outcome.reason}"

    def values(self) -> dict[str, Any]:
        read = [each.model_dump(mode="json") for each in self.repositories]
        outcome = self.outcome.model_dump(mode="json") if self.outcome else None
        return {
            "cycle": self.cycle,
            "repositories": read,
            "gains": [asdict(g) for g in self.gains],
            "gate": self.gate,
            "outcome": outcome,
        }


def newest(store: ObjectStore) -> Report | None:
    """Return the report of the newest cycle of own code; None if there is none."""
    for cycle in reversed(cycles.sealed(cycles.index(store))):
        if cycles.manifest_of(store, cycle).learned:
            return report(store, cycle)
    return None


def report(store: ObjectStore, cycle: str) -> Report:
    manifest, key = cycles.manifest_of(store, cycle), cycles.key(cycle, "evaluation.json")
    found = dict(store.get_json(key)) if store.exists(key) else {}
    outcome = store.find(cycles.key(cycle, cycles.OUTCOME), CycleOutcome)
    gate = f"{found['verdict']}: {found['reason']}" if found else ""
    return Report(cycle, manifest.learned, tuple(gains(found)), gate, outcome)


def gains(evaluation: Mapping[str, Any]) -> Iterator[Gain]:
    """Yield the gains of an evaluation on each set of own code."""
    ours, theirs = (evaluation.get(name, ()) for name in ("positions", "champion_positions"))
    names = dict.fromkeys(row["set"] for row in ours if row["set"].startswith(PREFIX))
    for name in names:
        pairs = [(a, b) for a, b in zip(ours, theirs, strict=True) if a["set"] == name and asks(a)]
        yield from _gains(name.removeprefix(PREFIX), pairs)


def asks(row: Mapping[str, Any]) -> bool:
    """Return whether something should be written at a place of evaluation.json, whose texts may be hidden."""
    return (row["measured"] or {}).get("silent") is None


def _gains(name: str, pairs: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> Iterator[Gain]:
    if not pairs:
        return
    values = {each: np.array([[float(a[each]), float(b[each])] for a, b in pairs]) for each in MEASURES}
    ones, known = np.ones(len(pairs)), np.ones(len(pairs), dtype=bool)
    columns = [Column(v[:, 0] - v[:, 1], ones, known, rate=MEASURES[each][1] == "rate") for each, v in values.items()]
    found = differences(columns, [a["file"] for a, _ in pairs], Levels(LEVEL, LEVEL))
    for (each, value), difference in zip(values.items(), found, strict=True):
        candidate, champion = (float(mean) for mean in value.mean(0))
        low, high = (bound if math.isfinite(bound) else None for bound in (difference.low, difference.high))
        yield Gain(name, each, champion, candidate, difference.estimate, low, high, difference.places, difference.files)
