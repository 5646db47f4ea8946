"""What serves nobody leaves the processor to what serves developers."""

import os
import subprocess
import sys

import pytest

from infra.stack.priority import LOWER, SESSION

PROBE = """
import os
from infra.stack.priority import lower_priority
lower_priority()
print(os.nice(0), flush=True)
input()
"""


def session_niceness(process: int | str = "self") -> int | None:
    """Return the niceness of a process's session; None where the kernel or the session has none (a container's first)."""
    file = SESSION.parents[1] / str(process) / SESSION.name
    words = file.read_text().split() if file.exists() else []
    return int(words[-1]) if words else None


def lowered(*, leads_session: bool) -> tuple[int, int | None]:
    """Return the niceness of a process that lowered its priority, and that of its session, while it lives."""
    command = [sys.executable, "-c", PROBE]
    process = subprocess.Popen(command, start_new_session=leads_session, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with process:
        assert process.stdout
        nice = int(process.stdout.readline())
        session = session_niceness(process.pid)
        process.communicate("\n")
    return nice, session


def test_a_process_is_nicer_than_those_that_serve() -> None:
    assert lowered(leads_session=False)[0] == min(19, os.nice(0) + LOWER)


def test_the_session_of_others_keeps_its_priority() -> None:
    before = session_niceness()
    assert lowered(leads_session=False)[1] == before == session_niceness()


def test_a_session_that_the_process_leads_is_nicer() -> None:
    session = lowered(leads_session=True)[1]
    if session is None:
        pytest.skip("this kernel does not weigh sessions")
    assert session == LOWER
