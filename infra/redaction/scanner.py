"""Finds secrets in a text, in time that grows with its length alone."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from infra.redaction import contexts, named_values, private_keys, randomness
from infra.redaction.file_kind import Values
from infra.redaction.patterns import Span, shape_finder

ENCODING, ERRORS = "utf-8", "surrogatepass"
"""JSON may hold half a surrogate pair."""


class Detector(Protocol):
    """Finds what settings add to the search."""

    def spans(self, data: bytes) -> Iterator[Span]: ...


class Scanner:
    """All detectors."""

    def __init__(self, further: Detector | None = None) -> None:
        self._shapes = shape_finder()
        self._further = further

    def spans(self, text: str, form: Values) -> list[Span]:
        """Return the spans of secrets in a text, in characters, merged and in ascending order."""
        data = encoded(text)
        found = [*self._shapes.spans(data), *named_values.spans(data, form), *contexts.spans(data)]
        found += [*randomness.spans(data), *private_keys.spans(data)]
        if self._further:
            found += self._further.spans(data)
        spans = merged(found)
        return spans if len(data) == len(text) else _in_characters(data, spans)


def encoded(text: str) -> bytes:
    """Return the text's bytes, which the detectors read."""
    return text.encode(ENCODING, ERRORS)


def merged(spans: Iterable[Span]) -> list[Span]:
    """Return spans in ascending order; those that overlap or touch become one."""
    result: list[Span] = []
    for start, end in sorted(spans):
        if result and start <= result[-1][1]:
            result[-1] = result[-1][0], max(end, result[-1][1])
        elif start < end:
            result.append((start, end))
    return result


def _in_characters(data: bytes, spans: Sequence[Span]) -> list[Span]:
    """Return spans of a text's bytes as spans of its characters, widened to whole ones."""
    result, at, characters = [], 0, 0
    for start, end in spans:
        while start > at and data[start] & 0xC0 == 0x80:
            start -= 1
        while end < len(data) and data[end] & 0xC0 == 0x80:
            end += 1
        first = characters + len(data[at:start].decode(ENCODING, ERRORS))
        characters, at = first + len(data[start:end].decode(ENCODING, ERRORS)), end
        result.append((first, characters))
    return result
