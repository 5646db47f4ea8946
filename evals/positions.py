"""Places in real code where a developer's cursor stands: what is before it, what is after, what they really wrote.

Files are split in two by a hash of their path: simulated developers type in one part, models are scored in the other.
"""

import hashlib
import random
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path

CONTEXT_CHARACTERS = 4_000
"""Characters kept on each side of a position; more than any served model reads."""
BOUNDARY_WEIGHT = 4
"""People pause after a finished token this many times as often as in the middle of a word."""


@dataclass(frozen=True)
class Source:
    """One file of code."""

    name: str
    """Path below its package's folder: no machine's paths."""
    text: str

    @cached_property
    def lines(self) -> tuple[tuple[int, int], ...]:
        """Start and end of each line that holds code or a comment, its newline left out."""
        ends = list(accumulate(map(len, self.text.splitlines(keepends=True))))
        spans = zip([0, *ends], ends, strict=False)
        return tuple((start, start + len(line)) for start, end in spans if (line := self.text[start:end].rstrip()))


@dataclass(frozen=True)
class Position:
    """A cursor in real code."""

    file: str
    """Source.name."""
    offset: int
    """Where the cursor stands in the file."""
    prefix: str
    """Text before the cursor, nearest CONTEXT_CHARACTERS."""
    suffix: str
    """Text after the span that was taken out."""
    truth: str
    """What was really written there; never part of a prompt."""


class Code:
    """Source files, drawn from by their number of lines."""

    def __init__(self, sources: Iterable[Source]) -> None:
        self.sources = tuple(source for source in sources if source.lines)
        if not self.sources:
            raise ValueError("code: found no Python file with a line in it; give a directory of Python sources with --code")
        self._ends = list(accumulate(len(source.lines) for source in self.sources))

    def draw(self, rng: random.Random, several_lines: float = 0.0) -> Position:
        """One place, every line equally likely; `several_lines` of the places span one to three lines more."""
        line = rng.randrange(self._ends[-1])
        index = bisect_left(self._ends, line + 1)
        source = self.sources[index]
        number = line - (self._ends[index] - len(source.lines))
        start, end = source.lines[number]
        last = number + (rng.randint(1, 3) if rng.random() < several_lines else 0)
        stop = source.lines[min(last, len(source.lines) - 1)][1]
        cursor = start + _column(source.text[start:end], rng)
        return position(source, cursor, stop)


def position(source: Source, cursor: int, stop: int) -> Position:
    """The position at `cursor` when the text up to `stop` is yet to be written."""
    text = source.text
    return Position(
        file=source.name,
        offset=cursor,
        prefix=text[max(0, cursor - CONTEXT_CHARACTERS) : cursor],
        suffix=text[stop : stop + CONTEXT_CHARACTERS],
        truth=text[cursor:stop],
    )


def _column(line: str, rng: random.Random) -> int:
    """Where on the line the cursor pauses: after its indentation and before its last character, tokens' ends preferred."""
    columns = range(len(line) - len(line.lstrip()), len(line))
    weights = [1 if _inside_word(line, column) else BOUNDARY_WEIGHT for column in columns]
    return rng.choices(columns, weights)[0]


def _inside_word(line: str, column: int) -> bool:
    return 0 < column < len(line) and _wordy(line[column - 1]) and _wordy(line[column])


def _wordy(character: str) -> bool:
    return character.isalnum() or character == "_"


def read(files: Iterable[Path], roots: Sequence[Path]) -> list[Source]:
    """Read files, each named by its path below the first of `roots` that holds it; unreadable ones are left out."""
    sources = []
    for file in files:
        root = next((root for root in roots if file.is_relative_to(root)), file.parent)
        try:
            sources.append(Source(file.relative_to(root).as_posix(), file.read_text(encoding="utf-8")))
        except (UnicodeDecodeError, OSError):
            continue
    return sources


def for_developers(sources: Iterable[Source]) -> list[Source]:
    """The part that simulated developers type in: three files in four."""
    return [source for source in sources if not _scored(source)]


def for_scores(sources: Iterable[Source]) -> list[Source]:
    """The part that models are scored on: one file in four, which no simulated developer opens."""
    return [source for source in sources if _scored(source)]


def _scored(source: Source) -> bool:
    return hashlib.sha256(source.name.encode()).digest()[0] % 4 == 0


def sample(sources: Iterable[Source], count: int, seed: int) -> tuple[Position, ...]:
    """Rest-of-line positions to score a model on, no place twice; the same for the same sources, count and seed."""
    code, rng = Code(sources), random.Random(f"positions/{seed}")
    found: dict[tuple[str, int], Position] = {}
    for _ in range(50 * count):
        if len(found) == count:
            return tuple(found.values())
        drawn = code.draw(rng)
        found.setdefault((drawn.file, drawn.offset), drawn)
    raise ValueError(f"positions: asked for {count} in {len(code.sources)} files, found only {len(found)}; ask for fewer")
