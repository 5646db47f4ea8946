"""Which code is written live, and the two grounds on which models are compared; all of it a function of the code alone.

A hash splits the files. In *open* files some holes are written live and the others are kept for later; *whole* files are written
live but for what stands from the beginning; *closed* files are never opened. The grounds:

later: the team's later code. Holes of open files that no developer begins; they stand in no window.
new: holes of closed files.

Code repeats itself. So a line of LONG_LINE characters that another ground's windows (for `later`, any live window) could show is
not asked for: a place lies below the last such line of its hole.
"""

import hashlib
import random
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Literal, get_args

from tasks.evaluation import positions
from tasks.evaluation.heldout.build import typed_sources
from tasks.evaluation.positions import CONTEXT_CHARACTERS, Position, Source, draw_column
from tasks.own_code.holes import Hole, holes_of

Ground = Literal["later", "new"]
GROUNDS: tuple[Ground, ...] = get_args(Ground)
Role = Literal["open", "whole", "closed"]
LONG_LINE = 30
"""Characters of a line that says where it comes from; shorter ones (`return None`) are everywhere."""
CLOSED, WHOLE = 0.125, 0.25
"""Shares of the files that are closed and whole; the others are open."""
LATER = 0.3
"""Share of the holes of open files that are kept for later."""
STANDING_BLOCKS, STANDING_FUNCTIONS = 0.6, 0.15
"""Shares of the blocks and functions that stand from the beginning."""


def role_of(source: Source) -> Role:
    share = _share("file", source.name)
    return "closed" if share < CLOSED else "whole" if share < CLOSED + WHOLE else "open"


class Grounds:
    """The grounds of some files."""

    def __init__(self, sources: Iterable[Source]) -> None:
        self._sources = tuple(sources)

    def draw(self, ground: Ground, rng: random.Random, several_lines: float = 0.0) -> tuple[Position, str]:
        """Return a random place, each line of the ground equally likely, and its hole's text from the cursor to the end.

        The file is finished around the place, and its hole is empty from the cursor on; the suffix begins after the hole.
        `several_lines`: the share of places whose truth covers one to three further lines.

        Raises NoCode where the ground has no line.
        """
        stretches, ends = self._stretches[ground]
        if not stretches:
            raise positions.NoCode(
                f"ground {ground!r}: {len(self._sources)} files hold no place of it; give more code with --code"
            )
        line = rng.randrange(ends[-1])
        index = bisect_left(ends, line + 1)
        source, hole, first = stretches[index]
        number = len(hole.lines) - (ends[index] - line)
        assert number >= first
        start, end = hole.lines[number]
        last = number + (rng.randint(1, 3) if rng.random() < several_lines else 0)
        text = source.text
        offset = hole.start + start + draw_column(text[hole.start + start : hole.start + end], rng)
        stop = hole.start + hole.lines[min(last, len(hole.lines) - 1)][1]
        prefix, suffix = text[max(0, offset - CONTEXT_CHARACTERS) : offset], text[hole.stop : hole.stop + CONTEXT_CHARACTERS]
        return Position(source.name, offset, prefix, suffix, text[offset:stop]), text[offset : hole.stop]

    def lines(self, ground: Ground) -> int:
        """Return the number of lines with places."""
        _, ends = self._stretches[ground]
        return ends[-1] if ends else 0

    @cached_property
    def _stretches(self) -> dict[Ground, tuple[Sequence[tuple[Source, Hole, int]], Sequence[int]]]:
        """For each ground its (file, hole, number of the first line), and the cumulative number of lines."""
        holes: dict[Ground, list[tuple[Source, Hole]]] = {ground: [] for ground in GROUNDS}
        visible: dict[Role, set[str]] = {"open": set(), "whole": set(), "closed": set()}
        kept: set[str] = set()
        for source in self._sources:
            role, later = role_of(source), holes_in(source, "later")
            holes["later"] += ((source, hole) for hole in later)
            kept.update(line for hole in later for line in _long_lines(source.text[hole.start : hole.stop]))
            if role == "closed":
                holes["new"] += ((source, hole) for hole in holes_of(source.text))
            standing = (hole for hole in holes_of(source.text) if hole not in later)
            visible[role].update(line for hole in standing for line in _long_lines(source.text[hole.start : hole.stop]))
        foreign = {
            "later": visible["open"] | visible["whole"] | visible["closed"],
            "new": visible["open"] | visible["whole"] | kept,
        }
        return {ground: _eligible(holes[ground], foreign[ground]) for ground in GROUNDS}


def _eligible(
    holes: Sequence[tuple[Source, Hole]], foreign: set[str]
) -> tuple[Sequence[tuple[Source, Hole, int]], Sequence[int]]:
    stretches = []
    for source, hole in holes:
        texts = [source.text[hole.start + start : hole.start + end].strip() for start, end in hole.lines]
        first = max((number + 1 for number, text in enumerate(texts) if text in foreign), default=0)
        if first < len(texts):
            stretches.append((source, hole, first))
    return stretches, list(accumulate(len(hole.lines) - first for _, hole, first in stretches))


def holes_in(source: Source, kind: Literal["live", "later"]) -> tuple[Hole, ...]:
    """Return the holes of a file that are written live, or kept for later; in windows of live requests, nothing stands there.

    The others stand from the beginning. A typed file has at least one live hole: all if the rule leaves none.
    """
    if (role := role_of(source)) == "closed":
        return ()
    holes, kinds = holes_of(source.text), []
    for hole in holes:
        standing, later = STANDING_FUNCTIONS if hole.function else STANDING_BLOCKS, LATER if role == "open" else 0.0
        share = _share("hole", source.name, source.text[hole.start : hole.stop])
        kinds.append("standing" if share < standing else "later" if share < standing + (1 - standing) * later else "live")
    if "live" not in kinds:
        kinds = ["live"] * len(kinds)
    return tuple(hole for hole, each in zip(holes, kinds, strict=True) if each == kind)


def _share(*key: str) -> float:
    """Return a number in [0, 1) that the key alone decides."""
    return int.from_bytes(hashlib.sha256("\0".join(key).encode()).digest()[:8]) / 2**64


def _long_lines(text: str) -> list[str]:
    return [line for raw in text.split("\n") if len(line := raw.strip()) >= LONG_LINE]


def code_from(directories: Sequence[Path] = ()) -> positions.Code:
    """Return the Python files below the directories; without directories, the held-out files that no model is scored on.

    Raises NoCode where a path is not a directory, or the directories hold no Python file.
    """
    if not directories:
        return positions.Code(typed_sources())
    for directory in directories:
        if not directory.is_dir():
            raise positions.NoCode(f"--code {directory}: no such directory; give one that holds Python files")
    files = sorted({file for directory in directories for file in directory.rglob("*.py")})
    return positions.Code(positions.read_sources(files, directories))
