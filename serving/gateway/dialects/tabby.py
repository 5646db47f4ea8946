"""Tabby's agent: completions of `segments`, view, select and dismiss events, and the routes that the agent reads first."""

from typing import Any, Literal

from fastapi import FastAPI, Request, Response
from pydantic import Field

from infra.model.language import language
from infra.records import Outcome
from serving.access import Access
from serving.gateway.dialects.base import (
    CompletionFormat,
    Dialect,
    FeedbackBody,
    FeedbackEvent,
    FeedbackFormat,
    Fields,
    Identifier,
    Milliseconds,
    ParsedCompletion,
    ServedModel,
    read_body,
    read_text,
)
from serving.gateway.errors import BadRequest
from serving.gateway.generation import NOT_READY, CompletionRequest, Generation, Unavailable
from serving.gateway.openapi import SECURITY, TEXT, USER, answer_schema, answers, object_schema, optional

SEGMENTS = object_schema(("prefix",), prefix=TEXT, suffix=optional(TEXT), filepath=optional(TEXT), git_url=optional(TEXT))
SCHEMA = object_schema(("segments",), segments=SEGMENTS, language=optional(TEXT), user=USER)

CHOICE = answer_schema(("index", "text"), index={"const": 0}, text=TEXT)
ANSWER = answer_schema(("id", "choices", "mode"), id=TEXT, choices={"type": "array", "items": CHOICE}, mode={"const": "standard"})
SERVER_HEALTH = object_schema(("model", "version"), model=TEXT, version={"type": "object"})
SERVER_SETTING = answer_schema(("disable_client_side_telemetry",), disable_client_side_telemetry={"const": True})


class TabbyEvent(FeedbackBody):
    """Tabby's view, select and dismiss."""

    dispensable = frozenset({"elapsed", "view_id"})
    type: Literal["view", "select", "dismiss"]
    completion_id: Identifier = Field(min_length=1)
    view_id: Identifier = ""
    elapsed: Milliseconds | None = None
    """Since the completion was shown."""


def parse(body: Fields, model: ServedModel) -> ParsedCompletion | Response:
    """Read a body with `segments`. Raises BadRequest."""
    segments = body.get("segments")
    if not isinstance(segments, dict):
        raise BadRequest("segments: expected an object with prefix and suffix", "segments")
    prefix = read_text(segments, "prefix", "segments.prefix")
    suffix = read_text(segments, "suffix", "segments.suffix", optional=True)
    path = read_text(segments, "filepath", "segments.filepath", optional=True)
    repository = _repository(read_text(segments, "git_url", "segments.git_url", optional=True))
    name = read_text(body, "language", optional=True)
    file = f"{repository}\0{path}" if path and repository else path  # the path begins at the root of its repository
    return ParsedCompletion(CompletionRequest(prefix, suffix, language=language(path, name), path=file), _body)


def _repository(url: str) -> str:
    """Return host and path of a repository from the address that it was cloned from, the same for SSH and HTTPS, without user."""
    return url.rpartition("://")[2].rpartition("@")[2].rstrip("/").removesuffix(".git").replace(":", "/")


def _body(generation: Generation) -> dict[str, Any]:
    return {"id": generation.id, "choices": [{"index": 0, "text": generation.text}], "mode": "standard"}


def parse_event(body: Fields, query: Fields) -> FeedbackEvent:
    """Read a body of /v1/events. Raises BadRequest."""
    event = read_body(TabbyEvent, body, status=400, hint="infra/docs/editors/tabby.md has the events")
    outcomes: dict[str, Outcome] = {
        "view": "shown",
        "select": "partially_accepted" if query.get("select_kind") == "line" else "accepted",
        "dismiss": "rejected",
    }
    impression = event.view_id or event.completion_id
    return FeedbackEvent(impression, outcomes[event.type], event.completion_id, seen_ms=event.elapsed, odd=event.odd)


def _add_routes(app: FastAPI, access: Access, model: ServedModel) -> None:
    @app.get("/v1/health", responses=answers(SERVER_HEALTH))
    async def tabby_health(request: Request) -> Any:
        # The agent asks here after a completion was refused, and shows "ready" for a 200.
        if request.headers.get("authorization"):
            await access.check(request.headers, "complete")
        if not model.ready():
            raise Unavailable(NOT_READY)
        version = {"build_date": "", "build_timestamp": "", "git_sha": "", "git_describe": "tabloop"}
        return {
            "model": model.name,
            "device": "remote",  # the engines run elsewhere; this app knows nothing of their machines
            "arch": "",
            "cpu_info": "",
            "cpu_count": 0,
            "cuda_devices": [],
            "version": version,
        }

    @app.get("/v1beta/server_setting", responses=answers(SERVER_SETTING), openapi_extra=SECURITY)
    async def tabby_setting(request: Request) -> Any:
        await access.check(request.headers, "complete")
        return {"disable_client_side_telemetry": True}  # the agent then reports to no other server


TABBY = Dialect(
    name="tabby",
    recognizes=lambda body, headers: body.get("segments") is not None,
    completions=(CompletionFormat("/v1/completions", SCHEMA, ANSWER, parse),),
    feedback=(FeedbackFormat("/v1/events", TabbyEvent.model_json_schema(), answer_schema(()), parse_event, lambda received: {}),),
    add_routes=_add_routes,
)
