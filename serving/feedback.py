"""What developers did with completions, durable before it is acknowledged: on the feedback port, and beside completions."""

import logging
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Literal, TypeVar

from fastapi import Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from infra import fim
from infra.language import language
from infra.records import Feedback, Outcome
from infra.redaction import FEEDBACK_TEXTS
from serving.access import Access, Caller, client_name
from serving.answers import RETRY_SECONDS
from serving.bodies import error_body
from serving.completions import add_errors, add_posts
from serving.dialects import BadRequest, read_json
from serving.document import Documented, Schema
from serving.metrics import Metrics
from serving.recording import Recorder
from serving.spool import SpoolFull

log = logging.getLogger(__name__)
MOST_REMEMBERED = 20_000
MOST_CHARACTERS = 10_000
"""Of what one completion became; a served one has some tens of tokens."""
MOST_MS = 1e12
"""Thirty years."""
Identifier = Annotated[str, Field(max_length=200)]
Shown = Annotated[str, Field(max_length=MOST_CHARACTERS)]
Milliseconds = Annotated[float, Field(ge=0, le=MOST_MS, allow_inf_nan=False)]
B = TypeVar("B", bound=BaseModel)


class Body(BaseModel):
    """Of a client's body only what is used; editors add fields as they like."""

    model_config = ConfigDict(extra="ignore", strict=False)


class Autocomplete(Body):
    """The data of Continue's autocomplete event, schemas 0.1.0 and 0.2.0, and RLinf's flat body."""

    completionId: Identifier = Field(min_length=1)
    accepted: bool | None = None
    timestamp: str | float | None = None
    time: Milliseconds | None = None
    prefix: str = ""
    suffix: str = ""
    prompt: str = ""
    completion: Shown = ""
    cacheHit: bool = False
    filepath: str | None = None
    """Its ending is kept."""


class ContinueEvent(Body):
    """The frame around it."""

    name: str = Field(examples=["autocomplete"])
    """Others are taken and not kept."""
    data: dict[str, Any] = {}


class Own(Body):
    """`POST /v1/feedback`, for editors that know the server's completion id."""

    completion_id: Identifier = Field(min_length=1)
    outcome: Outcome
    accepted_characters: int | None = Field(None, ge=0, le=MOST_CHARACTERS)
    retained: Shown | None = None
    shown: Shown = ""
    elapsed_ms: Milliseconds | None = None
    language: Identifier = ""

    @model_validator(mode="after")
    def _partial_counts(self) -> "Own":
        if self.outcome == "partially_accepted" and self.accepted_characters is None:
            raise ValueError("accepted_characters: needed with outcome partially_accepted")
        if self.outcome == "retained" and self.retained is None:
            raise ValueError("retained: needed with outcome retained: what stands in the completion's place now, maybe nothing")
        return self


class TabbyEvent(Body):
    """Tabby's view, select and dismiss."""

    type: Literal["view", "select", "dismiss"]
    completion_id: Identifier = Field(min_length=1)
    view_id: Identifier = ""
    elapsed: Milliseconds | None = None


@dataclass(frozen=True)
class Judging:
    """What the feedback app stands on."""

    access: Access
    recorder: Recorder
    metrics: Metrics
    clock: Callable[[], float] = time.time


class NotKept(RuntimeError):
    """The spool refuses an event."""


