"""A browser without a screen, driven over its debugging port: for tests of pages, and for pictures of them."""

import itertools
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import Request, urlopen

from websockets.sync.client import ClientConnection, connect

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
START_SECONDS = 240.0
"""Longest wait: on a machine with other work, a browser may take a minute to start."""
FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-extensions", "--no-first-run", "--remote-debugging-port=0"),
    # The browser's own protection of this machine is off: the servers' is tested.
    "--disable-features=LocalNetworkAccessChecks,BlockInsecurePrivateNetworkRequests",
)


def find() -> str | None:
    """Return the path of a browser, or None if none is installed."""
    return next((found for name in PROGRAMS if (found := shutil.which(name))), None)


class Tab:
    """A tab of a browser. What is emulated in it holds as long as the tab is connected."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)

    def call(self, method: str, **parameters: Any) -> Any:
        """Call a method of the debugging protocol."""
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while (message := json.loads(self._socket.recv(timeout=START_SECONDS))).get("id") != number:
            pass
        return message.get("result", {})

    def evaluate(self, script: str) -> Any:
        """Return the value of JavaScript, a promise's once it is kept; none if the tab goes elsewhere meanwhile."""
        answer = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        return answer.get("result", {}).get("value")

    def until(self, script: str, seconds: float = START_SECONDS) -> Any:
        """Return the value of JavaScript once it is true. Raises TimeoutError with the page's address and text."""
        shown = "location.href + ' ' + document.body.innerText.slice(0, 500)"
        return wait(lambda: self.evaluate(script), lambda: f"{script}: never true at {self.evaluate(shown)}", seconds)


class Browser:
    """A running browser."""

    def __init__(self, port: int) -> None:
        self.port = port

    def open(self, url: str) -> str:
        """Open a page in a new tab and return the tab's debugging address."""
        request = Request(f"http://127.0.0.1:{self.port}/json/new?{quote(url)}", method="PUT")
        with urlopen(request, timeout=START_SECONDS) as answer:
            return json.load(answer)["webSocketDebuggerUrl"]

    @contextmanager
    def tab(self, address: str) -> Iterator[Tab]:
        """Connect to a tab by its debugging address."""
        with connect(address, max_size=None, create_connection=ClientConnection) as socket:
            assert isinstance(socket, ClientConnection)
            yield Tab(socket)


@contextmanager
def running(program: str, folder: Path, flags: Sequence[str] = ()) -> Iterator[Browser]:
    """Run a browser with a profile in a folder."""
    log, port = folder.with_suffix(".log"), folder / "DevToolsActivePort"
    with log.open("wb") as out:
        command = [program, *FLAGS, f"--user-data-dir={folder}", *flags, "about:blank"]
        process = subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True)
    try:
        wait(lambda: port.exists() and "\n" in port.read_text(), lambda: log.read_text()[-2000:])
        yield Browser(int(port.read_text().splitlines()[0]))
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # also the browser's children, which else write on into the folder
        process.wait()


def wait(condition: Callable[[], Any], otherwise: Callable[[], str], seconds: float = START_SECONDS) -> Any:
    """Return the value of a condition once it is true. Raises TimeoutError with a text if it is not in time."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(otherwise())
        time.sleep(0.05)
    return value
