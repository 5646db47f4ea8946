"""Wires the gateway, feedback and status into the two apps."""

from typing import Any

from fastapi import FastAPI

from serving.gateway.completions import Gateway, add_completions
from serving.gateway.errors import add_errors
from serving.gateway.feedback import FeedbackService, add_feedback
from serving.gateway.openapi import DocumentedApp
from serving.metrics import Metrics
from serving.status.routes import StatusSources, add_status


def create_completions_app(gateway: Gateway, feedback: FeedbackService, status: StatusSources) -> FastAPI:
    """Return the app of the completions port: completions, status and feedback."""
    app = DocumentedApp("tabloop completions")
    add_errors(app, status.metrics)
    add_completions(app, gateway)
    add_status(app, status)
    add_feedback(app, feedback)
    return app


def create_feedback_app(feedback: FeedbackService, metrics: Metrics) -> FastAPI:
    """Return the app of the feedback port: feedback and health."""
    app = DocumentedApp("tabloop feedback")
    add_errors(app, metrics)
    add_feedback(app, feedback)

    @app.get("/health")
    async def health() -> Any:
        return {"status": "ok"}

    return app
