"""What serves nobody leaves the processor to what serves developers."""

import os
import subprocess
import sys

import pytest

from infra.stack.priority import LOWER, SESSION

PROBE = """
import os
from infra.stack.priority import SESSION, lower_priority
lower_priority()
print(os.nice(0), SESSION.read_text().split()[-1] if SESSION.exists() else "")
"""


def lowered(*, leads_session: bool) -> list[str]:
    """Return the niceness of a process that lowered its priority, and that of its session."""
    command = [sys.executable, "-c", PROBE]
    return subprocess.run(command, start_new_session=leads_session, capture_output=True, text=True, check=True).stdout.split()


def test_a_process_is_nicer_than_those_that_serve() -> None:
    assert int(lowered(leads_session=False)[0]) == min(19, os.nice(0) + LOWER)


@pytest.mark.skipif(not SESSION.exists(), reason="this kernel has no autogroups")
def test_a_session_is_nicer_only_where_the_process_leads_it() -> None:
    before = SESSION.read_text().split()[-1]
    assert int(lowered(leads_session=True)[1]) == LOWER
    assert lowered(leads_session=False)[1] == before == SESSION.read_text().split()[-1]
