"""Wires the gateway, feedback and status into the two apps."""

from collections.abc import Collection
from typing import Any

from fastapi import FastAPI, Response

from serving.gateway.browsers import BrowserGuard
from serving.gateway.completions import Gateway, add_completions
from serving.gateway.drain import CloseWhileDraining, Drain
from serving.gateway.errors import add_errors
from serving.gateway.feedback import FeedbackService, add_feedback
from serving.gateway.openapi import HEALTH, DocumentedApp, answers
from serving.metrics import Metrics
from serving.status.routes import READY, StatusSources, add_status, readiness


def create_completions_app(gateway: Gateway, feedback: FeedbackService, status: StatusSources, hosts: Collection[str]) -> FastAPI:
    """Return the app of the completions port: completions, status and feedback, for requests that name one of its hosts."""
    app = DocumentedApp("tabloop completions")
    app.add_middleware(BrowserGuard, hosts=hosts, metrics=status.metrics)
    app.add_middleware(CloseWhileDraining, drain=status.drain)
    add_errors(app, status.metrics)
    add_completions(app, gateway)
    add_status(app, status)
    add_feedback(app, feedback)
    return app


def create_feedback_app(feedback: FeedbackService, metrics: Metrics, hosts: Collection[str], drain: Drain) -> FastAPI:
    """Return the app of the feedback port: feedback, health and readiness, for requests that name one of its hosts.

    It is ready without engines: it accepts events of earlier completions as long as the app runs.
    """
    app = DocumentedApp("tabloop feedback")
    app.add_middleware(BrowserGuard, hosts=hosts, metrics=metrics)
    app.add_middleware(CloseWhileDraining, drain=drain)
    add_errors(app, metrics)
    add_feedback(app, feedback)

    @app.get("/health", responses=answers(HEALTH))
    async def health() -> Any:
        return {"status": "ok"}

    @app.get("/ready", responses=answers(READY, 200, 503))
    async def ready() -> Response:
        return readiness(not drain.began)

    return app
