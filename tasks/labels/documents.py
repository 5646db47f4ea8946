"""Which of a user's requests show the same document, where the editor names no file. Pure.

A request shows the lines of a document around its cursor. Two requests show one document if nearly all lines of the earlier one
that the later one should show are in it, and if enough of them stand in few other documents: comments and imports, which whole
projects share, count for nothing. Each request is compared with the latest one of each document before it, so that what was
written since then counts: a copy that goes on in another way is another document. A request that fits two of the documents shown
after it counts for neither.

Whether two requests show the same document depends on these, and on those up to the end of the time in which the earlier one's
settled text is looked for, so that the result is the same for any partitions (tasks/labels/partitions.py).

Where the editor names the file, `same_above` distinguishes two of its places that are alike.
"""

import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal, NamedTuple

from infra.model.kept_text import common_start

Verdict = Literal["same", "edited", "other", "unknown"]
"""edited: the same document, if one of its lines was changed in between."""
REACH = 4_096
"""Characters on each side of the cursor that are compared."""
LEAST_LINE = 6
"""Fewest characters of a line that counts, blanks left out."""
LEAST_COMMON = 60
"""Fewest characters of the telling lines that two requests have in common, blanks left out; fewer may be an accident."""
LEAST_OWN = 12
"""Fewest characters of them that no other document has which the user showed in between."""
MOST_GONE = 8
"""The lines in common for each line that is gone; with fewer the document is another one."""
NEAR = 1_000
"""Characters above a cursor by which its place is distinguished from another one of its file that is alike."""
LEAST_ABOVE = 4
"""Fewest lines of them above the text by which the place is found."""
DOCUMENTS = 6
"""Latest documents with which a request is compared."""
SHARED = re.compile(
    r"""#|//|/\*|\*|--|;|%|<!--|["']{3}|(?:import|from|using|use|package|namespace|module|require|include|extern)\b"""
    r"""|(?:const|var|let)\b[^=]*=\s*require\b|@"""
)
"""Begin of a line that many documents share: comments, imports, decorators."""
TELLING = re.compile(rf"^(?![^\S\n]*(?:{SHARED.pattern})).+", re.MULTILINE)
"""A line that few other documents have."""
ANCHOR = 80
"""Characters next to the cursor's line by which the text around it is found again."""


class Seen(NamedTuple):
    """The lines of a request, without blanks, from top to bottom; short ones are left out."""

    lines: tuple[str, ...]
    telling: frozenset[str]
    """Those that few other documents have."""
    cursor: int
    """Place of the cursor's line among them; -1 if it is not there."""
    first: str
    """The line above all of them, of which the begin may be cut; empty if it is short, or the cursor's."""
    below: int
    """Number of lines below the cursor's."""
    ends: bool
    """Nothing stands below the cursor's line: the document ends there."""

    def without_cursor(self) -> tuple[str, ...]:
        """Return the lines without the one that is being written."""
        return self.lines if self.cursor < 0 else self.lines[: self.cursor] + self.lines[self.cursor + 1 :]


class KnownLines(dict[str, tuple[str, bool] | None]):
    """Lines without their blanks, and whether each is telling, by the line as it stands; None for one that is too short.

    A user's requests show the same lines again: each is read once.
    """

    def __missing__(self, raw: str) -> tuple[str, bool] | None:
        line = "".join(raw.split())
        self[raw] = found = (line, SHARED.match(raw.lstrip()) is None) if len(line) >= LEAST_LINE else None
        return found

    def of(self, raws: Iterable[str]) -> list[tuple[str, bool]]:
        """Return the lines that count, in order."""
        return list(filter(None, map(self.__getitem__, raws)))


class Requests(dict[int, Seen]):
    """The lines of requests by their number, each read when it is asked for."""

    def __init__(self, texts: Sequence[str], cursors: Sequence[int]) -> None:
        self.texts, self.cursors, self.known = texts, cursors, KnownLines()

    def __missing__(self, at: int) -> Seen:
        self[at] = found = seen(self.texts[at], self.cursors[at], self.known)
        return found


