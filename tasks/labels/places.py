"""Find the place of a request again in the document that a later request shows, and read the text that stands there.

A request shows its file around the cursor: prefix and suffix, as sent. The end of the earlier prefix, its anchor, occurs once in
the later document, else the place is not found. The text at the place ends where the earlier suffix goes on: its first lines that
are not blank, enough of them to be no accident. Within a bracket or a quote that the editor closed behind the cursor, it ends
where that closes: the lines behind it may end alike. A line in which the later cursor stands is still being typed and is no part
of the text.
"""

import re
from typing import Literal, NamedTuple

from infra.model.kept_text import common_start

LEAST_ENDING = 10
"""Characters, blanks left out, of the lines by which the end of a place is found, or what stands above it."""
LINES_BEHIND = 6
"""Lines of the earlier suffix that are searched where its first lines are gone."""
MOST_ENDINGS = 8
"""Places that fit the end of which the best is chosen."""
COMPARED = 400
"""Characters behind the end that are compared to choose it."""
STRINGS = r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\''
"""Strings of one line, whose brackets do not count."""
CLOSES = {close: (start, re.compile(rf"{STRINGS}|[{re.escape(start + close)}]")) for start, close in ("()", "[]", "{}")} | {
    quote: ("", re.compile(rf"\\.|{quote}", re.DOTALL)) for quote in "\"'`"
}
"""For a closing bracket or a quote: its opening one, which a quote has none of, and the signs that are read to find it."""
Missing = Literal["not_shown", "ambiguous", "prefix_changed", "suffix_changed"]


class View(NamedTuple):
    """The text at a place, as a later request shows it."""

    text: str
    """Without the line in which the cursor stands."""
    whole: bool
    """The end of the place was found and the cursor is not in it: nothing of the text is missing."""
    standing: str | None
    """The text up to the end of the place, with the line in which the cursor stands; None if the end was not found."""
    size: int
    """Characters from the begin of `stands` to its end or to the cursor in it."""
    stands: str
    """All that stands there up to the suffix, behind the cursor and a closed bracket too; all that is shown behind its begin
    where its end is not known."""


class Ending(NamedTuple):
    """The begin of a suffix, by which the end of a place is found."""

    lead: str
    """Blank rest of the cursor's line, and blank lines."""
    block: str
    """The first lines that are not blank."""
    behind: str
    """The text after these lines."""
    strong: bool
    """The lines are no accident wherever they stand; else they must be the document's last."""

    def find(self, document: str, begin: int) -> int | None:
        """Return where the place ends that begins at `begin`; None if the lines do not stand behind it."""
        line = "\n" if self.lead else ""  # else the cursor stood within a line
        needle = line + self.block
        at = document.find(needle, begin)
        if at < 0:
            return None
        if not self.strong:
            at = len(document) - len(needle)
            if at < begin or not document.endswith(needle):
                return None
        elif document.find(needle, at + 1) >= 0:
            at = self._best(document, needle, at)
        at += len(line)
        if document.startswith(self.lead, at - len(self.lead)) and at - len(self.lead) >= begin:
            return at - len(self.lead)
        text = document[begin:at]
        blanks = next((n for n in range(len(self.lead), 0, -1) if text.endswith(self.lead[-n:])), 0)
        return at - blanks

    def closed(self, document: str, begin: int, end: int | None) -> int | None:
        """Return where the bracket or the quote closes that the editor closed, if its line ends as the first of the suffix does.

        Without one, or where the place ends in its first line, this is `end`, as `find` returns it. None where the line of a
        bracket ends in another way.
        """
        close = self.block[0]
        if self.lead or close not in CLOSES or (end is not None and document.find("\n", begin, end) < 0):
            return end
        start, signs = CLOSES[close]
        depth, line = 1, self.block.partition("\n")[0]
        for sign in signs.finditer(document, begin, len(document) if end is None else end):
            depth += (sign[0] == start) - (sign[0] == close)
            if not depth:
                stop = document.find("\n", sign.start())
                at = (len(document) if stop < 0 else stop) - len(line)
                if at >= sign.start() and document.startswith(line, at):
                    return at
                return None if start else end
        return end

    def _best(self, document: str, needle: str, at: int) -> int:
        """Of the places of the lines, the first after which the document goes on most like the suffix did."""
        best, longest, expected = at, -1, self.behind[:COMPARED]
        for _ in range(MOST_ENDINGS):
            stop = at + len(needle)
            if (length := common_start(document[stop : stop + COMPARED], expected)) > longest:
                best, longest = at, length
            if (at := document.find(needle, at + 1)) < 0:
                break
        return best

    def gone_in(self, document: str, begin: int) -> bool:
        """Whether later lines of the suffix stand behind `begin` although its first ones do not: somebody changed them."""
        lines = [line for line in self.behind.split("\n")[:LINES_BEHIND] if len(line.strip()) >= LEAST_ENDING]
        return any(document.find(line, begin) >= 0 for line in lines)


