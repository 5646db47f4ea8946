"""A run that is cancelled through Prefect's API, on the session's own server and worker: nothing of its trainer is left."""

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from uuid import UUID

import psutil
import pytest
import torch
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import State, StateType
from transformers import AutoModelForCausalLM

from infra import settings as settings_
from infra.stack import orchestration
from infra.store import ObjectStore, to_parquet
from tasks.steps import clients, sealing
from tasks.trainer.run import LOG_NAME
from tests.stack import Stack
from tests.tasks.trainer import models

CYCLE = "endless"
"""No name of a cycle's: the loop does not complete it."""
TRAINS_SECONDS, GONE_SECONDS, ENDED_SECONDS = 240, 30, 90
ENDLESS = {"epochs": 1_000_000, "learning_rate": 1e-9, "logit_scale_rate": 0.0}
MANIFEST = {
    **{"created": 0, "champion": "1", "parent": "1", "since": 0, "until": 0},
    **{"completions": (), "feedback": (), "buckets": {}, "requests": 0},
}


@pytest.fixture
def quiet(orchestrated: Stack) -> Iterator[Stack]:
    """The session's stack, whose schedules begin nothing meanwhile."""
    orchestration.set_schedules(orchestrated.settings, paused=True)
    yield orchestrated
    orchestration.set_schedules(orchestrated.settings, paused=False)


@pytest.fixture
def folder(quiet: Stack, store: ObjectStore) -> Iterator[Path]:
    """Where an update of the base model works that goes on until it is stopped; what it trains on is sealed as a cycle's is."""
    settings = quiet.settings
    base = AutoModelForCausalLM.from_pretrained(settings_.path(settings.model.base), dtype=torch.float32)
    made = [sample.model_copy(update={"policy_version": "1"}) for sample in models.samples(base, 0.0)]
    endless = settings.model_copy(update={"train": settings.train.model_copy(update=ENDLESS)})
    sealing.seal(store, CYCLE, MANIFEST, to_parquet(made), endless)
    found = clients.folder_of(settings, CYCLE)
    yield found
    for process in trainers(found):
        with suppress(psutil.NoSuchProcess):
            process.kill()


@pytest.fixture
def api(quiet: Stack) -> Iterator[SyncPrefectClient]:
    orchestration_settings = quiet.settings.orchestration
    assert orchestration_settings.auth_string
    auth = orchestration_settings.auth_string.get_secret_value()
    with SyncPrefectClient(orchestration_settings.api, auth_string=auth) as client:
        yield client


def begun(api: SyncPrefectClient) -> UUID:
    """A run of the flow that trains, deployed as the cycle is."""
    like = api.read_deployment_by_name("cycle/cycle")
    deployment = api.create_deployment(
        flow_id=api.create_flow_from_name("training"),
        name="training",
        entrypoint="tests/flows/training.py:training",
        pull_steps=like.pull_steps,
        work_pool_name=like.work_pool_name,
    )
    return api.create_flow_run_from_deployment(deployment, parameters={"cycle": CYCLE}).id


def trainers(folder: Path) -> set[psutil.Process]:
    """Processes that have the job of this folder on their command line, torchrun and the workers, and those below them."""
    running = psutil.process_iter(["cmdline"])
    named = [process for process in running if any(str(folder) in word for word in process.info["cmdline"] or ())]
    return {process for top in named for process in (top, *below(top))}


def below(process: psutil.Process) -> list[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        return process.children(recursive=True)
    return []


def alive(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def until(true: Callable[[], bool], seconds: float, told: Callable[[], object]) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"not within {seconds} s: {told()}"
        time.sleep(0.2)


@pytest.mark.stack
def test_a_run_cancelled_through_the_api_takes_its_trainer_along_and_ends_as_cancelled(
    quiet: Stack, folder: Path, api: SyncPrefectClient
) -> None:
    run, log = begun(api), folder / LOG_NAME

    def state() -> State:
        found = api.read_flow_run(run).state
        assert found
        return found

    until(lambda: log.exists() and "step 2:" in log.read_text(), TRAINS_SECONDS, state)
    started = trainers(folder)
    assert len(started) >= 1 + quiet.settings.train.processes, "torchrun and its workers"
    assert state().is_running()

    def gone() -> bool:
        return not any(map(alive, started))

    def gone_when_asked() -> bool:
        api.set_flow_run_state(run, State(type=StateType.CANCELLING), force=True)
        with suppress(AssertionError):
            until(gone, GONE_SECONDS, lambda: started)
        return gone()

    # Asked again, as a person would: a server whose SQLite stood still for a minute once told nobody of the first time.
    until(gone_when_asked, 3 * GONE_SECONDS, lambda: started)
    until(lambda: state().is_final(), ENDED_SECONDS, state)
    assert state().is_cancelled(), state()
    assert not trainers(folder), "nothing was started again"
