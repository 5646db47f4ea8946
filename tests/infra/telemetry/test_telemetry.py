"""Logs as JSON, and the standard variables that turn traces on."""

import json
import logging
import subprocess
import sys
from collections.abc import Mapping

import pytest

from infra.settings import ROOT
from infra.telemetry import switch
from infra.telemetry.logs import JsonFormatter
from infra.telemetry.spans import REQUEST, Span, trace_id
from tests.infra.telemetry.collector import collector

ID = "cmpl-0e8dd8a6-7a5f-4a8e-9d9f-0d6a3f7c1b11"


def record(message: str, *arguments: object, error: BaseException | None = None) -> logging.LogRecord:
    info = (type(error), error, error.__traceback__) if error else None
    return logging.LogRecord("serving", logging.WARNING, "file.py", 1, message, arguments, info)


def test_a_line_of_json_has_the_ids_of_request_and_trace() -> None:
    token = REQUEST.set(ID)
    try:
        try:
            raise OSError(28, 'no "space"')
        except OSError as error:
            line = JsonFormatter().format(record("slot %d:\n%s", 1, "down", error=error))
    finally:
        REQUEST.reset(token)
    assert "\n" not in line
    values = json.loads(line)
    assert (values["level"], values["logger"], values["message"]) == ("WARNING", "serving", "slot 1:\ndown")
    assert (values["request"], values["trace"]) == (ID, trace_id(ID)) and 'no "space"' in values["exception"]
    assert set(json.loads(JsonFormatter().format(record("ready")))) == {"time", "level", "logger", "message"}


def test_a_traces_id_is_the_beginning_of_the_sha_256() -> None:
    command = f"printf %s {ID} | sha256sum | cut -c-32"
    assert subprocess.run(command, shell=True, capture_output=True, text=True, check=True).stdout.strip() == trace_id(ID)


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"OTEL_SERVICE_NAME": "x"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_SDK_DISABLED": "true"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_TRACES_EXPORTER": "none"},
    ],
)
def test_traces_are_off_by_default_and_by_the_standard_variables(variables: Mapping[str, str]) -> None:
    assert switch.traces("tabloop", variables, print) is None


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"OTEL_TRACES_EXPORTER": "zipkin"}, "OTEL_TRACES_EXPORTER = 'zipkin': expected otlp or none"),
        (
            {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
            "OTEL_EXPORTER_OTLP_PROTOCOL = 'grpc': expected http/protobuf; name the collector's port for HTTP, 4318",
        ),
    ],
)
def test_what_there_is_not_is_refused(variables: Mapping[str, str], words: str) -> None:
    with pytest.raises(ValueError, match=words.replace("/", ".")):
        switch.traces("tabloop", variables, print)


def test_without_an_endpoint_the_app_imports_nothing_of_opentelemetry() -> None:
    program = (
        "import sys, serving.__main__\nfrom infra.telemetry import switch\nassert switch.traces('tabloop', {}, print) is None\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_sampler_and_the_services_name_are_the_standard_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    with collector() as received:
        variables = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": received.url,
            "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
            "OTEL_TRACES_SAMPLER_ARG": "0.1",
            "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=test",
        }
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        lost: list[int] = []
        one, other = (switch.traces("tabloop", variables, lost.append) for _ in range(2))
        assert one and other
        names = [f"cmpl-{number}" for number in range(2000)]
        chosen = [name for name in names if one.chosen(name)]
        assert 140 < len(chosen) < 260 and chosen == [name for name in names if other.chosen(name)]
        one.send(chosen[0], (), Span("request", 1.0, 2.0))
        other.send(chosen[0], [Span("outcome", 5.0, 6.0)])
        one.flush(10)
        other.flush(10)
        found = received.of(trace_id(chosen[0]))
        assert found["outcome"].parent_span_id == found["request"].span_id and not found["request"].parent_span_id
        assert (found["request"].start_time_unix_nano, found["request"].end_time_unix_nano) == (10**9, 2 * 10**9)
        assert b"deployment.environment.name" in received.bodies[0] and b"tabloop" in received.bodies[0] and not lost
