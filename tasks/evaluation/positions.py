"""Cursor positions in real code: the text before the cursor, the text after it, and the file's text in between.

A hash of the path splits the files in two: simulated developers type in one part, models are scored on the other.
"""

import hashlib
import random
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path

from infra.model.line_ends import BREAK

CONTEXT_CHARACTERS = 4_000
"""Characters kept on each side of a position; more than any served model reads."""
TRIES = 50
"""Draws for each requested position."""
BOUNDARY_WEIGHT = 4
"""People pause after a finished token this many times as often as in the middle of a word."""


@dataclass(frozen=True)
class Source:
    """One file of code."""

    name: str
    """Path relative to the folder that was read."""
    text: str

    @cached_property
    def lines(self) -> tuple[tuple[int, int], ...]:
        """Start and end offset of each line that holds code or a comment, without its newline."""
        ends = [*(end.end() for end in BREAK.finditer(self.text)), len(self.text)]
        spans = zip([0, *ends], ends, strict=False)
        return tuple((start, start + len(line)) for start, end in spans if (line := self.text[start:end].rstrip()))


@dataclass(frozen=True)
class Position:
    """A cursor in real code."""

    file: str
    """Source.name."""
    offset: int
    """Offset of the cursor in the file, in characters."""
    prefix: str
    """Text before the cursor, the nearest CONTEXT_CHARACTERS."""
    suffix: str
    """Text after the removed span."""
    truth: str
    """The removed span of the file; never part of a prompt."""
    language: str = ""
    """Extension of the file or name of the language; empty if unknown."""
    project: str = ""
    """Repository of the file; empty if unknown."""
    user: str = ""
    """Keyed hash of the team member who wrote the truth; empty if nobody of the team did."""
    id: str = ""
    """Name within its evaluation set; empty outside a set."""

    @property
    def name(self) -> str:
        """Its unique name in a set."""
        return self.id or f"{self.file}:{self.offset}"

    @property
    def asks(self) -> bool:
        """Whether text should be written here; otherwise a model should be silent."""
        return bool(self.truth.strip())


class NoCode(ValueError):
    """The code holds no position of the kind that is asked for; the message says what to give."""


class Code:
    """Source files from which positions are drawn, each file with the weight of its number of lines.

    Raises:
        NoCode: no source has a line.
    """

    def __init__(self, sources: Iterable[Source]) -> None:
        self.sources = tuple(source for source in sources if source.lines)
        if not self.sources:
            raise NoCode("code: found no Python file with a line in it; give a directory of Python sources with --code")
        self._ends = list(accumulate(len(source.lines) for source in self.sources))

    def draw(self, rng: random.Random, several_lines: float = 0.0) -> Position:
        """Return a random position, each line equally likely.

        `several_lines`: the share of positions whose removed span covers one to three further lines.
        """
        source, number = self._draw_line(rng)
        start, end = source.lines[number]
        last = number + (rng.randint(1, 3) if rng.random() < several_lines else 0)
        stop = source.lines[min(last, len(source.lines) - 1)][1]
        cursor = start + draw_column(source.text[start:end], rng)
        return position_at(source, cursor, stop)

    def draw_line_end(self, rng: random.Random) -> tuple[Source, int]:
        """Return a source and the offset of the end of one of its lines, each line equally likely."""
        source, number = self._draw_line(rng)
        return source, source.lines[number][1]

    def _draw_line(self, rng: random.Random) -> tuple[Source, int]:
        line = rng.randrange(self._ends[-1])
        index = bisect_left(self._ends, line + 1)
        source = self.sources[index]
        return source, line - (self._ends[index] - len(source.lines))


def position_at(source: Source, cursor: int, stop: int) -> Position:
    """Return the position at offset `cursor` with the text up to offset `stop` removed."""
    text = source.text
    return Position(
        file=source.name,
        offset=cursor,
        prefix=text[max(0, cursor - CONTEXT_CHARACTERS) : cursor],
        suffix=text[stop : stop + CONTEXT_CHARACTERS],
        truth=text[cursor:stop],
    )


def draw_column(line: str, rng: random.Random) -> int:
    """Return a column after the indentation and before the last character; token ends are more likely."""
    return column_at(line, rng.random())


def column_at(line: str, share: float) -> int:
    """Return the column of `draw_column` for a number in [0, 1)."""
    columns = range(len(line) - len(line.lstrip()), len(line))
    ends = list(accumulate(1 if _inside_word(line, column) else BOUNDARY_WEIGHT for column in columns))
    return columns[bisect_right(ends, share * ends[-1], hi=len(ends) - 1)]


def _inside_word(line: str, column: int) -> bool:
    return 0 < column < len(line) and _is_word_character(line[column - 1]) and _is_word_character(line[column])


def _is_word_character(character: str) -> bool:
    return character.isalnum() or character == "_"


def read_sources(files: Iterable[Path], roots: Sequence[Path]) -> list[Source]:
    """Read files, each named by its path relative to the first of `roots` that holds it; skips unreadable files."""
    sources = []
    for file in files:
        root = next((root for root in roots if file.is_relative_to(root)), file.parent)
        try:
            sources.append(Source(file.relative_to(root).as_posix(), file.read_text(encoding="utf-8")))
        except (UnicodeDecodeError, OSError):
            continue
    return sources


def is_scored(name: str) -> bool:
    """Return whether models are scored on the file of this name (Source.name), one in four; developers type in the others."""
    return hashlib.sha256(name.encode()).digest()[0] % 4 == 0


def silent_positions(sources: Sequence[Source], count: int, key: str) -> tuple[Position, ...]:
    """Return at most `count` distinct ends of finished lines, each line equally likely; the same for the same arguments.

    Nothing should be written there: the file continues with the next line, so anything a model writes is wrong.
    """
    if not count:
        return ()
    code, rng = Code(sources), random.Random(f"silent/{key}")
    found: dict[tuple[str, int], Position] = {}
    for _ in range(TRIES * count):
        if len(found) == count:
            break
        source, end = code.draw_line_end(rng)
        # At the end of a file, another line may well follow.
        if source.text[end:].strip():
            found.setdefault((source.name, end), position_at(source, end, end))
    return tuple(found.values())


def sample_positions(sources: Iterable[Source], count: int, seed: int) -> tuple[Position, ...]:
    """Return `count` distinct rest-of-line positions; the same ones for the same sources, count and seed.

    Raises:
        ValueError: the sources hold too few positions.
    """
    code, rng = Code(sources), random.Random(f"positions/{seed}")
    positions: dict[tuple[str, int], Position] = {}
    for _ in range(TRIES * count):
        if len(positions) == count:
            return tuple(positions.values())
        position = code.draw(rng)
        positions.setdefault((position.file, position.offset), position)
    raise ValueError(f"positions: asked for {count} in {len(code.sources)} files, found only {len(positions)}; ask for fewer")
