"""Fixtures shared by all tests: the real stack, whole or in part, started on first use."""

from collections.abc import Iterator

import pytest
from hypothesis import settings

from infra.store import ObjectStore
from tests import stack as stack_
from tests.stack import Stack

settings.register_profile("tabloop", deadline=None)  # other load on the machine would exceed it
settings.load_profile("tabloop")


SERVERS = {"storage", "orchestrated", "stack", "store"}
"""Fixtures that share the session's one stack."""
SHARED_ROOMS = ("tests/flows/", "tests/tasks/trainer/")
"""Rooms whose files share what a fixture of the session started."""


@pytest.hookimpl(tryfirst=True)  # xdist reads the groups in its own
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Group what shares started servers, so that each group runs in one of the worker processes of `make test`; longest first."""

    def group(item: pytest.Item) -> str:
        if SERVERS & set(getattr(item, "fixturenames", ())):
            return "stack"
        path = item.nodeid.split("::")[0]
        return next((room for room in SHARED_ROOMS if path.startswith(room)), path)

    order = {"stack": 0, "tests/tasks/trainer/": 1, "tests/flows/": 2}
    for item in items:
        item.add_marker(pytest.mark.xdist_group(group(item)))
    items.sort(key=lambda item: order.get(group(item), len(order)))


@pytest.fixture(scope="session")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """The session's stack with at least its S3 server and MLflow, and the base model registered as champion."""
    with stack_.running(tmp_path_factory.mktemp("tabloop"), "s3", "mlflow") as stack:
        yield stack


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
