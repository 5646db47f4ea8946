"""prefect.yaml: every deployment is a flow of flows/, in the settings' work pool, one run at a time."""

import importlib
import inspect
import re
from pathlib import Path

import pytest
import yaml
from prefect.utilities.callables import parameter_schema

from infra.settings import DEMO, ROOT, load
from infra.stack import orchestration
from infra.stack.parts import clients

UPKEEP = ("retention", "compaction")
DECLARED = yaml.safe_load((ROOT / "prefect.yaml").read_text())


@pytest.mark.parametrize("deployment", DECLARED["deployments"], ids=lambda d: d["name"])
def test_a_deployment_has_its_flow_its_pool_its_limit_and_its_schedule(deployment) -> None:
    path, name = deployment["entrypoint"].split(":")
    flow = getattr(importlib.import_module(path.removesuffix(".py").replace("/", ".")), name)
    assert flow.name == deployment["name"]
    assert deployment["work_pool"]["name"] == "{{ $DEPLOY_WORK_POOL }}"
    assert set(deployment["work_pool"]) == {"name"}, "no run asks for GPUs"
    assert deployment["concurrency_limit"]["limit"] == 1
    scheduled = deployment["name"] in ("cycle", "experiment", *UPKEEP)
    assert bool(deployment.get("schedules")) == scheduled
    assert deployment["concurrency_limit"]["collision_strategy"] == ("CANCEL_NEW" if scheduled else "ENQUEUE")


@pytest.mark.parametrize(("name", "active"), [("retention", False), ("compaction", True)])
def test_only_the_schedule_that_removes_data_is_inactive_and_dry_runs_are_the_default(name: str, active: bool) -> None:
    (deployment,) = (d for d in DECLARED["deployments"] if d["name"] == name)
    (schedule,) = deployment["schedules"]
    assert (schedule.get("active", True), schedule["parameters"]) == (active, {"dry_run": False})
    flow = getattr(importlib.import_module(f"flows.{name}"), name)
    assert inspect.signature(flow.fn).parameters["dry_run"].default is True


def test_every_variable_of_the_file_is_set_for_prefects_command() -> None:
    named = re.findall(r"{{ \$(\w+) }}", (ROOT / "prefect.yaml").read_text())
    assert set(named) == set(orchestration.variables(load(DEMO, {}))) <= set(clients(load(DEMO, {})))


def test_the_file_names_no_directory_of_this_machine() -> None:
    assert str(Path.home()) not in (ROOT / "prefect.yaml").read_text()
    assert DECLARED["pull"] == [{"prefect.deployments.steps.set_working_directory": {"directory": "."}}]


@pytest.mark.parametrize("name", ["promote", "rollback"])
@pytest.mark.parametrize("version", [3, "3"])
def test_a_version_may_be_a_number_or_text(name: str, version: int | str) -> None:
    """Prefect reads `--param version=3` as a number."""
    flow = getattr(importlib.import_module("flows.move"), name)
    assert flow.validate_parameters({"version": version})["version"] == version
    schema = parameter_schema(flow.fn).model_dump_for_openapi()
    assert {"integer", "string"} == {kind["type"] for kind in schema["properties"]["version"]["anyOf"]}
