"""A page of a browser without a screen, with what the browser logs about it."""

import asyncio
import itertools
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from infra.http import login
from tests.infra import browser

ANSWER_SECONDS = 300.0
"""Longest wait for the browser: on a machine with other work, checking a long page takes minutes."""


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
            message = await self._socket.receive_json(timeout=ANSWER_SECONDS)
            if message.get("id") == number:
                assert "error" not in message, message
                return message["result"]
            if message.get("method") in ("Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled"):
                logged = message["params"]
                if logged.get("entry", {}).get("level", logged.get("type", "error")) in ("error", "warning"):
                    self.problems.append(json.dumps(logged))

    async def run(self, script: str) -> Any:
        """Run a script in the page, and return the value of its promise or of its last expression."""
        found = await self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    async def until(self, script: str) -> None:
        """Wait until JavaScript is true in the page. Raises AssertionError with the page's text if it is not in time."""
        deadline = time.monotonic() + ANSWER_SECONDS
        while not await self.run(script):
            shown = await self.run("document.body?.innerText.slice(0, 2000)")  # a page that loads has no body yet
            assert time.monotonic() < deadline, f"{script}: never true in {shown}"
            await asyncio.sleep(0.1)

    async def show(self, url: str, reached: str = "") -> None:
        """Open an address, and wait until it, or the one that it leads to, is loaded."""
        for domain in ("Page", "Runtime", "Log"):
            await self.call(f"{domain}.enable")
        await self.call("Page.navigate", url=url)
        while await self.run("location.href") != (reached or url) or await self.run("document.readyState") != "complete":
            await asyncio.sleep(0.05)

    async def open(self, address: str, credential: str) -> None:
        """Open an app's page with a login link: the browser then remembers a session's password, and sends it to that origin."""
        await self.show(login.link(address, credential), address + "/")


@asynccontextmanager
async def tab(folder: Path) -> AsyncIterator[Tab]:
    """Start a browser with a profile in a folder, and yield a page of it; skip the test where none is installed."""
    with browser.running(browser.required(), folder) as running:
        async with aiohttp.ClientSession() as http, http.ws_connect(running.open("about:blank"), max_msg_size=1 << 26) as socket:
            yield Tab(socket)
