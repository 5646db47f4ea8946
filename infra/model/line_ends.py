"""Line ends of a document: LF, CRLF or CR, as its editor has them.

The model reads and writes lines that end in LF, the normal form: prompts (infra/model/fim.py), labels (tasks/labels) and places
to evaluate are in it. Serving gives a completion the line ends of its document (serving/gateway/detokenizer.py). Records hold
texts as they were sent. No other character ends a line, whatever str.splitlines says.
"""

import re
from typing import Literal

LineEnd = Literal["\n", "\r\n", "\r"]
BREAK = re.compile(r"\r\n?|\n")


def normal(text: str) -> str:
    """Return a text with LF at the end of each line."""
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def normal_context(prefix: str, suffix: str) -> tuple[str, str]:
    """Return the code around a cursor in normal form. A cursor between CR and LF stands at the end of its line."""
    return normal(prefix[:-1] if within_line_end(prefix, suffix) else prefix), normal(suffix)


def within_line_end(prefix: str, suffix: str) -> bool:
    """Return whether a cursor stands between CR and LF."""
    return prefix.endswith("\r") and suffix.startswith("\n")


def line_end_of(prefix: str, suffix: str) -> LineEnd:
    """Return the most frequent line end of a document; LF in one without lines, or if others are no more frequent."""
    if "\r" not in prefix and "\r" not in suffix:
        return "\n"
    both, feeds, returns = (prefix.count(end) + suffix.count(end) for end in ("\r\n", "\n", "\r"))
    both += within_line_end(prefix, suffix)
    counts: dict[LineEnd, int] = {"\n": feeds - both, "\r\n": both, "\r": returns - both}
    return max(counts, key=lambda end: counts[end])


def first_line(text: str) -> str:
    """Return a text up to its first line end."""
    return BREAK.split(text, maxsplit=1)[0]
