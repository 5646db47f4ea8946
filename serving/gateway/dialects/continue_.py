"""Continue's and RLinf's feedback events. Their completions are OpenAI's."""

from datetime import datetime
from typing import Any

from pydantic import Field

from infra.model import fim
from infra.model.language import language
from serving.gateway.dialects.base import (
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
)
from serving.gateway.openapi import TEXT, Schema, answer_schema

DATA_HINT = "in Continue's config.yaml: `data` with schema 0.2.0 and level all (infra/docs/editors/continue.md)"
TRACKING_HINT = "in RLinf's Continue: completionTrackingUrl (infra/docs/editors/continue.md)"
OWN_STOPS = ("/src/", "#- coding: utf-8")
"""From core/autocomplete/templating/getStopTokens.ts of Continue, in every version since 0.8."""


class Autocomplete(FeedbackBody):
    """The data of Continue's autocomplete event, schemas 0.1.0 and 0.2.0, and RLinf's flat body."""

    dispensable = frozenset({"timestamp", "time", "filepath"})

    completionId: Identifier = Field(min_length=1)
    accepted: bool | None = None
    timestamp: str | float | None = None
    time: Milliseconds | None = None
    prefix: str = ""
    suffix: str = ""
    prompt: str = ""
    completion: ShownText = ""
    cacheHit: bool = False
    filepath: str | None = None
    """Only its ending is stored."""


class ContinueEvent(FeedbackBody):
    """An event of Continue, with its name and its data."""

    name: str = Field(examples=["autocomplete"])
    """Events of other names are ignored."""
    data: dict[str, Any] = Field(default={})


def parse_event(body: Fields, query: Fields) -> FeedbackEvent | None:
    """Read a body of /v1/continue/events; none for other events than autocomplete. Raises BadRequest."""
    event = read_body(ContinueEvent, body, hint=DATA_HINT)
    if event.name != "autocomplete":
        return None
    return _feedback(read_body(Autocomplete, event.data, "data.", hint=DATA_HINT))


def parse_submit(body: Fields, query: Fields) -> FeedbackEvent:
    """Read a body of /api/training/submit. Raises BadRequest."""
    return _feedback(read_body(Autocomplete, body, hint=TRACKING_HINT))


def _feedback(event: Autocomplete) -> FeedbackEvent:
    made_at = _seconds(event.timestamp)
    odd = (*event.odd, "timestamp") if event.timestamp and made_at is None else event.odd
    prefix, suffix = fim.request_context(event.prompt, event.prefix, event.suffix)
    return FeedbackEvent(
        client_id=event.completionId,
        outcome="shown" if event.accepted is None else "accepted" if event.accepted else "rejected",
        made_at=made_at,
        prefix=prefix,
        suffix=suffix,
        shown=event.completion,
        elapsed_ms=event.time,
        cache_hit=event.cacheHit,
        language=language(event.filepath or ""),
        odd=odd,
    )


def _seconds(timestamp: str | float | None) -> float | None:
    """Return Unix seconds from an ISO time or from JavaScript's milliseconds; none if it is neither."""
    try:
        if isinstance(timestamp, str):
            return datetime.fromisoformat(timestamp).timestamp()
        return None if timestamp is None else datetime.fromtimestamp(timestamp / 1e3).timestamp()
    except (ValueError, OverflowError, OSError):
        return None


def _event_schema() -> Schema:
    schema = ContinueEvent.model_json_schema()
    schema["properties"]["data"] = Autocomplete.model_json_schema()
    return schema


def _recognizes(body: Fields, headers: Fields) -> bool:
    """Continue has no User-Agent of its own: two stop strings that it alone sends, for every model, identify it."""
    stops = body.get("stop")
    return isinstance(stops, list) and all(stop in stops for stop in OWN_STOPS)


def _event_response(received: Received) -> dict[str, Any]:
    return {"status": "recorded" if received.id else "ignored"}


def _submit_response(received: Received) -> dict[str, Any]:
    return {"status": "submitted", "message": "Training data submitted successfully", "queue_position": received.segments}


EVENT_ANSWER = answer_schema(("status",), status={"enum": ["recorded", "ignored"]})
SUBMIT_ANSWER = answer_schema(
    ("status", "message", "queue_position"),
    status={"const": "submitted"},
    message=TEXT,
    queue_position={"type": "integer", "minimum": 0},
)
CONTINUE = Dialect(
    name="continue",
    agent="continue",
    recognizes=_recognizes,
    feedback=(FeedbackFormat("/v1/continue/events", _event_schema(), EVENT_ANSWER, parse_event, _event_response),),
)
RLINF = Dialect(
    name="rlinf",
    feedback=(
        FeedbackFormat(
            "/api/training/submit", Autocomplete.model_json_schema(), SUBMIT_ANSWER, parse_submit, _submit_response, once=True
        ),
    ),
)
