"""A Dask cluster is used as it is, and refused with both versions where a package differs."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest
from distributed import Client, LocalCluster

from tasks.steps.runner import OF_WORKERS, first_difference, runner


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    options: dict[str, Any] = {"n_workers": 1, "threads_per_worker": 1, "processes": False, "dashboard_address": None}
    with LocalCluster(host="127.0.0.1", protocol="tcp://", **options) as made:
        yield made


def test_a_cluster_of_the_same_versions_is_used(cluster: LocalCluster) -> None:
    with runner(cluster.scheduler_address) as tasks:
        assert tasks.client.submit(int, "7").result() == 7  # type: ignore[attr-defined]  # of Dask's runner


@pytest.mark.parametrize(
    ("package", "version", "said"), [("polars", "0.1.0", "0.1.0"), ("pyarrow", None, "missing"), ("python", "3.8.0", "3.8.0")]
)
def test_a_worker_of_another_version_is_named_with_both(
    cluster: LocalCluster, package: str, version: str | None, said: str
) -> None:
    with Client(cluster, set_as_default=False) as client:
        found = client.get_versions(packages=list(OF_WORKERS))
    assert first_difference(found) == ""
    other, own = copy.deepcopy(found), found["client"]["packages"][package]
    (address,) = other["workers"]
    other["workers"][address]["packages"][package] = version
    assert first_difference(other).startswith(f"the worker {address} has {package} {said}, this process has {own}. Start the")


def test_a_scheduler_needs_only_what_it_unpacks(cluster: LocalCluster) -> None:
    with Client(cluster, set_as_default=False) as client:
        found = client.get_versions(packages=list(OF_WORKERS))
    found["scheduler"]["packages"]["polars"] = None
    assert first_difference(found) == ""
    found["scheduler"]["packages"]["distributed"] = "2020.1.0"
    assert first_difference(found).startswith("the scheduler has distributed 2020.1.0, this process has ")
