"""An engine's metrics for Prometheus, and who may read them. This module does not import vLLM."""

import logging

from prometheus_client import REGISTRY, CollectorRegistry, Gauge, generate_latest

from infra.settings.schema import Serving
from serving.access.credentials import digest
from serving.access.known_tokens import KnownTokens
from serving.engine.protocol import Health

log = logging.getLogger(__name__)
ROLE = "metrics"


def text(health: Health) -> bytes:
    """Return the metrics in Prometheus' text format: the engine's versions, and all that its process counts.

    vLLM counts where its statistics are on (`serving.engine_arguments.disable_log_stats = false`).
    """
    registry = CollectorRegistry()
    held = Gauge("tabloop_engine_version", "1 for each version that the engine samples with.", ["version"], registry=registry)
    for version in health.versions or (health.version,):
        held.labels(version).set(1)
    running = Gauge("tabloop_engine_running_requests", "Requests in the engine.", registry=registry)
    running.set(health.running)
    return generate_latest(registry) + generate_latest(REGISTRY)


class Scrapers:
    """The tokens with the role `metrics`, as the app knows them; none where this machine cannot read the table of tokens."""

    def __init__(self, settings: Serving) -> None:
        """Read the tokens of the settings and of serving.token_file."""
        self._known: KnownTokens | None = None
        try:
            self._known = KnownTokens(settings)
        except ValueError as error:
            log.warning("metrics: only serving.engine_token may read them: %s", error)

    def may_read(self, authorization: str) -> bool:
        """Return whether a request's Authorization header has such a token."""
        scheme, _, token = authorization.partition(" ")
        key = digest(token.encode(errors="surrogateescape"))
        credential = self._known.get(key) if self._known and scheme.lower() == "bearer" else None
        return credential is not None and ROLE in credential.roles

    async def follow(self) -> None:
        """Read the table again after each change, until cancelled."""
        if self._known:
            await self._known.follow()
