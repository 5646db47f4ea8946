"""Published patterns of secrets: tokens with a fixed part, found independent of the variable's name.

The list follows the detectors of detect-secrets and the published formats that gitleaks and trufflehog look for; the patterns are
written anew for RE2, whose time is linear in the length of the text (Cox 2010, "Regular Expression Matching in the Wild").

A search for all fixed parts ("anchors") passes over the text once. A pattern is tried only at its anchor, over at most REACH
bytes, so the cost stays linear for texts that consist of anchors.
"""

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import re2

REACH = 1_024
"""Bytes after the start of an anchor that a shape may need."""
Span = tuple[int, int]
"""Start and end of a secret in a text."""


def compile_bytes(pattern: str, *, ignore_case: bool = False) -> "re2._Regexp":
    """Return a pattern over bytes; RE2 refuses look-around and back-references, which could backtrack."""
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.case_sensitive = not ignore_case
    options.max_mem = 64 << 20
    return re2.compile(pattern.encode(), options)


@dataclass(frozen=True)
class Shape:
    """A kind of secret with a fixed part."""

    kind: str
    anchors: str
    """Fixed parts, separated by blanks, one of which every secret of the kind has, in this case."""
    pattern: str
    """RE2; the secret is its first group, else the whole match."""
    back: int = 0
    """Bytes before the anchor at which the pattern may begin; 0: it begins with the anchor, and not within a word."""


SHAPES = tuple(Shape(**fields) for fields in tomllib.loads(Path(__file__).with_name("shapes.toml").read_text())["shapes"])
"""Shapes by service. Where two have one anchor, both are tried."""
TOKEN_END = compile_bytes(r"[\w+/=~%\-]*(?:\.[\w+/=~%\-]+)*")
"""The rest of a token whose first characters fit a shape."""


WORD = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789")


class ShapeFinder:
    """Finds secrets of all shapes."""

    def __init__(self) -> None:
        shapes = [(anchor, shape.back, compile_bytes(shape.pattern)) for shape in SHAPES for anchor in shape.anchors.split()]
        # The longest first, since an alternation takes the first that fits; an anchor also covers its own prefixes.
        anchors = sorted({anchor for anchor, _, _ in shapes}, key=len, reverse=True)
        self._by_anchor = {
            long.encode(): tuple((back, pattern) for short, back, pattern in shapes if long.startswith(short)) for long in anchors
        }
        self._anchors = compile_bytes("|".join(map(re2.escape, anchors)))

    def spans(self, data: bytes) -> Iterator[Span]:
        """Yield the spans of secrets, in bytes, in ascending order."""
        covered = 0
        for hit in self._anchors.finditer(data):
            at = hit.start()
            if at >= covered and (span := self._secret(data, at, hit.group(), covered)):
                covered = span[1]
                yield span

    def _secret(self, data: bytes, at: int, anchor: bytes, covered: int) -> Span | None:
        within = at > 0 and data[at - 1] in WORD
        for back, pattern in self._by_anchor[anchor]:
            if back:
                match = pattern.search(data, max(covered, at - back), at + REACH)
                match = match if match and match.start() <= at else None
            else:
                match = None if within else pattern.match(data, at, at + REACH)
            if match:
                start, end = match.span(1 if match.re.groups else 0)
                return start, TOKEN_END.match(data, end).end()
        return None


@cache
def shape_finder() -> ShapeFinder:
    """Return the finder of all shapes, made once in a process: that takes 20 ms."""
    return ShapeFinder()
