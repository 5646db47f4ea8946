"""Cancel a run through Prefect's API, on the session's server and worker: all processes of its trainer end."""

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from uuid import UUID, uuid4

import psutil
import pytest
import torch
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import State, StateType
from transformers import AutoModelForCausalLM

from infra import settings as settings_
from infra.storage.store import ObjectStore, to_parquet
from tasks.steps import context as contexts
from tasks.steps import transaction
from tasks.trainer.run import LOG_NAME
from tests.stack import Stack
from tests.tasks.trainer import models

TRAIN_SECONDS, STOP_SECONDS, END_SECONDS = 240, 30, 90
ENDLESS = {
    **{"actions": ("written", "served"), "surrogate_weight": 1.0},
    **{"max_kl": 0.0, "epochs": 100_000, "learning_rate": 1e-9},
}
MANIFEST = {
    **{"created": 0, "champion": "1", "parent": "1", "since": 0, "until": 0},
    **{"completions": (), "feedback": (), "buckets": {}, "requests": 0},
}


@pytest.fixture
def folder(orchestrated: Stack, store: ObjectStore) -> Iterator[Path]:
    """The working folder of an endless update of the base model, whose samples are sealed as those of a cycle.

    Its name has not the form of a cycle's, so the loop does not complete it; a second attempt of the test has another.
    """
    settings, cycle = orchestrated.settings, f"endless-{uuid4().hex}"
    base = AutoModelForCausalLM.from_pretrained(settings_.path(settings.model.base), dtype=torch.float32)
    samples = [sample.model_copy(update={"policy_version": "1"}) for sample in models.samples(base, 0.0)]
    endless = settings.model_copy(update={"train": settings.train.model_copy(update=ENDLESS)})
    transaction.seal(store, cycle, MANIFEST, to_parquet(samples), endless)
    folder = contexts.connect(settings).folder(cycle)
    yield folder
    for process in trainers(folder):
        with suppress(psutil.NoSuchProcess):
            process.kill()


@pytest.fixture
def api(orchestrated: Stack) -> Iterator[SyncPrefectClient]:
    orchestration_settings = orchestrated.settings.orchestration
    assert orchestration_settings.auth_string
    auth = orchestration_settings.auth_string.get_secret_value()
    with SyncPrefectClient(orchestration_settings.api, auth_string=auth) as client:
        yield client


def start_training(api: SyncPrefectClient, cycle: str) -> UUID:
    """Deploy the flow `training` as the cycle is deployed, and start a run of it."""
    shipped = api.read_deployment_by_name("cycle/cycle")
    deployment = api.create_deployment(
        flow_id=api.create_flow_from_name("training"),
        name="training",
        entrypoint="tests/flows/training.py:training",
        pull_steps=shipped.pull_steps,
        work_pool_name=shipped.work_pool_name,
    )
    return api.create_flow_run_from_deployment(deployment, parameters={"cycle": cycle}).id


def trainers(folder: Path) -> set[psutil.Process]:
    """Return torchrun and the workers of the job in this folder, by their command lines, with all their child processes."""
    running = psutil.process_iter(["cmdline"])
    trainers = [process for process in running if any(str(folder) in word for word in process.info["cmdline"] or ())]
    return {process for trainer in trainers for process in (trainer, *children_of(trainer))}


def children_of(process: psutil.Process) -> list[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        return process.children(recursive=True)
    return []


def alive(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def wait_for(condition: Callable[[], bool], seconds: float, details: Callable[[], object]) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {details()}"
        time.sleep(0.2)


@pytest.mark.stack
@pytest.mark.timing(reason="Prefect's server answers late on a busy machine")
def test_a_run_cancelled_through_the_api_ends_as_cancelled_with_its_trainer(
    orchestrated: Stack, folder: Path, api: SyncPrefectClient
) -> None:
    run, log = start_training(api, folder.name), folder / LOG_NAME

    def state() -> State:
        state = api.read_flow_run(run).state
        assert state
        return state

    wait_for(lambda: log.exists() and "step 2 of" in log.read_text(), TRAIN_SECONDS, state)
    started = trainers(folder)
    assert len(started) >= 1 + orchestrated.settings.train.processes, "torchrun and its workers"
    assert state().is_running()

    def stopped() -> bool:
        return not any(map(alive, started))

    def stopped_after_cancelling() -> bool:
        api.set_flow_run_state(run, State(type=StateType.CANCELLING), force=True)
        with suppress(AssertionError):
            wait_for(stopped, STOP_SECONDS, lambda: started)
        return stopped()

    # Cancel again, as a person would: a server whose SQLite was blocked for a minute once lost the first request.
    wait_for(stopped_after_cancelling, 3 * STOP_SECONDS, lambda: started)
    wait_for(lambda: state().is_final(), END_SECONDS, state)
    assert state().is_cancelled(), state()
    assert not trainers(folder), "no trainer was started again"
