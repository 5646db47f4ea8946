"""Fixtures of all tests: the real stack or a part of it, started on first use."""

import atexit
import gc
import os
import subprocess
import sys
import time
from collections.abc import Generator, Iterator
from contextlib import ExitStack, suppress
from typing import Any
from urllib.request import urlopen

import certifi
import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

from infra.settings import DEMO, FILE_VARIABLE, ROOT
from infra.storage.store import ObjectStore
from tests import stack as stack_
from tests.marks import add_long_option, choose_long_or_others, let_stack_tests_warn, rerun_timing_tests
from tests.stack import Stack, free_ports

settings.register_profile("tabloop", deadline=None)  # under other load on the machine, an example would exceed it
settings.load_profile("tabloop")

os.environ.setdefault(FILE_VARIABLE, str(DEMO))  # and not what a stack of this checkout was started with
# Hundreds of child processes import the same modules: each would compile them anew where the environment asks for no bytecode.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# Every HTTP client would read the 140 authorities of the system, for 20 ms; no test meets a certificate of any.
# Clients of httpx that follow no variable of the environment read those of certifi.
os.environ["SSL_CERT_FILE"] = str(ROOT / "tests/data/authority.pem")
certifi.where = lambda: os.environ["SSL_CERT_FILE"]
IS_WORKER = "PYTEST_XDIST_WORKER" in os.environ
if IS_WORKER:  # Python's end would look for garbage in all that is imported, for six seconds, and free what the system frees
    atexit.register(os._exit, 0)

START_SECONDS = 240
SERVERS = pytest.StashKey[ExitStack]()
"""Stops the session's stack."""

SHARED = {
    "stack": (
        "tests/infra/",
        "tests/test_releases.py",
        "tests/test_documented_commands.py",
        "tests/flows/test_stopped.py",
        "tests/serving/test_drain.py",
        "tests/serving/test_scaled.py",
    ),
    "trainer": ("tests/tasks/trainer/",),
    "flows": ("tests/flows/",),
    "loop": ("tests/test_loop.py", "tests/test_loop_with_adapters.py"),
    "engines": (
        "tests/serving/engine/test_engine.py",
        "tests/serving/slots/test_external_vllm.py",
        "tests/tasks/evaluation/test_judge_vllm.py",
    ),
}
"""Files whose tests share servers, processes or caches, longest group first; `make test` runs each group in one process."""


def group_of(nodeid: str) -> str:
    """Return the group of a test; a file outside SHARED is its own group."""
    return next((group for group, paths in SHARED.items() if nodeid.startswith(paths)), nodeid.split("::")[0])


class GroupScheduling(LoadScopeScheduling):
    """Runs each group of tests in one process."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> GroupScheduling:
    return GroupScheduling(config, log)


@pytest.fixture(autouse=True)
def umask() -> Iterator[None]:
    """Give the process its umask back: commands that are processes of their own set it, and some tests call them in this one."""
    before = os.umask(0o022)
    os.umask(before)
    yield
    os.umask(before)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for no garbage while modules are imported, which takes a third of the time, nor later among what they hold."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_unconfigure() -> None:
    """Let Python's end find what it looks for, where it comes to that."""
    if not IS_WORKER:
        gc.unfreeze()


def pytest_addoption(parser: pytest.Parser) -> None:
    add_long_option(parser)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Choose the tests, put the longest groups first, and let tests that depend on the machine's load run once more."""
    choose_long_or_others(config, items)
    rerun_timing_tests(items)
    let_stack_tests_warn(items)
    for item in items:
        if "storage" in getattr(item, "fixturenames", ()) and group_of(item.nodeid) != "stack":
            raise pytest.UsageError(f"{item.nodeid} uses the session's stack: name its file in SHARED (tests/conftest.py)")
    order = [*SHARED]
    items.sort(key=lambda item: order.index(group) if (group := group_of(item.nodeid)) in order else len(order))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Stop the session's stack before the first test of another group: idle servers would take the other tests' time."""
    if group_of(item.nodeid) != "stack":
        item.session.stash.get(SERVERS, ExitStack()).close()


@pytest.fixture(scope="session")
def storage(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """The session's stack with at least its S3 server and MLflow, and the base model registered as champion."""
    with request.session.stash.setdefault(SERVERS, ExitStack()) as servers:
        yield servers.enter_context(stack_.running(tmp_path_factory.mktemp("tabloop"), "s3", "mlflow"))


@pytest.fixture(scope="session")
def orchestrated(storage: Stack) -> Stack:
    """The session's stack with at least storage, Prefect's server and its worker."""
    return stack_.started("prefect", "worker")


@pytest.fixture(scope="session")
def stack(storage: Stack) -> Stack:
    """The session's stack with every part."""
    return stack_.started()


@pytest.fixture
def store(storage: Stack) -> ObjectStore:
    """The session's object store."""
    return ObjectStore.connect(storage.settings.store)


@pytest.fixture(scope="session")
def moto() -> Iterator[str]:
    """The address of moto's server, an S3 server that honours conditional puts, as AWS does."""
    port = free_ports(1)[0]
    # In its own process: importing moto here would slow down every other boto3 client.
    server = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)], stderr=subprocess.DEVNULL
    )
    address = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            with suppress(OSError), urlopen(f"{address}/moto-api/data.json", timeout=START_SECONDS):
                break
            time.sleep(0.2)
        yield address
    finally:
        server.kill()
        server.wait()
