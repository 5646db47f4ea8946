"""The app that the pages describe: its OpenAPI documents and metrics, of an app that is not started."""

import tempfile
from pathlib import Path
from typing import Any

from prometheus_client.metrics import MetricWrapperBase
from pydantic import SecretStr

from infra.settings import Settings
from serving.__main__ import wire
from serving.gateway.dialects import CLIENT_NAMES
from serving.gateway.drain import Drain
from serving.metrics import Metrics
from serving.slots import client


async def describe(settings: Settings) -> dict[str, Any]:
    """Return the OpenAPI documents of the ports `completions` and `feedback`, and the `metrics`."""
    with tempfile.TemporaryDirectory() as folder:
        unused = SecretStr("unused")
        changes = {"spool": Path(folder, "spool"), "state": Path(folder, "state"), "token": unused, "user_secret": unused}
        settings = settings.model_copy(update={"serving": settings.serving.model_copy(update=changes)})
        async with client.session() as http:
            parts = wire(settings, http, Metrics(CLIENT_NAMES), Drain(settings.serving.drain))
        ports = {"completions": parts.completions.openapi(), "feedback": parts.feedback.openapi()}
        return ports | {"metrics": described(parts.metrics)}


def described(metrics: Metrics) -> list[dict[str, Any]]:
    """Return name, type, labels and help of every metric, in the order in which they are declared."""
    declared = [metric for metric in vars(metrics).values() if isinstance(metric, MetricWrapperBase)]
    return [
        {
            "name": each.name + ("_total" if each.type == "counter" else ""),
            "kind": each.type,
            "labels": metric._labelnames,
            "help": each.documentation,
        }
        for metric in declared
        for each in metric.describe()
    ]
