"""The texts of events, and events with redacted texts. To add a text field, add its name to one of the lists here."""

from collections.abc import Mapping
from typing import Any, TypeVar

from infra.records import Completion, Feedback
from infra.redaction.texts import Texts

Event = TypeVar("Event", Completion, Feedback)
COMPLETION_MIDDLES = ("text", "held_back")
FEEDBACK_MIDDLES = ("shown", "retained", "settled")
"""Fields with a text inserted at the cursor."""
COMPLETION_TEXTS = ("prefix", *COMPLETION_MIDDLES, "suffix")
FEEDBACK_TEXTS = ("prefix", *FEEDBACK_MIDDLES, "suffix")
EMPTY_TOKENS: dict[str, Any] = {"prompt_token_ids": (), "token_ids": (), "logprobs": (), "token_ends": ()}
"""Fields from which the text could be reconstructed, with their empty values."""
NO_TEXT: Mapping[type, dict[str, Any]] = {
    Completion: EMPTY_TOKENS | dict.fromkeys((*COMPLETION_TEXTS, "language", "file"), ""),
    Feedback: dict.fromkeys((*FEEDBACK_TEXTS, "language"), "") | {"settled": None},
}
"""Replacements for the fields of an event whose user opted out."""


def texts_of(row: Completion | Feedback) -> Texts:
    middles = tuple(getattr(row, name) or "" for name in _middles(row))
    return Texts(row.prefix, middles, row.suffix, row.language, consecutive=isinstance(row, Completion))


def with_texts(row: Event, kept: Texts, redacted: Texts) -> Event:
    """Return an event with its redacted texts.

    `kept`: the texts before redaction. A completion with a secret in them also loses its tokens, from which the secret could be
    read.
    """
    update: dict[str, Any] = {"prefix": redacted.prefix, "suffix": redacted.suffix}
    middles = zip(_middles(row), redacted.middles, strict=True)
    update |= {name: text for name, text in middles if getattr(row, name) is not None}  # settled may be unknown
    if isinstance(row, Completion) and redacted != kept:
        update |= EMPTY_TOKENS | {"redacted": True}
    changed = {name: value for name, value in update.items() if getattr(row, name) != value}
    return row.model_copy(update=changed) if changed else row


def without_text(row: Event) -> Event:
    """Return the event of a user who opted out."""
    return row.model_copy(update=NO_TEXT[type(row)])


def _middles(row: Completion | Feedback) -> tuple[str, ...]:
    return COMPLETION_MIDDLES if isinstance(row, Completion) else FEEDBACK_MIDDLES
