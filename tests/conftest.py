"""Fixtures shared by all tests: the real stack, whole or in part, started on first use."""

from collections.abc import Iterator

import pytest
from hypothesis import settings

from infra.store import ObjectStore
from tests import stack as stack_
from tests.stack import Stack

settings.register_profile("tabloop", deadline=None)  # other load on the machine would exceed it
settings.load_profile("tabloop")


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
