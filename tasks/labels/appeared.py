"""Lines that appeared at once between two requests of a user, as a paste or an agent writes them. Pure.

The history of a file is the text that a user's requests have shown so far. Lines that no earlier request showed were either
written since the last one, or stood outside the text that was sent. They were written if they stand next to two lines that an
earlier request showed with something else at that side. If more of them appeared since the last request than a developer types
between two completions, they are all pasted.

Files without a name share one history. Where most of the lines that a request shows are new to it, they are another file's, and
none of them counts as pasted.

A request shows nearly what the last one of its file showed. Where it begins with the same lines, these are not read again.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise

from infra.model.kept_text import common_start

END = ""
"""Stands for the end of a file, behind the last line of a request whose suffix is blank."""
ANCHOR = 80
"""Characters at the begin of a request by which its begin is looked for in the last one."""
BESIDE = 2
"""Lines above new ones by which these are known."""
OTHER_FILE = 2 / 3
"""Share of a request's lines above which new ones are of another file, where files have no names. With a half, more pastes are
missed; with four fifths, more files that begin alike count as pasted."""


@dataclass
class FileHistory:
    """The lines of a file that a user's requests have shown, without the blanks around them; blank lines are left out.

    A line is known by its hash of 64 bits: of a million requests, the lines themselves would take a gigabyte.
    """

    behind: dict[int, int | None] = field(default_factory=dict)
    """The first line that stood behind a line; None if none did."""
    others: set[tuple[int, int]] = field(default_factory=set)
    """Lines, and others than the first that stood behind them."""
    highest: set[int] = field(default_factory=set)
    """Lines before which none stood."""
    pasted: set[int] = field(default_factory=set)
    """Lines that were pasted."""
    last: str = ""
    """The whole lines that the last request showed, from a line end to the last one."""

    def observe(self, prefix: str, suffix: str, most: int, *, named: bool = True) -> None:
        """Add a request.

        Args:
            most: characters that may appear between two requests.
            named: whether all requests are of one file.
        """
        text = prefix + suffix
        # The first line may begin, and the last one end, where the text that was sent is cut.
        shown = text[text.find("\n") : text.rfind("\n") + 1]
        lines = _lines(shown[self._read(shown) :])
        self.last = shown
        if not suffix.strip():
            lines.append(END)
        known = list(map(hash, lines))
        if new := set(known).difference(self.behind):
            fresh = [line for line, number in zip(lines, known, strict=True) if number in new]
            much = self.behind and sum(map(len, fresh)) > most
            if much and (named or len(fresh) <= OTHER_FILE * len(_lines(shown))):
                written = self._written(known, new)
                if sum(len(lines[at]) for at in written) > most:
                    self.pasted.update(known[at] for at in written)
            self.behind.update(dict.fromkeys(new))
            self.highest |= new
        self._add_pairs(known)

    def _add_pairs(self, lines: Sequence[int]) -> None:
        for (one, other), first in zip(pairwise(lines), map(self.behind.get, lines), strict=False):
            if first != other:
                if self.behind[one] is None:
                    self.behind[one] = other
                elif self.behind[one] != other:
                    self.others.add((one, other))
                self.highest.discard(other)

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

    def _written(self, lines: Sequence[int], new: set[int]) -> list[int]:
        """Return the places of the new lines that did not stand outside of the text that earlier requests sent."""
        written: list[int] = []
        for is_new, run in groupby(range(len(lines)), key=lambda at: lines[at] in new):
            if not is_new:
                continue
            first, *others = run
            last = others[-1] if others else first
            before, behind = lines[max(first - 2, 0) : first], lines[last + 1 : last + 3]
            if (self._stood(before) and self.behind[before[-1]] is not None) or (
                self._stood(behind) and behind[0] not in self.highest
            ):
                written += range(first, last + 1)
        return written

    def _stood(self, lines: Sequence[int]) -> bool:
        """Return whether these are two lines that stood one behind the other."""
        return len(lines) == 2 and (self.behind.get(lines[0]) == lines[1] or tuple(lines) in self.others)


class Histories:
    """The histories of the files of a window's users, which get its requests by time."""

    def __init__(self) -> None:
        self._files: defaultdict[tuple[str, str, str], FileHistory] = defaultdict(FileHistory)

    def pasted(self, file: tuple[str, str, str], prefix: str, suffix: str, most: int) -> set[int]:
        """Add a request of (project, user, file name); return the hashes of the file's lines that are pasted."""
        history = self._files[file]
        history.observe(prefix, suffix, most, named=file[-1] != "")
        return history.pasted


def _lines(text: str) -> list[str]:
    """Return the lines of a text without the blanks around them; blank lines are left out."""
    return [stripped for line in text.split("\n") if (stripped := line.strip())]
