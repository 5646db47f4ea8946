"""Whether traces are on, by OpenTelemetry's standard variables. It imports nothing of OpenTelemetry, which takes a second."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from infra.telemetry.traces import Traces

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
PROTOCOL = "http/protobuf"


def traces(service: str, variables: Mapping[str, str], lost: Callable[[int], object]) -> "Traces | None":
    """Return where a process sends its spans; None where traces are off, as they are unless a variable names an endpoint.

    Args:
        service: `service.name`, unless OTEL_SERVICE_NAME names another.
        lost: called with a number of spans that no endpoint took.

    Raises:
        ValueError: a variable asks for what there is not.
    """
    if not _are_on(variables):
        return None
    from infra.telemetry.traces import Traces

    return Traces(service, variables, lost)


def _are_on(variables: Mapping[str, str]) -> bool:
    if variables.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    exporter = variables.get("OTEL_TRACES_EXPORTER", "").strip()
    if exporter == "none":
        return False
    if exporter not in ("", "otlp"):
        raise ValueError(
            f"OTEL_TRACES_EXPORTER = {exporter[:40]!r}: expected otlp or none; a collector passes spans on to others"
        )
    if not exporter and not any(variables.get(name) for name in ENDPOINTS):
        return False
    for name in PROTOCOLS:
        if (given := variables.get(name, "").strip()) not in ("", PROTOCOL):
            raise ValueError(f"{name} = {given[:40]!r}: expected {PROTOCOL}; name the collector's port for HTTP, 4318 by default")
    return True
