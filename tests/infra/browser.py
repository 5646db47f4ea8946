"""A browser without a screen, driven over its debugging port."""

import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import Request, urlopen

import pytest
from websockets.sync.client import connect

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
START_SECONDS = 60.0
FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-extensions", "--no-first-run", "--remote-debugging-port=0"),
    # The browser's own protection of this machine is off: the servers' is tested.
    "--disable-features=LocalNetworkAccessChecks,BlockInsecurePrivateNetworkRequests",
)


def required() -> str:
    """Return the path of a browser, or skip the test with its reason."""
    program = next((found for name in PROGRAMS if (found := shutil.which(name))), None)
    return program or pytest.skip(f"no browser is installed: none of {', '.join(PROGRAMS)} is on the PATH")


class Browser:
    """A running browser."""

    def __init__(self, port: int) -> None:
        self._port = port

    def open(self, url: str) -> str:
        """Open a page in a new tab and return the tab's debugging address."""
        request = Request(f"http://127.0.0.1:{self._port}/json/new?{quote(url)}", method="PUT")
        with urlopen(request, timeout=START_SECONDS) as answer:
            return json.load(answer)["webSocketDebuggerUrl"]

    def evaluate(self, tab: str, script: str) -> Any:
        """Return the value of JavaScript in a tab, a promise's once it is kept; none if the tab goes elsewhere meanwhile."""
        answer = self.call(tab, "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        return answer.get("result", {}).get("value")

    def call(self, tab: str, method: str, **parameters: Any) -> Any:
        """Call a method of the debugging protocol."""
        with connect(tab, max_size=None) as socket:
            socket.send(json.dumps({"id": 1, "method": method, "params": parameters}))
            while (message := json.loads(socket.recv(timeout=START_SECONDS))).get("id") != 1:
                pass
        return message.get("result", {})

    def until(self, tab: str, script: str, seconds: float = START_SECONDS) -> Any:
        """Return the value of JavaScript in a tab once it is true. Raises AssertionError with the page's address and text."""
        deadline = time.monotonic() + seconds
        while not (value := self.evaluate(tab, script)):
            shown = self.evaluate(tab, "location.href + ' ' + document.body.innerText.slice(0, 500)")
            assert time.monotonic() < deadline, f"{script}: never true at {shown}"
            time.sleep(0.1)
        return value


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
        process.kill()
        process.wait()


def wait(condition: Callable[[], bool], otherwise: Callable[[], str], seconds: float = START_SECONDS) -> None:
    """Wait until a condition holds. Raises AssertionError with a text if it does not in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, otherwise()
        time.sleep(0.05)
