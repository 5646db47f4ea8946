"""A cycle's run that trains by a Job of Kubernetes shows in Prefect what it waits for, and knows whether it was cancelled."""

import time
from pathlib import Path
from uuid import UUID

import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run
from prefect.states import Cancelling

from infra.settings import Settings
from infra.settings.training import Train
from infra.storage import cycle_progress
from tasks.steps import training_job, transaction
from tasks.steps.context import Context
from tasks.trainer.cluster import update
from tasks.trainer.cluster.api import ClusterRefused
from tasks.trainer.cluster.order import Order, Stored
from tasks.trainer.cluster.template import Template, WrongTemplate
from tasks.trainer.run import PlaceLost, TrainingFailed
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


@pytest.mark.usefixtures("prefect")
def test_a_template_that_is_gone_leaves_no_job_of_another_and_keeps_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """An order names a file that was deleted since, and the settings the one by which the Job that runs was made."""
    store, order, gone, ended = MemoryStore(), "training/cycle-000012-0123456789/order.json", ["a.json"], list[str]()
    trained = order.replace("order.json", "attempt/checkpoint/config.json")
    store.put_json(order, {"train": {"job": "a.json"}})
    store.put(trained, b"{}")
    context = Context(Settings(train=Train(job=Path("b.json"))), store, MemoryRegistry(v1={}).client, time.time)

    def end(_: MemoryStore, cycle: str, file: Path) -> None:
        if file.name in gone:
            raise WrongTemplate(f"{file}: no such file")
        ended.append(file.name)

    monkeypatch.setattr(update, "end", end)

    @flow
    def discarding(next_one: str) -> None:
        training_job.discard_left(context, next_one) if next_one else training_job.discard(context, "cycle-000012")

    discarding("")
    assert ended == ["b.json"] and not store.exists(trained)
    assert store.exists(order), "it names the template of Jobs that may run"
    discarding("cycle-000012")
    assert ended == ["b.json"], "it is the one to train"
    discarding("cycle-000013")
    assert ended == ["b.json"] * 2 and store.exists(order)
    gone.clear()
    discarding("cycle-000013")
    assert ended == ["b.json"] * 2 + ["a.json", "b.json"] and not store.exists(order)


def test_a_template_that_is_gone_for_ever_is_a_warning_that_a_person_can_end(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    store.put_json("training/cycle-000012-0123456789/order.json", {"train": {"job": "gone.json"}})
    context = Context(Settings(), store, MemoryRegistry(v1={}).client, time.time)
    monkeypatch.setattr(update, "end", lambda *_: Template(Path("gone.json"), 1))
    with pytest.raises(
        RuntimeError, match=r"gone\.json.*`kubectl delete job -l .*; then `aws s3 rm .*training/ .*'cycle-000012-\*'`"
    ):
        training_job._end_jobs(context, "cycle-000012")


@pytest.mark.usefixtures("prefect")
@pytest.mark.parametrize(
    ("error", "counts"), [(PlaceLost("preempted"), False), (ClusterRefused("no Role"), False), (TrainingFailed("exit 1"), True)]
)
def test_a_run_whose_cluster_is_to_blame_uses_up_no_resume(
    error: Exception, counts: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    store, stored = MemoryStore(), Stored(version="1", prefix="v1", sha256="0")
    sealed = Train(job=Path("job.json"), folder=tmp_path)
    context = Context(Settings(train=sealed), store, MemoryRegistry(v1={}).client, time.time)
    wanted = Order(cycle="cycle-000012", samples="samples", samples_sha256="0", parent=stored, train=sealed)

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(update, "train", fail)

    @flow
    def training() -> None:
        transaction.attempt(store, "cycle-000012", str(flow_run.id))
        training_job.train(context, wanted, print)

    with pytest.raises(type(error)):
        training()
    assert bool(list(store.keys("cycles/cycle-000012/attempts/"))) == counts
