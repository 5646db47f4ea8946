"""The address by which the app reaches an engine, and the one on which the engine listens."""

import asyncio
from dataclasses import dataclass
from urllib.parse import urlsplit

from infra.http.listening import to_listen
from infra.http.web import PORTS
from infra.settings import Settings
from infra.settings.serving import External, own_engines


@dataclass(frozen=True)
class Where:
    """A frozen record of an engine's addresses and its token."""

    url: str
    """URL by which the app, or the evaluation, reaches it; requests must name its host."""
    token: str
    host: str
    """Address of this machine on which it listens."""
    port: int
    setting: str
    """Setting of `host`."""

    @classmethod
    def of(cls, url: str, token: str, host: str, setting: str) -> "Where":
        """Return an engine's addresses. An empty host: the URL's own."""
        address = urlsplit(url)
        return cls(url, token, host or address.hostname or "127.0.0.1", address.port or PORTS.get(address.scheme, 80), setting)

    def check(self) -> None:
        """Raise SystemExit if this machine cannot listen there: otherwise the error would appear only after the minutes of
        building the engine."""
        try:
            asyncio.run(_try(to_listen(self.host), self.port))
        except OSError as error:
            raise SystemExit(
                f"engine: cannot listen on {self.host}:{self.port}, for {self.url}: {error}. If {self.host} is the name of a "
                f"service or a proxy, set {self.setting} to an address of this machine, as ::; if the port is taken, end "
                "its owner"
            ) from None


async def _try(host: str, port: int) -> None:
    """Take the addresses that the engine will, and leave them. Raises OSError."""
    server = await asyncio.get_running_loop().create_server(asyncio.Protocol, host, port, start_serving=False)
    server.close()


def slot_address(settings: Settings, slot: int, member: int = 0) -> Where:
    """Return the addresses of a slot's engine (`member` is its index among several), or raise SystemExit."""
    setting, token = settings.serving.engines[slot], settings.serving.engine_token
    if isinstance(setting, External):
        raise SystemExit(f"engine: serving.engines[{slot}] is an external server, {setting.url}: it has no engine to start here")
    urls = own_engines(setting)
    if member >= len(urls):
        raise SystemExit(f"engine: --member {member}: serving.engines[{slot}] has {len(urls)}; expected 0 to {len(urls) - 1}")
    url = urls[member]
    if not token:
        raise SystemExit("engine: serving.engine_token is not set: `tabloop up` makes it, or set TABLOOP_SERVING__ENGINE_TOKEN")
    return Where.of(url, token.get_secret_value(), settings.serving.engine_host, "serving.engine_host")


def evaluation_address(settings: Settings) -> Where:
    """Return the addresses of the evaluation's own engine, or raise SystemExit."""
    token = settings.evaluate.engine_token
    if not token:
        raise SystemExit("evaluate.engine_token is not set: `tabloop up` makes it, or set TABLOOP_EVALUATE__ENGINE_TOKEN")
    return Where.of(settings.evaluate.engine_url, token.get_secret_value(), settings.evaluate.engine_host, "evaluate.engine_host")
