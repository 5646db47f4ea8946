"""Lines that appeared at once between two requests of a user, as a paste or an agent writes them. Pure.

The history of a file is the text that a user's requests have shown so far. Lines that no earlier request showed were either
written since the last one, or stood outside the text that was sent. They were written if they stand next to two lines that an
earlier request showed with something else at that side. If more of them appeared since the last request than a developer types
between two completions, they are all pasted.
"""

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import groupby, pairwise

END = ""
"""Stands for the end of a file, behind the last line of a request whose suffix is blank."""


@dataclass
class FileHistory:
    """The lines of a file that a user's requests have shown, without the blanks around them; blank lines are left out."""

    lines: set[str] = field(default_factory=set)
    pairs: set[tuple[str, str]] = field(default_factory=set)
    """Lines that stood one behind the other."""
    above: set[str] = field(default_factory=set)
    """Lines behind which another stood."""
    below: set[str] = field(default_factory=set)
    """Lines before which another stood."""
    pasted: set[str] = field(default_factory=set)

    def observe(self, prefix: str, suffix: str, most: int) -> None:
        """Add a request; `most`: characters that may appear between two requests."""
        # The first line may begin, and the last one end, where the text that was sent is cut.
        stripped = [line.strip() for line in (prefix + suffix).split("\n")[1:-1]]
        lines = [line for line in stripped if line] + ([] if suffix.strip() else [END])
        if new := set(lines) - self.lines:
            if self.lines and sum(len(line) for line in lines if line in new) > most:
                written = self._written(lines, new)
                if sum(map(len, written)) > most:
                    self.pasted.update(written)
            self.lines |= new
        if pairs := set(pairwise(lines)) - self.pairs:
            self.pairs |= pairs
            self.above.update(one for one, _ in pairs)
            self.below.update(other for _, other in pairs)

    def _written(self, lines: list[str], new: set[str]) -> list[str]:
        """Return the new lines that did not stand outside of the text that earlier requests sent."""
        written: list[str] = []
        for is_new, run in groupby(range(len(lines)), key=lambda at: lines[at] in new):
            if not is_new:
                continue
            first, *others = run
            last = others[-1] if others else first
            before, behind = lines[max(first - 2, 0) : first], lines[last + 1 : last + 3]
            if (tuple(before) in self.pairs and before[-1] in self.above) or (
                tuple(behind) in self.pairs and behind[0] in self.below
            ):
                written += lines[first : last + 1]
        return written


class Histories:
    """The histories of the files of a window's users, which get its requests by time."""

    def __init__(self) -> None:
        self._files: defaultdict[tuple[str, str, str], FileHistory] = defaultdict(FileHistory)

    def pasted(self, file: tuple[str, str, str], prefix: str, suffix: str, most: int) -> set[str]:
        """Add a request of (project, user, file name); return the lines of the file that are pasted."""
        history = self._files[file]
        history.observe(prefix, suffix, most)
        return history.pasted
