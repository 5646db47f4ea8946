"""A browser for tests that need one."""

import pytest

from evals.demo.browser import PROGRAMS, Browser, find, running, wait

__all__ = ["Browser", "required", "running", "wait"]


def required() -> str:
    """Return the path of a browser, or skip the test with its reason."""
    return find() or pytest.skip(f"no browser is installed: none of {', '.join(PROGRAMS)} is on the PATH")
