"""A page of a browser without a screen, with what the browser logs about it."""

import asyncio
import base64
import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from tests.infra import browser


class Tab:
    """A page of the browser."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self.problems: list[str] = []
        """What the browser logged: violations of the content security policy, exceptions."""

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol."""
        number = next(self._numbers)
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        while True:
            message = await self._socket.receive_json(timeout=60)
            if message.get("id") == number:
                assert "error" not in message, message
                return message["result"]
            if message.get("method") in ("Log.entryAdded", "Runtime.exceptionThrown"):
                problem = message["params"].get("entry", {"level": "error"})
                if problem["level"] in ("error", "warning"):
                    self.problems.append(json.dumps(message["params"]))

    async def run(self, script: str) -> Any:
        """Run a script in the page, and return the value of its promise or of its last expression."""
        found = await self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    async def open(self, url: str, password: str) -> None:
        """Open an address with a password, and wait until it is loaded."""
        for domain in ("Page", "Runtime", "Log", "Network"):
            await self.call(f"{domain}.enable")
        login = base64.b64encode(f"me:{password}".encode()).decode()
        await self.call("Network.setExtraHTTPHeaders", headers={"Authorization": f"Basic {login}"})
        await self.call("Page.navigate", url=url)
        while await self.run("document.readyState") != "complete" or await self.run("location.href") != url:
            await asyncio.sleep(0.05)
        # As in a browser that remembers a password: it is sent with the page, and not with what a script sends elsewhere.
        await self.call("Network.setExtraHTTPHeaders", headers={})


@asynccontextmanager
async def tab(folder: Path) -> AsyncIterator[Tab]:
    """Start a browser with a profile in a folder, and yield a page of it; skip the test where none is installed."""
    with browser.running(browser.required(), folder) as running:
        async with aiohttp.ClientSession() as http, http.ws_connect(running.open("about:blank"), max_msg_size=1 << 26) as socket:
            yield Tab(socket)