class Remembered:
    """The last things that were seen; bounded."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._seen: OrderedDict[tuple[str, ...], None] = OrderedDict()

    def __contains__(self, key: tuple[str, ...]) -> bool:
        return key in self._seen

    def add(self, key: tuple[str, ...]) -> None:
        self._seen[key] = None
        if len(self._seen) > self._most:
            self._seen.popitem(last=False)


def create_app(judging: Judging) -> Documented:
    """The app on the feedback port."""
    app = Documented("tabloop feedback")
    add_errors(app, judging.metrics)
    add_feedback(app, judging)

    @app.get("/health")
    async def health() -> Any:
        return {"status": "ok"}

    return app


def add_feedback(app: Documented, judging: Judging) -> None:
    """Continue's events, RLinf's submit, Tabby's events, our own; Tabby's agent knows one address for all it sends."""
    submitted = Remembered(MOST_REMEMBERED)

    @app.exception_handler(NotKept)
    async def refused(request: Request, error: NotKept) -> Response:
        log.error("feedback refused: %s", error)
        judging.metrics.refused.labels(503).inc()
        headers = {"Retry-After": str(RETRY_SECONDS)}
        return JSONResponse(error_body("feedback cannot be kept now; try again", "server_error"), 503, headers=headers)

    async def keep(row: Feedback) -> None:
        try:
            await judging.recorder.feedback(row)
        except (SpoolFull, OSError) as error:
            raise NotKept(str(error)) from error

    async def asked(request: Request, guess: str) -> tuple[Caller, dict[str, Any]]:
        known = judging.access.check(request.headers, "feedback")
        client = client_name({}, guess) if guess else client_name(request.headers)
        return judging.access.caller(request.headers, known, None, client), await read_json(request)

    async def continue_events(request: Request) -> Response:
        caller, body = await asked(request, "continue")
        event = _read(ContinueEvent, body)
        if event.name != "autocomplete":
            return JSONResponse({"status": "ignored"})
        await keep(_autocomplete(_read(Autocomplete, event.data, "data."), caller, judging.clock()))
        return JSONResponse({"status": "recorded"})

    async def rlinf_submit(request: Request) -> Response:
        caller, body = await asked(request, "rlinf")
        event = _read(Autocomplete, body)
        key = (caller.project, caller.user, event.completionId, str(event.accepted))
        if key not in submitted:
            await keep(_autocomplete(event, caller, judging.clock()))
            submitted.add(key)
        waiting = judging.recorder.spool.segments
        said = {"status": "submitted", "message": "Training data submitted successfully", "queue_position": waiting}
        return JSONResponse(said)

    async def own(request: Request) -> Response:
        caller, body = await asked(request, "")
        event = _read(Own, body)
        told: dict[str, Any] = {
            "shown": event.shown,
            "accepted_characters": event.accepted_characters,
            "retained": event.retained or "",
            "elapsed_ms": event.elapsed_ms,
            "language": language(name=event.language),
        }
        row = _row(caller, judging.clock(), event.completion_id, event.outcome, event.completion_id, **told)
        await keep(row)
        return JSONResponse({"status": "recorded", "id": row.id})

    async def tabby_events(request: Request) -> Response:
        caller, body = await asked(request, "tabby")
        event = _read(TabbyEvent, body, status=400)
        line = request.query_params.get("select_kind") == "line"
        outcomes: dict[str, Outcome] = {
            "view": "shown",
            "select": "partially_accepted" if line else "accepted",
            "dismiss": "rejected",
        }
        shown = event.view_id or event.completion_id
        row = _row(caller, judging.clock(), shown, outcomes[event.type], event.completion_id, elapsed_ms=event.elapsed)
        await keep(row)
        return JSONResponse({})

    routes = {
        "/v1/continue/events": continue_events,
        "/api/training/submit": rlinf_submit,
        "/v1/feedback": own,
        "/v1/events": tabby_events,
    }
    add_posts(app, routes)
    app.bodies |= _bodies()


def _bodies() -> dict[str, Schema]:
    event, flat = ContinueEvent.model_json_schema(), Autocomplete.model_json_schema()
    event["properties"]["data"] = flat
    return {
        "/v1/continue/events": event,
        "/api/training/submit": flat,
        "/v1/feedback": Own.model_json_schema(),
        "/v1/events": TabbyEvent.model_json_schema(),
    }


def _autocomplete(event: Autocomplete, caller: Caller, now: float) -> Feedback:
    outcome: Outcome = "shown" if event.accepted is None else "accepted" if event.accepted else "rejected"
    prefix, suffix = fim.asked(event.prompt, event.prefix, event.suffix)
    told: dict[str, Any] = {
        "made_at": _seconds(event.timestamp),
        "prefix": prefix,
        "suffix": suffix,
        "shown": event.completion,
        "elapsed_ms": event.time,
        "cache_hit": event.cacheHit,
        "language": language(event.filepath or ""),
    }
    return _row(caller, now, event.completionId, outcome, **told)


def _row(caller: Caller, now: float, client_id: str, outcome: Outcome, completion_id: str = "", **told: Any) -> Feedback:
    """The event, with what else the client told; without its text where the caller leaves no trace."""
    texts = dict.fromkeys((*FEEDBACK_TEXTS, "language"), "")
    return Feedback(
        id=f"fb-{uuid.uuid4()}",
        time=now,
        project=caller.project,
        user=caller.user,
        client=caller.client,
        client_id=client_id,
        completion_id=completion_id,
        outcome=outcome,
        **({"made_at": None} | texts | told | (texts if caller.opted_out else {})),
    )


def _seconds(timestamp: str | float | None) -> float | None:
    """An ISO time, or milliseconds since 1970 as JavaScript counts; none where it is neither."""
    try:
        if isinstance(timestamp, str):
            return datetime.fromisoformat(timestamp).timestamp()
        return None if timestamp is None else datetime.fromtimestamp(timestamp / 1e3).timestamp()
    except (ValueError, OverflowError, OSError):
        return None


def _read(model: type[B], body: dict[str, Any], where: str = "", status: int = 422) -> B:
    try:
        return model.model_validate(body)
    except ValidationError as error:
        first = error.errors()[0]
        name, value = where + ".".join(map(str, first["loc"])), first["input"]
        got = f", got {str(value)[:40]!r}" if isinstance(value, str | int | float) else ""
        raise BadRequest(f"{name}: {first['msg']}{got}", name or None, status) from None
