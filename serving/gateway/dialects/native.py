"""tabloop's own feedback route, for editors that keep the server's completion id."""

from typing import Any

from pydantic import Field, model_validator

from infra.language import language
from infra.records import Outcome
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
    outcome: Outcome
    accepted_characters: int | None = Field(None, ge=0, le=MAX_CHARACTERS)
    retained: ShownText | None = None
    shown: ShownText = ""
    elapsed_ms: Milliseconds | None = None
    language: Identifier = ""

    @model_validator(mode="after")
    def _fields_of_the_outcome(self) -> "NativeEvent":
        if self.outcome == "partially_accepted" and self.accepted_characters is None:
            raise ValueError("accepted_characters: required with outcome partially_accepted")
        if self.outcome == "retained" and self.retained is None:
            raise ValueError("retained: required with outcome retained: the text now in the completion's place, may be empty")
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
        elapsed_ms=event.elapsed_ms,
        language=language(name=event.language),
    )


def _response(record_id: str, segments: int) -> dict[str, Any]:
    return {"status": "recorded", "id": record_id}


NATIVE = Dialect(feedback=(FeedbackFormat("/v1/feedback", NativeEvent.model_json_schema(), parse_event, _response),))
