"""Lines that appeared at once between two requests of a user, as a paste or an agent writes them. Pure.

The history of a file is the text that a user's requests have shown so far. Lines that no earlier request showed were either
written since the last one, or stood outside the text that was sent. They were written if they stand next to two lines that an
earlier request showed with something else at that side. If more of them appeared since the last request than a developer types
between two completions, they are all pasted.

A request shows nearly what the last one of its file showed. Where it begins with the same lines, these are not read again.
"""

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import groupby, pairwise

END = ""
"""Stands for the end of a file, behind the last line of a request whose suffix is blank."""
ANCHOR = 80
"""Characters at the begin of a request by which its begin is looked for in the last one."""
BESIDE = 2
"""Lines above new ones by which these are known."""


@dataclass
class FileHistory:
    """The lines of a file that a user's requests have shown, without the blanks around them; blank lines are left out."""

    lines: set[str] = field(default_factory=set)
    pairs: set[tuple[str, str]] = field(default_factory=set)
    """Lines that stood one behind the other."""
    lowest: set[str] = field(default_factory=set)
    """Lines behind which none stood."""
    highest: set[str] = field(default_factory=set)
    """Lines before which none stood."""
    pasted: set[str] = field(default_factory=set)
    last: str = ""
    """The whole lines that the last request showed, from a line end to the last one."""

    def observe(self, prefix: str, suffix: str, most: int) -> None:
        """Add a request; `most`: characters that may appear between two requests."""
        text = prefix + suffix
        # The first line may begin, and the last one end, where the text that was sent is cut.
        shown = text[text.find("\n") : text.rfind("\n") + 1]
        lines = [stripped for line in shown[self._read(shown) :].split("\n") if (stripped := line.strip())]
        self.last = shown
        if not suffix.strip():
            lines.append(END)
        if new := set(lines) - self.lines:
            if self.lines and sum(len(line) for line in lines if line in new) > most:
                written = self._written(lines, new)
                if sum(map(len, written)) > most:
                    self.pasted.update(written)
            self.lines |= new
            self.lowest |= new
            self.highest |= new
        if pairs := set(pairwise(lines)) - self.pairs:
            self.pairs |= pairs
            self.lowest.difference_update([one for one, _ in pairs])
            self.highest.difference_update([other for _, other in pairs])

    def _read(self, shown: str) -> int:
        """Return how many characters of a text need not be read: lines that the last one has too, but for the last BESIDE."""
        at = self.last.find(shown[:ANCHOR]) if shown else -1
        if at < 0:
            return 0
        # Both begin and end at a line end: up to the last line end that they have in common, their lines are whole.
        end = shown.rfind("\n", 0, common_start(shown, self.last[at:]))
        for _ in range(BESIDE):
            end = shown.rfind("\n", 0, len(shown[:end].rstrip()))
        return max(end, 0)

    def _written(self, lines: list[str], new: set[str]) -> list[str]:
        """Return the new lines that did not stand outside of the text that earlier requests sent."""
        written: list[str] = []
        for is_new, run in groupby(range(len(lines)), key=lambda at: lines[at] in new):
            if not is_new:
                continue
            first, *others = run
            last = others[-1] if others else first
            before, behind = lines[max(first - 2, 0) : first], lines[last + 1 : last + 3]
            if (tuple(before) in self.pairs and before[-1] not in self.lowest) or (
                tuple(behind) in self.pairs and behind[0] not in self.highest
            ):
                written += lines[first : last + 1]
        return written


def common_start(one: str, other: str) -> int:
    """Return how many characters two texts begin with in common."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


class Histories:
    """The histories of the files of a window's users, which get its requests by time."""

    def __init__(self) -> None:
        self._files: defaultdict[tuple[str, str, str], FileHistory] = defaultdict(FileHistory)

    def pasted(self, file: tuple[str, str, str], prefix: str, suffix: str, most: int) -> set[str]:
        """Add a request of (project, user, file name); return the lines of the file that are pasted."""
        history = self._files[file]
        history.observe(prefix, suffix, most)
        return history.pasted
