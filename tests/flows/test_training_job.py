"""A cycle's run that trains by a Job of Kubernetes shows in Prefect what it waits for, and knows whether it was cancelled."""

import time
from uuid import UUID

import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run
from prefect.states import Cancelling

from infra.settings import Settings
from infra.storage import cycle_progress
from tasks.steps import training_job
from tasks.steps.context import Context
from tests.tasks.made import MemoryRegistry, MemoryStore

WORDS = "0/4 nodes are available: 4 Insufficient nvidia.com/gpu."


def own_state() -> State:
    with get_client(sync_client=True) as client:
        state = client.read_flow_run(UUID(flow_run.id)).state
    assert state
    return state


@pytest.mark.usefixtures("prefect")
def test_a_run_that_waits_for_gpus_keeps_running_under_that_name_with_the_schedulers_words() -> None:
    store = MemoryStore()
    context = Context(Settings(), store, MemoryRegistry(v1={}).client, time.time)
    seen: list[tuple[str, str | None, bool]] = []
    stages: list[tuple[str, bool]] = []

    @flow
    def waiting() -> None:
        take = training_job.waiting_state(context)
        for words in (WORDS, ""):
            take(words)
            state = own_state()
            seen.append((str(state.name), state.message, state.is_running()))
            progress = cycle_progress.read(store)
            assert progress
            stages.append((progress.stage, bool(progress.awaits_gpus)))

    waiting()
    assert [(name, runs) for name, _, runs in seen] == [("WaitingForGPUs", True), ("Running", True)]
    assert seen[0][1] == WORDS
    assert stages == [("waiting for GPUs", True), ("train", False)]


@pytest.mark.usefixtures("prefect")
def test_a_run_knows_whether_it_is_cancelled_or_its_worker_stops() -> None:
    found: list[bool] = []

    @flow
    def stopped() -> None:
        found.append(training_job.cancelled())
        with get_client(sync_client=True) as client:
            client.set_flow_run_state(UUID(flow_run.id), Cancelling(), force=True)
        found.append(training_job.cancelled())

    stopped(return_state=True)
    assert found == [False, True]
    assert training_job.cancelled(), "by hand"
