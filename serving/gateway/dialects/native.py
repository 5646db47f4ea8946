"""tabloop's own feedback route, for editors that keep the server's completion id."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from infra.model.language import language
from infra.records import NotTaken, Outcome
from serving.gateway.dialects.base import (
    MAX_CHARACTERS,
    Dialect,
    FeedbackBody,
    FeedbackEvent,
    FeedbackFormat,
    Fields,
    Identifier,
    Milliseconds,
    Received,
    ShownText,
    read_body,
    short,
)
from serving.gateway.errors import BadRequest
from serving.gateway.openapi import TEXT, answer_schema

REQUIRED: Mapping[Outcome, Mapping[str, str]] = {
    "partially_accepted": {"accepted_characters": f"the number of characters accepted (code points), from 0 to {MAX_CHARACTERS}"},
    "retained": {"retained": "the text now in the completion's place, may be empty"},
}
"""Fields that an outcome needs, with their meaning."""
DECIDED: tuple[NotTaken, ...] = ("typed_away", "rejected")
"""Reasons of developers who saw the completion and did not want it; an event with such a reason and no outcome is a rejection."""
HINT = "infra/docs/editors/feedback.md has the fields"
TAKEN: tuple[Outcome, ...] = ("accepted", "retained")
REPORT = ("settled", "settled_kept", "settled_total", "reason")
"""Fields without which an event with an outcome still counts."""

Characters = Annotated[
    int, BeforeValidator(lambda n: int(n) if isinstance(n, float) and n.is_integer() else n), Field(ge=0, le=MAX_CHARACTERS)
]
"""In JSON 16.0 is a whole number, and clients in Lua, Vim script and Kotlin send it."""


class NativeEvent(FeedbackBody):
    """`POST /v1/feedback`, for editors that know the server's completion id."""

    dispensable = frozenset({"accepted_characters", "elapsed_ms", "seen_ms", "language", *REPORT})
    completion_id: Identifier = Field(min_length=1)
    outcome: Outcome | None = None
    """What the developer did; left out of an event that only reports the settled text or why nothing was taken."""
    accepted_characters: Characters | None = None
    """In Unicode code points, like the records; of more than the completion has, all of it counts."""
    retained: ShownText | None = None
    settled: ShownText | None = None
    settled_kept: Characters | None = None
    settled_total: Characters | None = None
    reason: NotTaken = ""
    shown: ShownText = ""
    elapsed_ms: Milliseconds | None = None
    seen_ms: Milliseconds | None = None
    language: Identifier = ""


class NativeReport(NativeEvent):
    """An event without an outcome: it has its report alone."""

    dispensable = NativeEvent.dispensable - frozenset(REPORT)


def parse_event(body: Fields, query: Fields) -> FeedbackEvent:
    """Read a body of /v1/feedback. Raises BadRequest."""
    event = read_body(NativeReport if body.get("outcome") is None else NativeEvent, body, hint=HINT)
    if {"settled_kept", "settled_total"} & set(event.odd):
        event = event.model_copy(update={"settled_kept": None, "settled_total": None})
    _check_settled(event)
    outcome = event.outcome or ("rejected" if event.reason in DECIDED else "shown")
    for name, why in REQUIRED.get(outcome, {}).items():
        if getattr(event, name) is None:
            got = f", got {short(body[name])}" if name in event.odd else ""
            raise BadRequest(f"{name}: required with outcome {outcome}: {why}{got}; {HINT}", name, 422)
    changed = {"outcome": outcome, "retained": event.retained or "", "language": language(name=event.language), "odd": event.odd}
    return FeedbackEvent(event.completion_id, **{**vars(event), **changed})


def _check_settled(event: NativeEvent) -> None:
    """Raise BadRequest for fields that do not go together."""
    numbers = (event.settled_kept, event.settled_total)
    if (numbers[0] is None) != (numbers[1] is None):
        raise BadRequest("settled_kept: expected settled_total with it, both in characters", "settled_kept", 422)
    if event.settled is not None and numbers[0] is not None:
        raise BadRequest("settled: expected the text, or settled_kept and settled_total without it, not both", "settled", 422)
    informative = event.settled is not None or numbers[0] is not None or event.reason
    if event.outcome is None and not informative:
        raise BadRequest("outcome: required without settled, settled_kept or reason", "outcome", 422)
    if event.reason and event.outcome in TAKEN:
        raise BadRequest(
            f"reason: {event.reason} says why a completion was not taken, but outcome is {event.outcome}: leave one out",
            "reason",
            422,
        )


def _response(received: Received) -> dict[str, Any]:
    return {"status": "recorded", "id": received.id, "matched": received.matched}


MATCHED = {
    "type": "boolean",
    "description": "whether the event is about one of the latest completions of this user that the replica served; if not, check "
    "the id, the token, X-User-ID and X-Project-ID",
}
ANSWER = answer_schema(("status", "id", "matched"), status={"const": "recorded"}, id=TEXT, matched=MATCHED)
NATIVE = Dialect(feedback=(FeedbackFormat("/v1/feedback", NativeEvent.model_json_schema(), ANSWER, parse_event, _response),))
