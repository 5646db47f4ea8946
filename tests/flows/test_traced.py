"""A cycle's run is a trace: the run, and below it its steps."""

from collections.abc import Iterator

import pytest

from flows.cycle import cycle
from infra.telemetry.spans import trace_id
from tasks.steps import traced
from tests.flows.conftest import World
from tests.infra.telemetry.collector import Collector, attributes, collector

pytestmark = pytest.mark.stack


@pytest.fixture
def received(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    with collector() as found:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", found.url)
        traced.of_flows.cache_clear()
        yield found
    traced.of_flows.cache_clear()


def test_a_cycle_is_a_trace_with_its_steps(world: World, received: Collector) -> None:
    state = cycle(return_state=True)
    assert state.name == "TooFewSamples"
    spans = received.of(trace_id(str(state.state_details.flow_run_id)))
    run = spans.pop("cycle")
    assert attributes(run)["tabloop.state"] == "TooFewSamples"
    assert {"inspect", "collect"} <= set(spans) and all(span.parent_span_id == run.span_id for span in spans.values())


def test_a_cycle_that_fails_has_the_kind_of_its_error(world: World, received: Collector) -> None:
    world.registry.aliases.clear()
    state = cycle(return_state=True)
    run = received.of(trace_id(str(state.state_details.flow_run_id)))["cycle"]
    assert run.status.code == 2 and run.status.message == "NoChampion" and attributes(run)["tabloop.state"] == "Failed"


def test_an_endpoint_of_another_protocol_stops_no_cycle(
    world: World, received: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    assert cycle(return_state=True).name == "TooFewSamples"
    assert received.bodies == []
