"""A completion and its accept in MLflow's own traces."""

import base64
import os
import time

import httpx
import pytest

from infra.telemetry import switch
from infra.telemetry.spans import trace_id
from serving.gateway.dialects import CLIENT_NAMES
from serving.recording.traces import OUTCOME, CompletionTraces, Times
from tests.stack import Stack
from tests.tasks.made import completion, feedback

pytestmark = pytest.mark.stack
ID = "cmpl-0e8dd8a6-7a5f-4a8e-9d9f-0d6a3f7c1b11"


def test_a_completion_and_its_accept_are_linked_in_mlflow(storage: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = storage.settings.registry
    assert registry.password
    credentials = base64.b64encode(f"{registry.username}:{registry.password.get_secret_value()}".encode()).decode()
    headers = f"x-mlflow-experiment-id=0,Authorization=Basic%20{credentials}"
    for name, value in {"OTEL_EXPORTER_OTLP_ENDPOINT": registry.uri, "OTEL_EXPORTER_OTLP_HEADERS": headers}.items():
        monkeypatch.setenv(name, value)
    lost: list[int] = []
    traces = switch.traces("tabloop", os.environ, lost.append)
    assert traces
    sent, now = CompletionTraces(traces, "qwen-coder", CLIENT_NAMES), time.time()
    sent.answered(completion(ID, time=now), Times(0.001, 0.002, 0.01, 0.02, (0.02, 0.021), 0.022))
    traces.flush(60)
    sent.judged(ID, feedback(completion_id=ID, outcome="accepted", time=now + 2), now + 2)
    traces.flush(60)
    assert lost == []
    found = _trace(registry.uri, registry.username, registry.password.get_secret_value())
    assert {"request", "rendering", "queue", "first token", "stream", "record", OUTCOME} == set(found)
    assert found[OUTCOME]["parent_span_id"] == found["request"]["span_id"] != ""
    assert "foo(bar)" not in str(found) and "x = " not in str(found)


def _trace(uri: str, user: str, password: str) -> dict[str, dict[str, str]]:
    """Return the spans of the completion's trace, as MLflow's API has them, by name."""
    with httpx.Client(base_url=uri, auth=(user, password), timeout=60, trust_env=False) as client:
        answer = client.get("/api/3.0/mlflow/traces/get", params={"trace_id": f"tr-{trace_id(ID)}"})
        answer.raise_for_status()
        return {span["name"]: span for span in answer.json()["trace"]["spans"]}
