"""A browser without a screen, driven over the Chrome DevTools protocol."""

import asyncio
import base64
import itertools
import json
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

START_SECONDS = 60.0


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
async def tab(program: str) -> AsyncIterator[Tab]:
    """Start a browser and yield its page."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = await asyncio.create_subprocess_exec(
            *(program, "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--remote-debugging-port=0"),
            *(f"--user-data-dir={profile}", "about:blank"),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            port = await asyncio.wait_for(_port(Path(profile) / "DevToolsActivePort"), START_SECONDS)
            async with aiohttp.ClientSession() as http:
                pages = await (await http.get(f"http://127.0.0.1:{port}/json")).json()
                address = next(page["webSocketDebuggerUrl"] for page in pages if page["type"] == "page")
                async with http.ws_connect(address, max_msg_size=1 << 26) as socket:
                    yield Tab(socket)
        finally:
            process.kill()
            await process.wait()


async def _port(file: Path) -> str:
    while not file.exists() or not file.read_text().strip():
        await asyncio.sleep(0.05)
    return file.read_text().split("\n")[0]
