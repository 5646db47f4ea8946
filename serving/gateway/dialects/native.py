"""tabloop's own feedback route, for editors that keep the server's completion id."""

from typing import Any

from pydantic import Field, model_validator

from infra.language import language
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
    ShownText,
    read_body,
)


class NativeEvent(FeedbackBody):
    """`POST /v1/feedback`, for editors that know the server's completion id."""

    completion_id: Identifier = Field(min_length=1)
    outcome: Outcome = "shown"
    """What the developer did; left out of an event that only reports the settled text or why nothing was taken."""
    accepted_characters: int | None = Field(None, ge=0, le=MAX_CHARACTERS)
    retained: ShownText | None = None
    settled: ShownText | None = None
    settled_kept: int | None = Field(None, ge=0, le=MAX_CHARACTERS)
    settled_total: int | None = Field(None, ge=0, le=MAX_CHARACTERS)
    reason: NotTaken = ""
    shown: ShownText = ""
    elapsed_ms: Milliseconds | None = None
    language: Identifier = ""

    @model_validator(mode="after")
    def _fields_of_the_outcome(self) -> "NativeEvent":
        if self.outcome == "partially_accepted" and self.accepted_characters is None:
            raise ValueError("accepted_characters: required with outcome partially_accepted")
        if self.outcome == "retained" and self.retained is None:
            raise ValueError("retained: required with outcome retained: the text now in the completion's place, may be empty")
        if (self.settled_kept is None) != (self.settled_total is None):
            raise ValueError("settled_kept, settled_total: expected both or neither, in characters")
        if self.settled is not None and self.settled_kept is not None:
            raise ValueError("settled: expected the text, or settled_kept and settled_total without it, not both")
        if "outcome" not in self.model_fields_set and self.settled is None and self.settled_kept is None and not self.reason:
            raise ValueError("outcome: required without settled, settled_kept or reason")
        return self


def parse_event(body: Fields, query: Fields) -> FeedbackEvent:
    """Read a body of /v1/feedback. Raises BadRequest."""
    event = read_body(NativeEvent, body)
    return FeedbackEvent(
        event.completion_id,
        event.outcome,
        event.completion_id,
        shown=event.shown,
        accepted_characters=event.accepted_characters,
        retained=event.retained or "",
        settled=event.settled,
        settled_kept=event.settled_kept,
        settled_total=event.settled_total,
        reason=event.reason,
        elapsed_ms=event.elapsed_ms,
        language=language(name=event.language),
    )


def _response(record_id: str, segments: int) -> dict[str, Any]:
    return {"status": "recorded", "id": record_id}


NATIVE = Dialect(feedback=(FeedbackFormat("/v1/feedback", NativeEvent.model_json_schema(), parse_event, _response),))
