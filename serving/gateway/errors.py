"""Error responses in OpenAI's format, counted by status."""

import logging
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse, Response

from serving.access import Denied
from serving.gateway.generation import Unavailable, Unservable
from serving.metrics import Metrics
from serving.slots.arms import NotServed

log = logging.getLogger(__name__)
RETRY_SECONDS = 2
"""Retry-After of a 503."""
DENIALS = {400: "invalid_request_error", 429: "rate_limit_error", 503: "server_error"}
"""Types of a Denied's error by its status; others are about the token."""
BROKEN_OFF = "the engine ended in the middle of this completion; try again"


class BadRequest(ValueError):
    """A mistake in a client's request; `parameter` names the field."""

    def __init__(self, message: str, parameter: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.parameter = parameter
        self.status = status


class FeedbackNotStored(RuntimeError):
    """The spool cannot store a feedback event now."""


def error_body(message: str, kind: str = "invalid_request_error", parameter: str | None = None) -> dict[str, Any]:
    """Return the body of an error in OpenAI's shape."""
    return {"error": {"message": message, "type": kind, "param": parameter, "code": None}}


@dataclass(frozen=True)
class OtherPort:
    """The routes of the app's other port, for clients that mix the two up."""

    what: str
    """This port, and what goes to the other one, as a clause."""
    paths: frozenset[str]


def paths_of(app: FastAPI) -> frozenset[str]:
    return frozenset(str(getattr(route, "path", "")) for route in app.routes)


def hint_of(path: str, own: Collection[str], other: OtherPort | None) -> str:
    """Return what a client with a wrong address probably meant; empty if that is unknown."""
    if other and path in other.paths:
        return f"; {other.what}"
    if path == "/":
        return ""
    if (bare := path.rstrip("/")) in own:
        return f"; did you mean {bare}, without a slash at its end?"
    longer = sorted((each for each in own if each.endswith(path)), key=len)
    shorter = sorted((each for each in own if len(each) > 1 and path.endswith(each)), key=len, reverse=True)
    last = path.lower().rstrip("/").rpartition("/")[2]
    alike = sorted((each for each in own if last and each.endswith(f"/{last}")), key=len)
    if not (near := [*longer, *shorter, *alike]):
        return ""
    return f"; did you mean {near[0]}? The address in the client's configuration has a part too many or too few"


def add_errors(app: FastAPI, metrics: Metrics, other: OtherPort | None = None) -> None:
    """Answer every error of the app in OpenAI's shape, and count it; `other` is the other port, if clients mix the two up."""

    def error(status: int, message: str, kind: str, parameter: str | None = None, **headers: str) -> JSONResponse:
        metrics.refused.labels(status).inc()
        return JSONResponse(error_body(message, kind, parameter), status, headers=headers)

    @app.exception_handler(BadRequest)
    async def bad_request(request: Request, cause: BadRequest) -> Response:
        return error(cause.status, str(cause), "invalid_request_error", cause.parameter)

    @app.exception_handler(Denied)
    async def denied(request: Request, cause: Denied) -> Response:
        headers = {"Retry-After": str(cause.retry_seconds)} if cause.retry_seconds else {}
        if cause.status == 401:  # RFC 9110, 15.5.2; Java's client hides an answer without it behind an error of its own
            headers["WWW-Authenticate"] = "Bearer"
        return error(cause.status, str(cause), DENIALS.get(cause.status, "authentication_error"), **headers)

    @app.exception_handler(NotServed)
    async def not_served(request: Request, cause: NotServed) -> Response:
        return error(409, str(cause), "invalid_request_error")

    @app.exception_handler(Unavailable)
    async def unavailable(request: Request, cause: Unavailable) -> Response:
        return error(503, str(cause), "server_error", **{"Retry-After": str(RETRY_SECONDS)})

    @app.exception_handler(Unservable)
    async def unservable(request: Request, cause: Unservable) -> Response:
        return error(400, str(cause), "invalid_request_error", "prompt")

    @app.exception_handler(FeedbackNotStored)
    async def not_stored(request: Request, cause: FeedbackNotStored) -> Response:
        log.error("feedback refused: %s", cause)
        retry = {"Retry-After": str(RETRY_SECONDS)}
        return error(503, "the feedback cannot be stored now; try again", "server_error", **retry)

    @app.exception_handler(Exception)
    async def internal(request: Request, cause: Exception) -> Response:
        return error(500, f"{type(cause).__name__}: internal error, see the server log", "server_error")

    @app.exception_handler(404)
    async def unknown_route(request: Request, cause: Exception) -> Response:
        path = request.url.path
        hint = hint_of(path, paths_of(app), other)
        return error(404, f"{request.method} {path}: no such route{hint}", "invalid_request_error")

    @app.exception_handler(405)
    async def wrong_method(request: Request, cause: HTTPException) -> Response:
        allowed = (cause.headers or {}).get("Allow", "")
        message = f"{request.method} {request.url.path}: method not allowed; allowed: {allowed}"
        return error(405, message, "invalid_request_error", **{"Allow": allowed})
