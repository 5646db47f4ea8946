"""The benchmark of kills ends with what it waited for."""

import asyncio
import socket

import pytest

from evals.bench.survival import _complete_cycle
from infra.settings import Settings
from infra.settings.schema import Orchestration


def test_a_prefect_that_never_answers_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        api = f"http://127.0.0.1:{silent.getsockname()[1]}/api"
        settings = Settings(orchestration=Orchestration(api=api))
        with pytest.raises(RuntimeError, match=rf"none of 0 runs registered .*; no answer from {api}"):
            asyncio.run(_complete_cycle(settings, "a-run", 0.2))