def seen(document: str, cursor: int, known: KnownLines) -> Seen:
    """Return the lines that a request shows. The last may be cut, and is left out unless the cursor is there."""
    begin = document.rfind("\n", 0, cursor) + 1
    end = document.find("\n", cursor)
    end = len(document) if end < 0 else end
    first, *above = document[max(0, begin - REACH) : begin].split("\n")
    upper, own = known.of(above), known.of((document[begin:end],))
    lower = known.of(document[end + 1 : end + REACH].split("\n")[:-1])
    first = "".join(first.split()) if above else ""
    return Seen(
        tuple(line for line, _ in (*upper, *own, *lower)),
        frozenset(line for line, telling in (*upper, *lower) if telling),
        len(upper) if own else -1,
        first if len(first) >= LEAST_LINE else "",
        len(lower),
        not document[end:].strip(),
    )


def compare(earlier: Seen, later: Seen, elsewhere: Set[str] = frozenset()) -> Verdict:
    """Return whether two requests show the same document; `elsewhere`: lines of documents that are not the later one's."""
    if not earlier.lines or not later.lines:
        return "unknown"
    lines, there, places = earlier.without_cursor(), later.lines, _places(later.lines)
    common = [number for number, line in enumerate(lines) if line in places]
    if not common:
        return "other" if lines else "unknown"
    first, last = common[0], common[-1]
    begin = there.index(lines[first])
    # Lines beyond the first and the last in common are gone only as far as the other request goes on there too.
    below = len(lines) - 1 - last
    after = max(len(there) - 1 - places[lines[last]], earlier.below if later.ends else 0)
    gone = last - first + 1 - len(common) + min(below, after)
    gone += min(first, begin) or not _end_alike(
        lines[first - 1] if first else earlier.first, there[begin - 1] if begin else later.first
    )
    if gone * MOST_GONE > len(common):
        # One line that is gone may have been edited, which is looked for where it decides.
        decides = (gone - 1) * MOST_GONE <= len(common)
        if not (decides and _edited(set(lines) - places.keys(), places.keys() - set(earlier.lines))):
            return "other"
    telling = earlier.telling & later.telling
    if earlier.first == later.first and SHARED.match(earlier.first) is None:
        telling |= {earlier.first}
    own = telling - elsewhere if elsewhere else telling
    enough = sum(map(len, telling)) >= LEAST_COMMON and sum(map(len, own)) >= LEAST_OWN
    return "unknown" if not enough else "edited" if gone else "same"


@lru_cache(maxsize=4)
def _places(lines: tuple[str, ...]) -> Mapping[str, int]:
    """Return the last place of each line. Cached, since a request is compared with several before it."""
    return dict(zip(lines, range(len(lines)), strict=True))


def shows_again(document: str, cursor: int, later: str, later_cursor: int) -> bool:
    """Return whether a later request shows the text around an earlier one's cursor unchanged, as far as both show it.

    Then `compare` finds nothing that is gone, and enough in common. It costs a tenth of it, and most requests of a user go on in
    the document of the last one.
    """
    begin, end = document.rfind("\n", 0, cursor) + 1, document.find("\n", cursor) + 1
    above = document[max(0, begin - REACH) : begin]
    stop = later.find(above[-ANCHOR:]) + len(above[-ANCHOR:])
    if not above or stop < len(above[-ANCHOR:]):
        return False
    common = above[-stop:]
    if not later.startswith(common, stop - len(common)) or not _tells_enough(common):
        return False
    below = document[end : end + REACH].strip("\n") if end else ""
    if not below.strip():
        return True
    at = later.find(below[:ANCHOR], stop)
    if at < 0 or not below.startswith(later[at : at + len(below)]):
        return False
    return len(later) - at >= len(below) or bool(later[max(later.find("\n", later_cursor), later_cursor) :].strip())


def same_above(document: str, cursor: int, later: str, at: int, mark: str, known: KnownLines) -> bool:
    """Return whether the lines above a place are those above an earlier cursor, so that it is no other place that is alike.

    The later request shows LEAST_ABOVE of them or all, and of the nearest ones not too many were changed.

    Args:
        cursor: of the earlier request, or the begin of its line.
        at: where `mark`, the text right above the place, begins in the later request.
        known: lines that were read before.
    """
    begin = at + len(mark)
    if begin < cursor and later.count("\n", 0, at) < LEAST_ABOVE:
        return False
    above = document[max(0, cursor - min(begin, NEAR)) : cursor]
    if later.endswith(above, 0, begin):
        return True
    there = later[max(0, begin - 2 * NEAR) : begin]  # lines may have been inserted
    return compare(seen(above, len(above), known), seen(there, len(there), known)) != "other"


