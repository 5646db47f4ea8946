"""The completion routes of every dialect."""

import time
import uuid
import zlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast, get_args

from fastapi import Request, Response
from starlette.types import Receive, Scope, Send

from infra.records import ShowLevel
from infra.settings.schema import Showing
from infra.telemetry.spans import REQUEST
from serving.access import Access, Caller, Credential
from serving.gateway.browsers import require_json
from serving.gateway.dialects import DIALECTS, client_name
from serving.gateway.dialects.base import CompletionFormat, Dialect, ServedModel
from serving.gateway.errors import BadRequest
from serving.gateway.generation import Generation
from serving.gateway.openapi import DocumentedApp, Post, answers, any_of, header
from serving.gateway.requests import read_json
from serving.gateway.responses import StreamedResponse, WholeResponse
from serving.gateway.shadow import Shadow
from serving.gateway.showing import ShowTerms
from serving.recording.choices import Choices
from serving.recording.recorder import Recorder
from serving.slots.arms import Arms, Route
from serving.slots.loops import LoopArms
from serving.slots.policy import Policy

LEVELS = get_args(ShowLevel)
MAX_TEMPERATURE = 2.0
LEVEL_HEADER = header("X-Tabloop-Level", "the level at which the completion is shown", enum=LEVELS)


@dataclass(frozen=True)
class Gateway:
    """What the completion routes need."""

    model: str
    """The model's name, as clients see it."""
    access: Access
    arms: Arms
    policy: Policy
    recorder: Recorder
    showing: Showing
    choices: Choices
    clock: Callable[[], float] = time.time
    """Unix seconds."""
    own_arms: Mapping[str, Arms] = field(default_factory=dict)
    """The arms of projects with a champion of their own."""

    @property
    def loops(self) -> LoopArms:
        return LoopArms(self.arms, self.own_arms)


def add_completions(app: DocumentedApp, gateway: Gateway) -> None:
    """Add the completion routes of all dialects, and their other routes."""
    model = ServedModel(gateway.model, gateway.policy.max_context, lambda: gateway.arms.ready)
    shadow = Shadow(gateway.loops, gateway.policy, gateway.recorder)
    formats: dict[str, list[tuple[Dialect, CompletionFormat]]] = {}
    for dialect in DIALECTS:
        dialect.add_routes(app, gateway.access, model)
        for completions in dialect.completions:
            formats.setdefault(completions.path, []).append((dialect, completions))
    for path, choices in formats.items():
        # Starlette's route: FastAPI's would look for dependencies in each request, and there are none.
        app.add_route(path, cast(Any, Endpoint(_endpoint(gateway, shadow, model, choices))), methods=["POST"])
        answer = any_of([completions.answer for _, completions in choices])
        body = any_of([completions.schema for _, completions in choices])
        app.posts[path] = Post(body, answers(answer, events=True), (LEVEL_HEADER,))


class Endpoint:
    """An endpoint as an ASGI app: a function gets error handlers of its own, which each chunk passes, beside those of the app."""

    def __init__(self, answer: Callable[[Request], Awaitable[Response]]) -> None:
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = await self._answer(Request(scope, receive))
        await response(scope, receive, send)


def _endpoint(
    gateway: Gateway, shadow: Shadow, model: ServedModel, choices: Sequence[tuple[Dialect, CompletionFormat]]
) -> Callable[[Request], Awaitable[Response]]:
    """Return the endpoint of a path. The first dialect that recognizes the body reads it, else the first in the list."""

    async def complete(request: Request) -> Response:
        credential = await gateway.access.check(request.headers, "complete")  # before reading the body of an unknown sender
        require_json(request)
        body = await read_json(request)
        completions = next((form for dialect, form in choices if dialect.recognizes(body, request.headers)), choices[0][1])
        parsed = completions.parse(body, model)
        if isinstance(parsed, Response):
            return parsed
        caller = gateway.access.caller(request.headers, credential, body.get("user"), client_name(request.headers, body))
        arrived = gateway.clock()  # the arm and the event use the same time, since a block of a crossover may end meanwhile
        routes = _routes(request, gateway, caller, credential, arrived)
        completion_id = f"cmpl-{uuid.uuid4()}"
        REQUEST.set(completion_id)
        showing = _show_terms(request, gateway, caller, completion_id)
        asked = parsed.request
        gateway.recorder.served.add(caller, completion_id, asked.prefix, asked.suffix, arrived)
        if caller.opted_out:  # before the response, since feedback may arrive before its end
            who = (caller.project, caller.user)
            gateway.recorder.opt_outs.add(who, completion_id, asked.prefix, asked.suffix)
        generation = Generation(completion_id, parsed.request, caller, routes, gateway.policy, showing, arrived)
        generation.temperature = _temperature(request)
        generation.file = gateway.access.file_hash(caller.project, parsed.request.path)
        if parsed.events:
            return StreamedResponse(generation, gateway.recorder, shadow.offer, parsed.events(generation))
        return WholeResponse(generation, gateway.recorder, shadow.offer, parsed.render)

    return complete


def _show_terms(request: Request, gateway: Gateway, caller: Caller, completion_id: str) -> ShowTerms:
    """Return the terms of showing to the caller. A share of the requests, by a hash of their ids, is for audits."""
    named = request.headers.get("x-tabloop-level", "")
    if named and named not in LEVELS:
        raise BadRequest(f"X-Tabloop-Level: expected {', '.join(LEVELS)}, got {named[:40]!r}", "X-Tabloop-Level")
    settings = gateway.showing
    level = cast(ShowLevel, named) or caller.level or settings.level
    audit = zlib.crc32(f"audit {completion_id}".encode()) < settings.audit_share * 2**32
    return ShowTerms(level, settings.price(level), *gateway.recorder.acceptance.shares(caller.project, caller.user), audit)


def _temperature(request: Request) -> float | None:
    """Return the temperature that a pinned request sets by header; None: that of the settings."""
    named = request.headers.get("x-tabloop-temperature", "")
    if not named:
        return None
    if not (request.headers.get("x-tabloop-arm") or request.headers.get("x-tabloop-version")):
        raise BadRequest("X-Tabloop-Temperature: expected X-Tabloop-Version or X-Tabloop-Arm with it", "X-Tabloop-Temperature")
    try:
        value = float(named)
    except ValueError:
        value = 0.0
    if not 0 < value <= MAX_TEMPERATURE:
        expected = f"a number above 0, at most {MAX_TEMPERATURE:g}"
        raise BadRequest(f"X-Tabloop-Temperature: expected {expected}, got {named[:40]!r}", "X-Tabloop-Temperature")
    return value


def _routes(request: Request, gateway: Gateway, caller: Caller, credential: Credential, now: float) -> list[Route]:
    """Return the slots to try: those of the caller's arm, or the one that a caller with the role `versions` pins by header."""
    arm, version = request.headers.get("x-tabloop-arm", ""), request.headers.get("x-tabloop-version", "")
    if not arm and not version:
        return gateway.loops.route(caller.project, caller.user, now, experiments=caller.experiments, version=caller.version)
    credential.require("versions")
    try:
        return [gateway.loops.pinned(caller.project, arm, version)]
    except ValueError as error:
        raise BadRequest(str(error), "X-Tabloop-Arm") from None
