"""Cuts and redacts events: short texts at once, long ones in processes of their own."""

from typing import TypeVar

from infra.records import Completion, Feedback
from infra.redaction.events import texts_of, with_texts
from infra.redaction.redactor import Redactor
from infra.redaction.texts import Kept, Texts
from serving.recording.long_texts import LongTexts

LONG_TEXT = 4_000
"""Characters of text above which the other process redacts: a text of this length made up of secrets takes some milliseconds."""
LONG_LINE = 400
"""The same limit for the line at the cursor, which is searched again for each text inserted there."""
Event = TypeVar("Event", Completion, Feedback)


class EventRedactor:
    """Cuts events to the part that is stored, and removes secrets."""

    def __init__(self, redactor: Redactor, long_texts: LongTexts, kept: Kept) -> None:
        self.redactor = redactor
        self.long_texts = long_texts
        self._kept = kept

    def redact(self, row: Event) -> Event | None:
        """Return a short event without secrets; None for a long one, whose redaction here would delay other requests."""
        texts = self._kept.cut(texts_of(row))
        return None if _is_long(texts) else with_texts(row, texts.within_margins(), self.redactor.redact(texts))

    async def redact_long(self, row: Event) -> Event:
        """Return a long event without secrets. Raises RedactionFailed or TooManyTexts."""
        texts = self._kept.cut(texts_of(row))
        return with_texts(row, texts.within_margins(), await self.long_texts.redact(texts, row.credential))

    def short_texts(self, prefix: str, suffix: str, language: str) -> Texts | None:
        """Return the stored code around a cursor; None if it is long."""
        texts = self._kept.cut(Texts(prefix, (), suffix, language))
        return None if _is_long(texts) else texts


def _is_long(texts: Texts) -> bool:
    return texts.characters > LONG_TEXT or texts.cursor_line > LONG_LINE