def _tells_enough(text: str) -> bool:
    """Return whether the lines of a text are enough to recognise its document."""
    size, own = 0, set[str]()
    for match in TELLING.finditer(text):
        line = "".join(match.group().split())
        if len(line) >= LEAST_LINE and line not in own:
            own.add(line)
            size += len(line)
            if size >= LEAST_COMMON:
                return True
    return False


def _end_alike(one: str, other: str) -> bool:
    """Return whether two lines, of which the begin may be cut, may be the same one."""
    return one.endswith(other) or other.endswith(one)


def _edited(gone: Set[str], new: Set[str]) -> bool:
    """Return whether one of the lines that are gone was changed: begin and end of a new line make up half of the shorter."""
    return any(_alike(one, other) for one in gone for other in new)


def _alike(one: str, other: str) -> bool:
    if one[0] != other[0] and one[-1] != other[-1]:
        return False
    size = min(len(one), len(other))
    begin = common_start(one, other)
    return 2 * (begin + common_start(one[begin:][::-1], other[begin:][::-1])) >= size


@dataclass(frozen=True)
class Documents:
    """The documents of a user's requests, by time."""

    times: Sequence[float]
    files: Sequence[str]
    """Name of the file; empty where the editor names none."""
    texts: Sequence[str]
    cursors: Sequence[int]
    hidden: Sequence[str]
    """Not empty where a request's text cannot be used."""
    ahead: Sequence[bool]
    """Whether a request shows a text that nobody may have written: none after it is compared with it."""
    seconds: float
    """Time between two requests of one document."""

    @cached_property
    def doubtful(self) -> dict[int, bool]:
        """Whether another document may be that of a request, for the requests that were asked for."""
        return {}

    @cached_property
    def requests(self) -> "Requests":
        """The lines of each request that is compared."""
        return Requests(self.texts, self.cursors)

    @cached_property
    def numbers(self) -> list[int]:
        """A number for each request, the same for those of one document."""
        found: list[int] = []
        latest: dict[int, int] = {}  # the last request of each document, the oldest first
        for at in range(len(self.times)):
            number = at if self.hidden[at] else self._before(at, latest)
            found.append(number)
            if not (self.hidden[at] or self.ahead[at]):
                latest.pop(number, None)
                latest[number] = at
        return found

    def _before(self, at: int, latest: dict[int, int]) -> int:
        """Return the number of the document before a request that it shows too; its own number if there is none."""
        elsewhere: set[str] = set()
        edited = at
        for count, (number, last) in enumerate(reversed(latest.items())):
            if count == DOCUMENTS or self.times[at] - self.times[last] > self.seconds:
                break
            if self.files[at] and self.files[last]:
                if self.files[at] == self.files[last]:
                    return number
                continue
            if not count and self._shows_again(last, at):
                return number
            verdict = compare(self.requests[last], self.requests[at], elsewhere)
            if verdict == "same":
                return number
            if verdict == "edited" and edited == at:
                edited = number
            elif verdict == "other":
                elsewhere |= self.requests[last].telling
        return edited

    def _shows_again(self, earlier: int, later: int) -> bool:
        texts, cursors = self.texts, self.cursors
        return shows_again(texts[earlier], cursors[earlier], texts[later], cursors[later])

    def same(self, earlier: int, later: int) -> bool | None:
        """Return whether two requests, of which at least one names no file, show the same document; None if it is unknown."""
        if self.numbers[earlier] == self.numbers[later]:
            return None if self._fits_another(earlier) else True
        return None if compare(self.requests[earlier], self.requests[later]) == "unknown" else False

    def _fits_another(self, at: int) -> bool:
        """Return whether another document that is shown after a request could be its own, too."""
        if at not in self.doubtful:
            own, others = self.numbers[at], set[int]()
            stop = bisect_right(self.times, self.times[at] + self.seconds, at)
            for later in range(at + 1, stop):
                shown = not (self.hidden[later] or self.ahead[later])
                if shown and (number := self.numbers[later]) != own and number not in others:
                    others.add(number)
                    if compare(self.requests[at], self.requests[later]) == "same":
                        break
            else:
                later = at
            self.doubtful[at] = later > at
        return self.doubtful[at]
