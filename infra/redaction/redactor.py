"""Removes the secrets from the texts of an event.

The cursor may be in the middle of a secret, so the line at the cursor is also searched as one piece, with and without the
inserted text.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache

from infra.redaction import private_keys
from infra.redaction.file_kind import NEAR_CHARACTERS, Values, values
from infra.redaction.patterns import Span
from infra.redaction.scanner import Detector, Scanner, encoded, merged
from infra.redaction.texts import Texts

REDACTED = "[redacted]"
MAX_CURSOR_LINE = 2_048
"""Characters of the cursor's line, on each side, that are searched as one piece."""
NEAR_KEY = 4_096
"""Characters on each side of the cursor in which a marker of a private key has all of the text searched as one piece."""
CACHED_TEXTS = 128
MAX_CACHED = 4_000
"""Characters of a text whose secrets are remembered, so that the cache stays below 3 MB."""


class Redactor:
    """Replaces secrets in texts by "[redacted]"."""

    def __init__(self, further: Detector | None = None) -> None:
        self._scanner = Scanner(further)
        self._remembered = lru_cache(CACHED_TEXTS)(self._scanner.spans)
        self._values = lru_cache(CACHED_TEXTS)(values)

    def text(self, text: str, language: str = "") -> str:
        """Return the text with every secret replaced; without a secret, the same text."""
        return self.redact(Texts(text, (), "", language)).prefix

    def spans(self, text: str, language: str = "") -> list[Span]:
        """Return where secrets stand in a text, as offsets of their first character and of the one after their last."""
        searched = _with_lines(Texts(text, (), "", language))
        return self._spans(searched.prefix, self._form(searched))

    def redact(self, texts: Texts) -> Texts:
        """Return the texts within their margins, without the secrets in each of them or across the cursor."""
        searched = _with_lines(texts)
        form = self._form(searched)
        spans = [list(self._spans(text, form)) for text in (searched.prefix, searched.suffix, *searched.middles)]
        filled = [number for number, text in enumerate(texts.middles) if text]
        for between in ([], *([number] for number in filled), *([filled] if texts.consecutive and len(filled) > 1 else [])):
            self._add_across(searched, between, form, spans)
        if not any(spans):
            return texts.within_margins()
        before, after = texts.margins
        prefix, suffix, *middles = spans
        return replace(
            texts,
            prefix=_without(texts.prefix, prefix, before, len(texts.prefix)),
            middles=tuple(_without(text, of_text, 0, len(text)) for text, of_text in zip(texts.middles, middles, strict=True)),
            suffix=_without(texts.suffix, suffix, 0, len(texts.suffix) - after),
            margins=(0, 0),
        )

    def look_ahead(self, texts: Texts) -> None:
        """Search the code around a cursor, so that `redact` finds the result in the cache."""
        searched = _with_lines(texts)
        form = self._form(searched)
        for text in (searched.prefix, searched.suffix):
            self._spans(text, form)

    def _form(self, texts: Texts) -> Values:
        before, after = texts.prefix[-NEAR_CHARACTERS:], texts.suffix[:NEAR_CHARACTERS]
        return self._values(texts.language, encoded(before), encoded(after))

    def _spans(self, text: str, form: Values) -> list[Span]:
        find = self._remembered if len(text) <= MAX_CACHED else self._scanner.spans
        return find(text, form) if text else []

    def _add_across(self, texts: Texts, between: Sequence[int], form: Values, spans: list[list[Span]]) -> None:
        """Add the secrets in the text at the cursor as one piece, with the middles of these numbers."""
        prefix, suffix = texts.prefix, texts.suffix
        middles = [texts.middles[number] for number in between]
        begin, end = prefix.rfind("\n") + 1, suffix.find("\n")
        begin, end = max(begin, len(prefix) - MAX_CURSOR_LINE), min(len(suffix) if end < 0 else end, MAX_CURSOR_LINE)
        if private_keys.marked("".join([prefix[-NEAR_KEY:], *middles, suffix[:NEAR_KEY]])):
            begin, end = 0, len(suffix)  # a key's markers may be in different texts
        inserted = [(2 + number, 0, text) for number, text in zip(between, middles, strict=True)]
        pieces = [(0, begin, prefix[begin:]), *inserted, (1, 0, suffix[:end])]
        joined = "".join(text for _, _, text in pieces)
        for first, last in self._spans(joined, form):
            at = 0
            for place, shift, text in pieces:
                low, high = max(first - at, 0), min(last - at, len(text))
                if low < high:
                    spans[place].append((low + shift, high + shift))
                at += len(text)


def _with_lines(texts: Texts) -> Texts:
    """Return texts of the same lengths in which LF stands for each CR that ends a line: the patterns know LF and CRLF."""
    if not any("\r" in text for text in (texts.prefix, texts.suffix, *texts.middles)):
        return texts
    prefix, suffix, *middles = (
        "\r\n".join(part.replace("\r", "\n") for part in text.split("\r\n"))
        for text in (texts.prefix, texts.suffix, *texts.middles)
    )
    return replace(texts, prefix=prefix, suffix=suffix, middles=tuple(middles))


def _without(text: str, spans: Iterable[Span], start: int, end: int) -> str:
    """Return text[start:end] with each run of overlapping spans replaced by REDACTED."""
    pieces: list[str] = []
    at = start
    for first, last in merged(spans):
        if last > at and first < end:
            pieces += [text[at : max(at, first)], REDACTED]
            at = last
    return "".join([*pieces, text[at:end]]) if at < end else "".join(pieces)
