"""Wires the gateway, feedback and status into the two apps."""

from collections.abc import Collection
from typing import Any

from fastapi import FastAPI, Response

from serving.gateway.browsers import BrowserGuard
from serving.gateway.completions import Gateway, add_completions
from serving.gateway.drain import CloseWhileDraining, Drain
from serving.gateway.errors import OtherPort, add_errors, paths_of
from serving.gateway.feedback import FeedbackService, add_feedback
from serving.gateway.openapi import HEALTH, DocumentedApp, answers
from serving.metrics import Metrics
from serving.status.own_page import add_own_page
from serving.status.routes import READY, add_status, readiness
from serving.status.sources import StatusSources


def create_completions_app(gateway: Gateway, feedback: FeedbackService, status: StatusSources, hosts: Collection[str]) -> FastAPI:
    """Return the app of the completions port: completions, status and feedback, for requests that name one of its hosts."""
    app = DocumentedApp("tabloop completions")
    app.add_middleware(BrowserGuard, hosts=hosts, metrics=status.metrics)
    app.add_middleware(CloseWhileDraining, drain=status.drain)
    add_errors(app, status.metrics)
    add_completions(app, gateway)
    add_status(app, status)
    add_own_page(app, gateway)
    add_feedback(app, feedback)
    return app


def create_feedback_app(
    feedback: FeedbackService, metrics: Metrics, hosts: Collection[str], drain: Drain, completions: FastAPI, port: int
) -> FastAPI:
    """Return the app of the feedback port: feedback, health and readiness, for requests that name one of its hosts.

    It is ready without engines: it accepts events of earlier completions as long as the app runs. A request for a route of the
    app of completions, which listens on `port`, gets that port's number.
    """
    app = DocumentedApp("tabloop feedback")
    app.add_middleware(BrowserGuard, hosts=hosts, metrics=metrics)
    app.add_middleware(CloseWhileDraining, drain=drain)
    what = f"this is the feedback port; that route is on the completions port, {port} (serving.port)"
    add_errors(app, metrics, OtherPort(what, paths_of(completions)))
    add_feedback(app, feedback)

    @app.get("/health", responses=answers(HEALTH))
    async def health() -> Any:
        return {"status": "ok"}

    @app.get("/ready", responses=answers(READY, 200, 503))
    async def ready() -> Response:
        return readiness(not drain.began)

    return app
