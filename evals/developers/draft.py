"""A file that is being written: what stands in it now.

Each hole is written from its top. Its text is the finished file's text up to the front, but for patches: text that stands for a
while where the finished file has other text (a wrong tail that was accepted, a wrong word, a piece that is being written again).
Offsets in a hole are those of its finished text.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tasks.evaluation.holes import Hole
from tasks.evaluation.positions import CONTEXT_CHARACTERS, Source


@dataclass(frozen=True)
class Patch:
    """Text that stands in place of the finished text from `start` to `end`."""

    start: int
    end: int
    text: str
    open: bool = False  # the piece is being written again: `text` is not all that the developer will write


class Draft:
    """The text of a file with holes."""

    def __init__(self, source: Source, holes: Sequence[Hole]) -> None:
        self.source = source
        self.holes = tuple(holes)
        """The holes of which nothing stands at first, in order; the rest of the file stands."""
        self._fronts: list[int | None] = [None] * len(self.holes)
        self._patches: list[tuple[Patch, ...]] = [()] * len(self.holes)

    def final(self, hole: int, start: int = 0, stop: int | None = None) -> str:
        """Return the finished text of a hole between two offsets."""
        span = self.holes[hole]
        return self.source.text[span.start + start : span.start + (span.size if stop is None else min(stop, span.size))]

    def front(self, hole: int) -> int:
        """Return the offset up to which a hole is written; 0 before it is opened."""
        return self._fronts[hole] or 0

    def patches(self, hole: int) -> tuple[Patch, ...]:
        """Return the patches of a hole, in order."""
        return self._patches[hole]

    def open(self, hole: int) -> None:
        """Begin a hole: its lines and the blank lines below it stand from now on."""
        if self._fronts[hole] is None:
            self._fronts[hole] = 0

    def write(self, hole: int, upto: int) -> None:
        """Write the finished text up to an offset; a hole never becomes shorter by it."""
        self._fronts[hole] = max(self.front(hole), min(upto, self.holes[hole].size))

    def put(self, hole: int, patch: Patch) -> None:
        """Let other text stand in a written piece, and remove the patches in it."""
        assert patch.start <= patch.end <= self.front(hole)
        others = [p for p in self._patches[hole] if p.end <= patch.start or p.start >= patch.end]
        self._patches[hole] = tuple(sorted([*others, patch], key=lambda p: (p.start, p.end)))

    def drop(self, hole: int, patch: Patch) -> None:
        """Let the finished text stand where the patch was."""
        self._patches[hole] = tuple(p for p in self._patches[hole] if p != patch)

    def between(self, hole: int, start: int, stop: int) -> str:
        """Return what stands between two offsets of a hole, with the patches that lie between them."""
        parts, at = [], start
        stop = min(stop, self.front(hole))
        for patch in self._patches[hole]:
            if start <= patch.start and patch.end <= stop:
                parts += [self.final(hole, at, patch.start), patch.text]
                at = patch.end
        return "".join([*parts, self.final(hole, at, stop)] if at < stop else parts)

    def is_complete(self, hole: int, start: int, stop: int) -> bool:
        """Return whether the text between two offsets stands, but for wrong text that the developer holds to be right."""
        return self.front(hole) >= stop and not any(p.open for p in self._patches[hole] if start <= p.start and p.end <= stop)

    def before(self, hole: int, offset: int) -> str:
        """Return what stands before an offset of a hole, the nearest CONTEXT_CHARACTERS."""
        parts, size, at = [self.between(hole, 0, offset)], 0, hole
        while (size := size + len(parts[-1])) < CONTEXT_CHARACTERS and at >= 0:
            parts.append(self._standing(at))
            at -= 1
            if at >= 0:
                parts[-1] = self._content(at) + parts[-1]
        return "".join(reversed(parts))[-CONTEXT_CHARACTERS:]

    def after(self, hole: int, offset: int) -> str:
        """Return what stands after an offset of a hole, the nearest CONTEXT_CHARACTERS."""
        parts = [self.between(hole, offset, self.holes[hole].size) if offset < self.front(hole) else "", self._below(hole)]
        size, at = sum(map(len, parts)), hole + 1
        while size < CONTEXT_CHARACTERS and at <= len(self.holes):
            parts.append(self._standing(at) + (self._content(at) if at < len(self.holes) else ""))
            size, at = size + len(parts[-1]), at + 1
        return "".join(parts)[:CONTEXT_CHARACTERS]

    @property
    def text(self) -> str:
        """The whole file as it stands."""
        pieces = [self._standing(at) + self._content(at) for at in range(len(self.holes))]
        return "".join([*pieces, self._standing(len(self.holes))])

    def _content(self, hole: int) -> str:
        return self.between(hole, 0, self.holes[hole].size) + self._below(hole)

    def _below(self, hole: int) -> str:
        """Return the newline and the blank lines below an opened hole."""
        span = self.holes[hole]
        return "" if self._fronts[hole] is None else self.source.text[span.stop : span.next]

    def _standing(self, at: int) -> str:
        """Return the text that always stood between hole `at` - 1 and hole `at`."""
        start = self.holes[at - 1].next if at else 0
        return self.source.text[start : self.holes[at].start if at < len(self.holes) else None]
