"""prefect.yaml: every deployment is a flow of ours, in the pool that the settings name, one run at a time."""

import importlib
from pathlib import Path

import pytest
import yaml

from infra.settings import LOCAL, ROOT, load

DECLARED = yaml.safe_load((ROOT / "prefect.yaml").read_text())


@pytest.mark.parametrize("deployment", DECLARED["deployments"], ids=lambda d: d["name"])
def test_a_deployment(deployment) -> None:
    path, name = deployment["entrypoint"].split(":")
    flow = getattr(importlib.import_module(path.removesuffix(".py").replace("/", ".")), name)
    assert flow.name == deployment["name"]
    assert deployment["work_pool"]["name"] == load(LOCAL, {}).orchestration.work_pool
    assert deployment["concurrency_limit"]["limit"] == 1
    scheduled = deployment["name"] in ("cycle", "experiment")
    assert bool(deployment.get("schedules")) == scheduled
    assert deployment["concurrency_limit"]["collision_strategy"] == ("CANCEL_NEW" if scheduled else "ENQUEUE")


def test_it_names_no_machine() -> None:
    assert str(Path.home()) not in (ROOT / "prefect.yaml").read_text()
    assert DECLARED["pull"] is None
