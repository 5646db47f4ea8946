"""The parts of the places in which the gate looks for a loss that the whole does not show."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tasks.evaluation.gate.values import Places

PROJECT = "project: "
POOLED = ("language", "project", "set")
"""Kinds of slices whose small ones count together: a loss in a language with few places would otherwise go unseen."""


@dataclass(frozen=True, eq=False)
class Slice:
    """Places that are looked at by themselves."""

    names: tuple[str, ...]
    """As in PositionScore.slices; several where small ones count together."""
    within: np.ndarray
    """[N], whether each place is in it."""

    @classmethod
    def of(cls, names: Sequence[str], places: Places) -> "Slice":
        """Return the places that have one of the names."""
        within = [places.slices[name] for name in names]
        return cls(tuple(names), np.any(within, axis=0) if within else np.zeros(len(places.files), dtype=bool))


def of_places(places: Places, known: np.ndarray, least: int, least_files: int) -> tuple[dict[str, Slice], list[str]]:
    """Return the slices that are large enough by name, and what is said of the others.

    A slice that holds all places is none. Of languages, projects and sets, those that are too small make one slice together.

    Args:
        known: whether each place counts, [N].
        least: least number of places of a slice.
        least_files: least number of files of a project.
    """
    found: dict[str, Slice] = {}
    notes: dict[str, str] = {}
    for name in places.slices:
        one = Slice.of([name], places)
        count, files = int((known & one.within).sum()), files_of(places, known & one.within)
        if one.within[known].all():
            continue
        if count < least:
            notes[name] = f"{name}: {count} places, a verdict needs {least}"
        elif name.startswith(PROJECT) and files < least_files:
            notes[name] = f"{name}: {count} places in {files:.3g} files of equal size, a verdict needs {least_files}"
        else:
            found[name] = one
    for kind in POOLED:
        small = [name for name in notes if name.startswith(f"{kind}: ")]
        together, name = Slice.of(small, places), f"{kind}: {len(small)} small ones"
        counted = known & together.within
        if len(small) > 1 and counted.sum() >= least and not together.within[known].all():
            found[name] = together
            notes |= {one: f"{notes[one]}; it counts with {name}" for one in small}
    return found, list(notes.values())


def files_of(places: Places, within: np.ndarray) -> float:
    """Return the number of files of equal size that tell as much as those of some places, [N] (compare/paired.py)."""
    counts = np.unique(places.files[within], return_counts=True)[1].astype(float)
    return float(counts.sum() ** 2 / np.square(counts).sum()) if len(counts) else 0.0
