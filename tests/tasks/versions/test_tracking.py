"""A cycle's run in a real MLflow, on SQLite, while it trains: each step once, whatever is killed, and how it ended."""

import threading
import time
from collections import Counter
from collections.abc import Callable

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
LINES = ["step 2 refused: the loss is not finite", *(f"step {1 + 2 * n}: {s.model_dump_json()}" for n, s in enumerate(STEPS))]


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> str:
    uri = f"sqlite:///{tmp_path_factory.mktemp('mlflow')}/mlflow.db"
    MlflowClient(tracking_uri=uri).search_experiments()  # makes its tables
    return uri


@pytest.fixture
def settings(database: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Registry:
    """An experiment of each test's own."""
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    return Registry(uri=database, model=request.node.name)


def nobody(line: str) -> None:
    """Hears nothing."""


def unheard(line: str) -> None:
    raise AssertionError(line)


def logged(settings: Registry) -> tuple[str, dict[str, str], Counter[int]]:
    """Status and tags of the one run, and how often each step stands in it."""
    client = tracking.connect(settings)
    experiment = client.get_experiment_by_name(settings.model)
    (run,) = client.search_runs([experiment.experiment_id])
    return run.info.status, run.data.tags, Counter(m.step for m in client.get_metric_history(run.info.run_id, "step.loss"))


def arrived(settings: Registry, steps: int) -> bool:
    for _ in range(100):
        if len(logged(settings)[2]) == steps:
            return True
        time.sleep(0.05)
    return False


def train(settings: Registry, steps: int, then: Callable[[], None] = lambda: None) -> list[str]:
    """Tell the first steps of an update, wait until MLflow has them, and do something; what was passed on."""
    said: list[str] = []
    with tracking.log_steps_live(settings, CYCLE, said.append, unheard) as say:
        for line in LINES[: 1 + steps]:
            say(line)
        assert arrived(settings, steps), "while it trains"
        then()
    return said


def test_steps_are_logged_while_it_trains_and_the_run_stays_open(settings: Registry) -> None:
    before = time.time() * 1000
    assert train(settings, 3) == LINES, "Prefect hears all of it"
    status, _, steps = logged(settings)
    assert (status, steps) == ("RUNNING", {0: 1, 1: 1, 2: 1}), "numbered by the steps that were taken"
    client = tracking.connect(settings)
    found = client.get_metric_history(tracking.run_of(client, settings.model, CYCLE), "step.loss")
    assert [m.value for m in found] == [0.5, -0.5, -1.5]
    assert all(before <= m.timestamp <= time.time() * 1000 for m in found)


@pytest.mark.parametrize(("error", "status"), [(ValueError("no memory"), "FAILED"), (Killed("cancelled"), "KILLED")])
def test_a_training_that_is_stopped_and_tried_again_has_one_run_and_each_step_once(
    settings: Registry, error: BaseException, status: str
) -> None:
    def stop() -> None:
        raise error

    with pytest.raises(type(error)):
        train(settings, 2, stop)
    found, tags, _ = logged(settings)
    assert (found, tags[tracking.REASON_TAG]) == (status, f"{type(error).__name__}: {error}")
    train(settings, 3)
    found, _, steps = logged(settings)
    assert (found, steps) == ("RUNNING", {0: 1, 1: 1, 2: 1})


def test_a_cycle_that_comes_to_nothing_ends_its_run_with_the_reason(settings: Registry) -> None:
    train(settings, 1)
    tracking.give_up(settings, CYCLE, "the update was refused: all advantages are 0")
    status, tags, _ = logged(settings)
    assert (status, tags[tracking.REASON_TAG]) == ("FAILED", "the update was refused: all advantages are 0")


def test_a_cycle_that_never_trained_is_given_up_without_a_run(settings: Registry) -> None:
    tracking.give_up(settings, CYCLE, "abandoned")
    assert tracking.find(tracking.connect(settings), settings.model, CYCLE) is None


def test_what_mlflow_did_not_get_is_logged_at_the_end(settings: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    log_batch, warned, calls = MlflowClient.log_batch, threading.Event(), [0]

    def breaks_down(self: MlflowClient, *given: object, **named: object) -> object:
        calls[0] += 1
        if calls[0] > 1:
            raise ConnectionError("no answer")
        return log_batch(self, *given, **named)

    with monkeypatch.context() as patch, tracking.log_steps_live(settings, CYCLE, nobody, lambda said: warned.set()) as say:
        patch.setattr(MlflowClient, "log_batch", breaks_down)
        say(LINES[1])
        assert arrived(settings, 1)
        say(LINES[2])
        assert warned.wait(5)
        say(LINES[3])
    assert set(logged(settings)[2]) == {0}
    client = tracking.connect(settings)
    for _ in range(2):
        tracking.log_steps(client, tracking.run_of(client, settings.model, CYCLE), STEPS, time.time())
        assert logged(settings)[2] == {0: 1, 1: 1, 2: 1}


def test_without_mlflow_it_trains_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    said: list[str] = []
    warned: list[str] = []
    with tracking.log_steps_live(Registry(uri="http://127.0.0.1:1"), CYCLE, said.append, warned.append) as say:
        say(LINES[1])
    assert said == [LINES[1]]
    assert len(warned) == 1 and "127.0.0.1" in warned[0]