def ending_of(suffix: str) -> Ending | None:
    """Return how the end of a place is found; None where the suffix is blank."""
    begin = len(suffix) - len(suffix.lstrip())
    if begin == len(suffix):
        return None
    begin = suffix.rfind("\n", 0, begin) + 1
    end, size = begin, 0
    while end < len(suffix) and size < LEAST_ENDING:
        line = suffix.find("\n", end) + 1 or len(suffix)
        size += len("".join(suffix[end:line].split()))
        end = line
    return Ending(suffix[:begin], suffix[begin:end], suffix[end:], size >= LEAST_ENDING)


class Place(NamedTuple):
    """The place of a request's cursor."""

    before: str
    """Lines that end where the cursor's line begins; empty where too little stands there."""
    anchor: str
    ending: Ending | None

    def view(self, document: str, cursor: int) -> View | Missing:
        """Return the text at the place in a later document with its cursor, or why it is not known."""
        at = document.find(self.anchor)
        if at < 0:
            return "prefix_changed" if self._changed_before(document, cursor) else "not_shown"
        if document.find(self.anchor, at + 1) >= 0:
            return "ambiguous"
        begin = at + len(self.anchor)
        far = self.ending.find(document, begin) if self.ending else None
        end = self.ending.closed(document, begin, far) if self.ending else None
        standing = document[begin:end] if end is not None else None
        stands = document[begin : end if far is None else far]
        if begin > cursor and "\n" in document[cursor:begin]:
            # The place lies behind the cursor: without its end, the later suffix may be cut within it.
            return "not_shown" if standing is None else View(standing, True, standing, len(stands), stands)
        if standing is not None and end is not None and end < cursor:
            return View(standing, True, standing, min(len(stands), cursor - begin), stands)
        if end is None and self.ending and (not self.ending.lead or self.ending.gone_in(document, begin)):
            return "suffix_changed"
        text = document[begin : document.rfind("\n", begin, max(begin, cursor)) + 1] if cursor > begin else ""
        return View(text, False, standing, max(0, cursor - begin), stands)

    def instead(self, document: str) -> str | None:
        """Return what a document has between the lines above the place and its end, where the cursor's line was changed before
        the place, or is gone; None where its end is not known. Where that line stands unchanged farther down, since others were
        inserted above it, it is what stands behind its begin."""
        begin = document.find(self.before) + len(self.before)
        # The end may follow on the line end of the lines above.
        end = self.ending.find(document, begin - 1) if self.ending else None
        if end is None:
            return None
        _, above, line = self.anchor.rpartition("\n")
        at = document.find(above + line, begin, end) if above and line.strip() else -1
        return document[begin if at < 0 else at + len(above + line) : end]

    def _changed_before(self, document: str, cursor: int) -> bool:
        """Whether the lines above the place stand once before the later cursor although the anchor is gone."""
        at = document.find(self.before) if self.before else -1
        return 0 <= at < cursor - len(self.before) and document.find(self.before, at + 1) < 0


def place_of(document: str, cursor: int, characters: int) -> Place:
    """Return the place of a cursor, with an anchor of at most so many characters."""
    line = document.rfind("\n", 0, cursor) + 1
    before = document[max(0, line - characters) : line]
    strong = len("".join(before.split())) >= LEAST_ENDING
    return Place(before if strong else "", document[max(0, cursor - characters) : cursor], ending_of(document[cursor:]))


def agreed(text: str, whole: bool, earlier: View) -> tuple[str, bool]:
    """Return the lines of a text that stood there in an earlier view already, and whether they are still all of it."""
    if text in (earlier.text, earlier.standing):
        return text, whole
    lines, before = text.split("\n"), earlier.text.split("\n")
    lines, before = (lines if whole else lines[:-1]), (before if earlier.whole else before[:-1])
    same = common_start(lines, before)
    if same == len(lines):
        return text, whole
    return "".join(f"{line}\n" for line in lines[:same]), False
