"""When the certificates of the servers expire that the app and the flows ask over TLS: a handshake with each, now and then; and
the tokens that the app sends to them, where they say it.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Iterator, MutableMapping
from urllib.parse import urlsplit

import jwt
from cryptography import x509

from infra.settings import Settings
from infra.settings.serving import External, own_engines

log = logging.getLogger(__name__)
EVERY_SECONDS = 3_600.0
WAIT_SECONDS = 5.0
PORTS = {"https": 443, "valkeys": 6379, "rediss": 6379}
"""Port of an address without one, by its scheme; other schemes have no TLS."""


def addresses(settings: Settings) -> dict[str, tuple[str, int]]:
    """Return host and port of each server with TLS, by its name in the metric."""
    found = {}
    for name, address in _named(settings):
        parts = urlsplit(address)
        if parts.scheme in PORTS and parts.hostname:
            found[name] = (parts.hostname, parts.port or PORTS[parts.scheme])
    return found


def _named(settings: Settings) -> Iterator[tuple[str, str]]:
    serving = settings.serving
    yield "registry", settings.registry.uri
    yield "store", settings.store.endpoint or ""
    yield "prefect", settings.orchestration.api
    yield "valkey", serving.valkey.get_secret_value() if serving.valkey else ""
    yield "oidc", serving.oidc.issuer if serving.oidc else ""
    for slot, engine in enumerate(serving.engines):
        yield f"slot-{slot}", engine.url if isinstance(engine, External) else own_engines(engine)[0]


def tokens(settings: Settings) -> dict[str, float]:
    """Return when each token expires that the app sends to another server, by the server's name. Only a JWT says it, by its claim
    `exp`; any other token is left out."""
    given = {"registry": settings.registry.token}
    for slot, engine in enumerate(settings.serving.engines):
        given[f"slot-{slot}"] = engine.token if isinstance(engine, External) else None
    found = {}
    for name, token in given.items():
        try:
            claims = jwt.decode(token.get_secret_value(), options={"verify_signature": False}) if token else {}
        except jwt.InvalidTokenError:
            continue
        if isinstance(expires := claims.get("exp"), int | float):
            found[name] = float(expires)
    return found


def expiry(host: str, port: int) -> float:
    """Return when a server's certificate expires, in Unix seconds, valid or not. Raises OSError or ValueError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # one that has expired is read, too; nothing is sent
    with (
        socket.create_connection((host, port), WAIT_SECONDS) as plain,
        context.wrap_socket(plain, server_hostname=host) as secure,
    ):
        certificate = secure.getpeercert(binary_form=True)
    if certificate is None:
        raise ValueError("it sent no certificate")
    return x509.load_der_x509_certificate(certificate).not_valid_after_utc.timestamp()


async def follow(settings: Settings, found: MutableMapping[str, float], seconds: float = EVERY_SECONDS) -> None:
    """Read every certificate at intervals, until cancelled. One that cannot be read keeps its last value."""
    while servers := addresses(settings):
        for name, (host, port) in servers.items():
            try:
                found[name] = await asyncio.to_thread(expiry, host, port)
            except (OSError, ValueError) as error:
                log.warning("certificate of %s, %s:%d: not read: %s", name, host, port, error)
        await asyncio.sleep(seconds)
