"""Slices of the places: the gate looks in each for a loss that the total hides."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tasks.evaluation.gate.paired import LEAST_FILES, effective
from tasks.evaluation.gate.values import Places

PROJECT = "project: "
POOLED = ("language", "project", "set")
"""Kinds of slices whose small slices are merged: otherwise a loss in a language with few places would be missed."""


@dataclass(frozen=True, eq=False)
class Slice:
    """Places that are checked separately."""

    names: tuple[str, ...]
    """Names as in PositionScore.slices; several for merged small slices."""
    within: np.ndarray
    """[N], whether each place is in it."""

    @classmethod
    def of(cls, names: Sequence[str], places: Places) -> "Slice":
        """Return the places that have one of the names."""
        within = [places.slices[name] for name in names]
        return cls(tuple(names), np.any(within, axis=0) if within else np.zeros(len(places.files), dtype=bool))


def of_places(places: Places, known: np.ndarray, least: int, least_files: int) -> tuple[dict[str, Slice], list[str]]:
    """Return the slices that are large enough, by name, and a note on each other slice.

    A slice that covers every place is skipped. Languages, projects and sets that are too small are merged into one slice.

    Args:
        known: whether each place counts, [N].
        least: least number of places of a slice.
        least_files: least number of files of a project, or of small ones together.
    """
    found: dict[str, Slice] = {}
    notes: dict[str, str] = {}
    for name in places.slices:
        one = Slice.of([name], places)
        if one.within[known].all():
            continue
        if lacking := lacks(name, places.files[known & one.within], least, least_files):
            notes[name] = f"{name}: {lacking}"
        else:
            found[name] = one
    for kind in POOLED:
        small = [name for name in notes if name.startswith(f"{kind}: ")]
        together, name = Slice.of(small, places), f"{kind}: {len(small)} small ones"
        lacking = lacks(name, places.files[known & together.within], least, least_files)
        if len(small) > 1 and not lacking and not together.within[known].all():
            found[name] = together
            notes |= {one: f"{notes[one]}; it counts with {name}" for one in small}
    return found, list(notes.values())


def lacks(name: str, files: np.ndarray, least: int, least_files: int) -> str:
    """Return what a slice lacks for a verdict; empty if nothing.

    Args:
        files: file of each of its places that count.
    """
    if len(files) < least:
        return f"{len(files)} places, a verdict needs {least}"
    return lacks_files(files, least_files if name.startswith(PROJECT) else LEAST_FILES)


def lacks_files(files: np.ndarray, least: int) -> str:
    """Return that places are in fewer files of equal size than a verdict needs; empty if they are not."""
    equal = effective(np.unique(files, return_counts=True)[1].astype(float))
    return f"{len(files)} places in {equal:.3g} files of equal size, a verdict needs {least}" if equal < least else ""
