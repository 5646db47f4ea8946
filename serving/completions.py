"""The app on the completions port: completions in each client's dialect."""

import uuid
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

from serving import bodies, dialects
from serving.access import Caller, Denied, Known, client_name
from serving.answers import RETRY_SECONDS, Stream, Whole
from serving.arms import NotHeld, Route
from serving.bodies import InfillEvents, OpenAIEvents, error_body
from serving.dialects import BadRequest
from serving.document import COMPLETIONS, Documented
from serving.generation import Asked, Generation, Unavailable, Unservable
from serving.metrics import Metrics
from serving.standing import Serving
from serving.status import add_state


def create_app(serving: Serving) -> Documented:
    """Completions, and how the app is doing (status.py)."""
    app = Documented("tabloop completions")
    add_errors(app, serving.metrics)
    _add_completions(app, serving)
    add_state(app, serving)
    return app


def add_errors(app: FastAPI, metrics: Metrics) -> None:
    """Every error in OpenAI's shape, and counted."""

    def answer(status: int, message: str, kind: str, parameter: str | None = None, **headers: str) -> JSONResponse:
        metrics.refused.labels(status).inc()
        return JSONResponse(error_body(message, kind, parameter), status, headers=headers)

    @app.exception_handler(BadRequest)
    async def bad_request(request: Request, error: BadRequest) -> Response:
        return answer(error.status, str(error), "invalid_request_error", error.parameter)

    @app.exception_handler(Denied)
    async def denied(request: Request, error: Denied) -> Response:
        wait = {"Retry-After": str(error.retry_seconds)} if error.retry_seconds else {}
        return answer(error.status, str(error), "rate_limit_error" if wait else "authentication_error", **wait)

    @app.exception_handler(NotHeld)
    async def not_held(request: Request, error: NotHeld) -> Response:
        return answer(409, str(error), "invalid_request_error")

    @app.exception_handler(Unavailable)
    async def unavailable(request: Request, error: Unavailable) -> Response:
        return answer(503, str(error), "server_error", **{"Retry-After": str(RETRY_SECONDS)})

    @app.exception_handler(Unservable)
    async def unservable(request: Request, error: Unservable) -> Response:
        return answer(400, str(error), "invalid_request_error", "prompt")

    @app.exception_handler(Exception)
    async def surprise(request: Request, error: Exception) -> Response:
        return answer(500, f"{type(error).__name__}: what happened stands in the server's log", "server_error")

    @app.exception_handler(404)
    async def unknown(request: Request, error: Exception) -> Response:
        return answer(404, f"{request.method} {request.url.path}: no such route", "invalid_request_error")

    @app.exception_handler(405)
    async def wrong_method(request: Request, error: Exception) -> Response:
        return answer(405, f"{request.url.path}: {request.method} is not how it is asked", "invalid_request_error")


def add_posts(app: FastAPI, routes: Mapping[str, Callable[[Request], Awaitable[Response]]]) -> None:
    """Routes that are asked all day, as Starlette's: FastAPI would look for dependencies in each request, and there are none."""
    for path, answer in routes.items():
        app.add_route(path, answer, methods=["POST"])


def _add_completions(app: Documented, serving: Serving) -> None:
    openai = bodies.openai(serving.model)

    def generation(request: Request, known: Known, body: dict[str, Any], asked: Asked) -> Generation:
        user = body.get("user")
        client = client_name(request.headers, dialects.client_guess(body, request.headers))
        caller = serving.access.caller(request.headers, known, user if isinstance(user, str) else None, client)
        routes = _routes(request, serving, caller)
        return Generation(f"cmpl-{uuid.uuid4()}", asked, caller, routes, serving.policy, serving.clock())

    async def completions(request: Request) -> Response:
        known = serving.access.check(request.headers, "complete")  # before a stranger's body is read
        body = await dialects.read_json(request)
        if "segments" in body:
            return Whole(generation(request, known, body, dialects.tabby(body)), serving.recorder, bodies.tabby)
        stream, usage = dialects.streamed(body), dialects.usage_wanted(body)
        asked = generation(request, known, body, dialects.openai(body))
        if stream:
            return Stream(asked, serving.recorder, OpenAIEvents(asked, serving.model, usage=usage))
        return Whole(asked, serving.recorder, openai)

    async def infill(request: Request) -> Response:
        known = serving.access.check(request.headers, "complete")
        body = await dialects.read_json(request)
        asked, stream, fields = dialects.infill(body), dialects.streamed(body), dialects.response_fields(body)
        if asked.max_tokens == 0:  # a warm-up: nothing is sampled
            return JSONResponse({"content": "", "stop": True, "timings": {}})
        made = generation(request, known, body, asked)
        told = bodies.infill(serving.model, serving.policy.room, fields)
        return Stream(made, serving.recorder, InfillEvents(made, told)) if stream else Whole(made, serving.recorder, told)

    async def chat(request: Request) -> Response:
        raise BadRequest(
            "only /v1/completions is served: give the model a name with 'qwen' and 'coder' in it, as /v1/models says"
        )

    add_posts(app, {"/v1/completions": completions, "/infill": infill, "/v1/chat/completions": chat})
    app.bodies |= COMPLETIONS


def _routes(request: Request, serving: Serving, caller: Caller) -> list[Route]:
    arm, version = request.headers.get("x-tabloop-arm", ""), request.headers.get("x-tabloop-version", "")
    if not arm and not version:
        return serving.arms.route(caller.user, experiments=caller.experiments, version=caller.version)
    serving.access.check(request.headers, "admin")
    try:
        return [serving.arms.pinned(arm, version)]
    except ValueError as error:
        raise BadRequest(str(error), "X-Tabloop-Arm") from None
