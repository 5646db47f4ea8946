"""A browser for tests that need one."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from evals.demo import browser
from evals.demo.browser import PROGRAMS, find, wait

__all__ = ["Browser", "required", "running", "wait"]


class Browser(browser.Browser):
    """A running browser, each call of which connects to the tab anew."""

    def evaluate(self, tab: str, script: str) -> Any:
        """Return the value of JavaScript in a tab."""
        with self.tab(tab) as connected:
            return connected.evaluate(script)

    def until(self, tab: str, script: str) -> Any:
        """Return the value of JavaScript in a tab once it is true."""
        with self.tab(tab) as connected:
            return connected.until(script)


@contextmanager
def running(program: str, folder: Path, flags: Sequence[str] = ()) -> Iterator[Browser]:
    """Run a browser with a profile in a folder."""
    with browser.running(program, folder, flags) as found:
        yield Browser(found.port)


def required() -> str:
    """Return the path of a browser, or skip the test with its reason."""
    return find() or pytest.skip(f"no browser is installed: none of {', '.join(PROGRAMS)} is on the PATH")
