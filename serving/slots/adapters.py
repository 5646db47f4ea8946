"""The client of an engine that holds several versions as adapters: a slot sees the one that it loaded last."""

from dataclasses import replace

import aiohttp

from serving.engine.protocol import Health, SwapResult
from serving.slots.client import EngineClient


class AdapterClient(EngineClient):
    """The client of one slot, over a shared HTTP session. Two slots may name the same engine."""

    def __init__(self, http: aiohttp.ClientSession, url: str, token: str | None, host: str = "", version: str = "") -> None:
        """Name an engine; `version` is the one that the slot held last, if that is known."""
        super().__init__(http, url, token, host)
        self._version = version

    async def health(self) -> Health:
        """Return the engine's state, as of the slot's version; as of the base while it does not hold that. Raises EngineDown."""
        health = await self._health(self._version)
        return replace(health, version=self._version) if self._version in health.versions else health

    async def swap(self, path: str, version: str) -> SwapResult:
        """Make the engine hold a version, which then is the slot's. See EngineClient.swap."""
        result = await super().swap(path, version)
        self._version = version
        return result
