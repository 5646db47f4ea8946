"""A cycle's run in a real MLflow, on SQLite: it has each step once, also after a kill, and the status of the training."""

import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from mlflow import MlflowClient

from infra.settings.schema import Registry
from tasks.trainer.job import StepMetrics
from tasks.versions import tracking
from tests.tasks.made import Killed

pytestmark = pytest.mark.stack

CYCLE = "cycle-000001"
STEPS = [
    StepMetrics.model_validate(dict.fromkeys(StepMetrics.model_fields, 0) | {"loss": 0.5 - number, "seconds": 2.0})
    for number in range(3)
]
LINES = [
    "step 2 refused: the loss is not finite",
    *(f"step {1 + 2 * n} of 9: {s.model_dump_json()}" for n, s in enumerate(STEPS)),
]


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> str:
    uri = f"sqlite:///{tmp_path_factory.mktemp('mlflow')}/mlflow.db"
    MlflowClient(tracking_uri=uri).search_experiments()  # creates the tables
    return uri


@pytest.fixture
def settings(database: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Registry:
    """Return settings with an experiment for each test."""
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    return Registry(model=request.node.name).model_copy(update={"uri": database})


def discard(line: str) -> None:
    """Discard a line."""


def fail_on_warning(line: str) -> None:
    """Fail the test with the line."""
    raise AssertionError(line)


def logged(settings: Registry) -> tuple[str, dict[str, str], Counter[int]]:
    """Return status and tags of the only run, and how often it has each step."""
    client = tracking.connect(settings)
    experiment = client.get_experiment_by_name(settings.model)
    assert experiment
    (run,) = client.search_runs([experiment.experiment_id])
    return run.info.status, run.data.tags, Counter(m.step for m in client.get_metric_history(run.info.run_id, "step.loss"))


def wait_for_steps(settings: Registry, steps: int) -> bool:
    """Wait until MLflow has so many steps; return whether it got them."""
    for _ in range(100):
        if len(logged(settings)[2]) == steps:
            return True
        time.sleep(0.05)
    return False


def train(settings: Registry, steps: int, action: Callable[[], None] = lambda: None) -> list[str]:
    """Report the first steps of an update, wait until MLflow has them, and call `action`; return the lines that are passed on."""
    passed_on: list[str] = []
    with tracking.log_steps_live(settings, CYCLE, passed_on.append, fail_on_warning) as report:
        for line in LINES[: 1 + steps]:
            report(line)
        assert wait_for_steps(settings, steps), "steps are logged during the training"
        action()
    return passed_on


def test_steps_are_logged_during_training_and_the_run_stays_open(settings: Registry) -> None:
    before = time.time() * 1000
    assert train(settings, 3) == LINES, "all lines are passed on to Prefect"
    status, _, steps = logged(settings)
    assert (status, steps) == ("RUNNING", {0: 1, 1: 1, 2: 1}), "refused steps have no number"
    client = tracking.connect(settings)
    history = client.get_metric_history(tracking.run_of(client, settings.model, CYCLE), "step.loss")
    assert [m.value for m in history] == [0.5, -0.5, -1.5]
    assert all(before <= m.timestamp <= time.time() * 1000 for m in history)


def test_a_chart_has_its_zeros_and_what_a_step_has_none_of_draws_none(settings: Registry) -> None:
    client = tracking.connect(settings)
    run = tracking.run_of(client, settings.model, CYCLE)
    found = StepMetrics.model_validate(STEPS[0].model_dump() | {"served_kl": None, "tokens": 9})
    tracking.log_steps(client, run, [found], time.time())
    figures = client.get_run(run).data.metrics
    assert figures["step.clip_fraction"] == figures["step.kl"] == 0.0 and figures["step.tokens"] == 9
    assert not figures.keys() & {"step.served_kl", "step.drawn_tokens", "step.settled_tokens", "step.efficiency"}


def test_mlflow_opens_an_experiment_on_its_runs_and_models(settings: Registry) -> None:
    client = tracking.connect(settings)
    client.create_experiment(settings.model)  # by an earlier release, without the tag
    train(settings, 1)
    experiment = client.get_experiment_by_name(settings.model)
    assert experiment and experiment.tags["mlflow.experimentKind"] == "custom_model_development"


@pytest.mark.parametrize(("error", "status"), [(ValueError("no memory"), "FAILED"), (Killed("cancelled"), "KILLED")])
def test_a_stopped_and_repeated_training_has_one_run_and_each_step_once(
    settings: Registry, error: BaseException, status: str
) -> None:
    def stop() -> None:
        raise error

    with pytest.raises(type(error)):
        train(settings, 2, stop)
    logged_status, tags, _ = logged(settings)
    assert (logged_status, tags[tracking.REASON_TAG]) == (status, f"{type(error).__name__}: {error}")
    train(settings, 3)
    logged_status, _, steps = logged(settings)
    assert (logged_status, steps) == ("RUNNING", {0: 1, 1: 1, 2: 1})


def test_a_cycle_without_a_candidate_ends_its_run_with_the_reason(settings: Registry) -> None:
    train(settings, 1)
    tracking.give_up(settings, CYCLE, "the update was refused: all advantages are 0")
    status, tags, _ = logged(settings)
    assert (status, tags[tracking.REASON_TAG]) == ("FAILED", "the update was refused: all advantages are 0")


def test_giving_up_a_cycle_that_never_trained_makes_no_run(settings: Registry) -> None:
    tracking.give_up(settings, CYCLE, "abandoned")
    assert tracking.find(tracking.connect(settings), settings.model, CYCLE) is None


def test_steps_that_mlflow_missed_are_logged_at_the_end(settings: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    log_batch, warning, calls = MlflowClient.log_batch, threading.Event(), [0]

    def fail_after_first_call(self: MlflowClient, *arguments: Any, **keywords: Any) -> object:
        calls[0] += 1
        if calls[0] > 1:
            raise ConnectionError("no answer")
        return log_batch(self, *arguments, **keywords)

    with monkeypatch.context() as patch, tracking.log_steps_live(settings, CYCLE, discard, lambda line: warning.set()) as report:
        patch.setattr(MlflowClient, "log_batch", fail_after_first_call)
        report(LINES[1])
        assert wait_for_steps(settings, 1)
        report(LINES[2])
        assert warning.wait(60)
        report(LINES[3])
    assert set(logged(settings)[2]) == {0}
    client = tracking.connect(settings)
    for _ in range(2):
        tracking.log_steps(client, tracking.run_of(client, settings.model, CYCLE), STEPS, time.time())
        assert logged(settings)[2] == {0: 1, 1: 1, 2: 1}


def test_without_mlflow_lines_are_passed_on_with_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    passed_on: list[str] = []
    warnings: list[str] = []
    with tracking.log_steps_live(Registry(uri="http://127.0.0.1:1"), CYCLE, passed_on.append, warnings.append) as report:
        report(LINES[1])
    assert passed_on == [LINES[1]]
    assert len(warnings) == 1 and "127.0.0.1" in warnings[0]
