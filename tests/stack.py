"""The real stack for tests: a stack per session, on free ports, with its own state directory."""

import json
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from infra import settings as settings_
from infra.settings import DEMO, FILE_VARIABLE, Settings
from infra.settings.evaluation import MARGINS
from infra.stack import control

SMALL_CYCLES = {
    "TABLOOP_COLLECT__MIN_SAMPLES": "48",
    "TABLOOP_EVALUATE__SAMPLES": "24",
    # With so few places only wide margins let a candidate pass.
    "TABLOOP_EVALUATE__GATE__MIN_PLACES": "24",
    "TABLOOP_EVALUATE__GATE__MARGINS": json.dumps({name: 9 for name in (*MARGINS, "silent")}),
    # Most of an update would be draws, six at each place: they are made at a few places as at 500.
    "TABLOOP_TRAIN__GROUPS__PLACES": "24",
    # Float32 on both sides, since tests compare the trainer's log-probabilities with the server's.
    "TABLOOP_TRAIN__PRECISION": "float32",
    "TABLOOP_SERVING__ENGINE_ARGUMENTS__DTYPE": "float32",
}
"""Settings of cycles that take few labels, and compare the trainer with the engines."""


@dataclass(frozen=True)
class Stack:
    """A running stack."""

    settings: Settings
    """Settings with secrets; settings.load() returns the same during the session."""
    state: Path
    """State directory."""


@contextmanager
def environment_of(directory: Path) -> Iterator[dict[str, str]]:
    """Point the settings of this process and its children at free ports and a directory."""
    variables = _overrides(directory)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        yield variables


@contextmanager
def running(directory: Path, *parts: str) -> Iterator[Stack]:
    """Start the named parts of a stack, or all if none is named, and stop them at the end."""
    with ExitStack() as exits:
        exits.enter_context(environment_of(directory))
        exits.callback(control.down, say=_quiet)
        yield started(*parts)


def started(*parts: str) -> Stack:
    """Start parts of the stack that the environment names, with paused schedules; running parts continue.

    Scheduled runs would cost a fifth of a core, and no test waits for one.
    """
    settings = control.up(parts, paused=True)
    return Stack(settings, settings_.path(settings.stack.state))


def _overrides(directory: Path) -> dict[str, str]:
    s3, mlflow, prefect, completions, feedback, evaluation, *engines = free_ports(8)
    return {
        FILE_VARIABLE: str(DEMO),
        "TABLOOP_STACK__STATE": str(directory / "stack"),
        **SMALL_CYCLES,
        "TABLOOP_TRAIN__FOLDER": str(directory / "cycles"),
        "TABLOOP_STORE__LOCK": str(directory / "s3.lock"),
        "TABLOOP_STORE__ENDPOINT": f"http://127.0.0.1:{s3}",
        "TABLOOP_REGISTRY__URI": f"http://127.0.0.1:{mlflow}",
        "TABLOOP_ORCHESTRATION__API": f"http://127.0.0.1:{prefect}/api",
        "TABLOOP_SERVING__PORT": str(completions),
        "TABLOOP_SERVING__FEEDBACK_PORT": str(feedback),
        "TABLOOP_SERVING__SPOOL": str(directory / "spool"),
        "TABLOOP_SERVING__STATE": str(directory / "serving"),
        "TABLOOP_EVALUATE__ENGINE_URL": f"http://127.0.0.1:{evaluation}",
        "TABLOOP_SERVING__ENGINES": json.dumps([f"http://127.0.0.1:{port}" for port in engines]),
    }


def open_to_others(root: Path) -> list[Path]:
    """Return the files and directories below a directory that users other than the owner may read, write or search."""
    found = [Path(folder, name) for folder, names, files in os.walk(root) for name in (*names, *files)]
    assert found, f"{root} is empty"
    return [path for path in found if not path.is_symlink() and stat.S_IMODE(path.lstat().st_mode) & 0o077]


def free_ports(count: int) -> list[int]:
    """Return free ports outside the range of outgoing connections; a process never gets a port twice."""
    ports: list[int] = []
    while len(ports) < count:
        port = next(_candidates())
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            ports.append(port)
    return ports


@cache
def _candidates() -> Iterator[int]:
    """Ports to try; processes started at the same time begin at different ports."""
    low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    return iter(range(low - 1 - os.getpid() * 97 % 8000, 10_000, -1))


def _quiet(_: str) -> None:
    pass
