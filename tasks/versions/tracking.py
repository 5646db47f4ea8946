"""A cycle's run in MLflow while it trains: begun before the first step, and told each step's metrics as they come.

MLflow stops no training and hardly delays one: the metrics go out from a thread of their own, and what did not arrive is logged
with the rest of the cycle (register.py). Its client takes seconds to import, so it is imported inside the functions.
"""

import math
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple

from infra.settings.schema import Registry
from tasks.trainer.job import StepMetrics

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Metric

CYCLE_RUN_TAG = "tabloop.cycle"
REASON_TAG = "reason"
REASON_CHARACTERS = 2000
STEP = re.compile(r"^step \d+: (\{.*\})$")
"""A line of the trainer's that tells of a step it took (ppo.py)."""
BATCH = 1000
"""Metrics that MLflow takes at once."""
LAST_SECONDS = 5.0
"""A training that is over waits so long for its last steps to be logged."""
PATIENCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_TIMEOUT": "20"}
"""MLflow's own would be 4 minutes for a server that is down; its client is told by the environment alone."""


class _End(NamedTuple):
    """Nothing comes after it."""

    status: str = ""
    """Of the run; empty: it goes on with the rest of the cycle."""
    reason: str = ""


def connect(settings: Registry) -> "MlflowClient":
    """A client of MLflow's tracking."""
    from mlflow import MlflowClient

    for name, value in PATIENCE.items():
        os.environ.setdefault(name, value)
    return MlflowClient(tracking_uri=settings.uri)


def find(client: "MlflowClient", model: str, cycle: str) -> str | None:
    """The id of a cycle's run; none where it has none."""
    experiment = client.get_experiment_by_name(model)
    runs = (
        client.search_runs([experiment.experiment_id], f"tags.`{CYCLE_RUN_TAG}` = '{cycle}'", max_results=1) if experiment else []
    )
    return runs[0].info.run_id if runs else None


def run_of(client: "MlflowClient", model: str, cycle: str) -> str:
    """The id of a cycle's one run, which is made where there is none."""
    if found := find(client, model, cycle):
        return found
    experiment = client.get_experiment_by_name(model)
    number = experiment.experiment_id if experiment else client.create_experiment(model)
    return client.create_run(number, run_name=cycle, tags={CYCLE_RUN_TAG: cycle}).info.run_id


def log_steps(client: "MlflowClient", run: str, steps: Sequence[StepMetrics], began: float) -> None:
    """Log those steps of an update that its run does not hold yet; `began`, in seconds since 1970, is when it started."""
    known, metrics = _known(client, run), []
    for number, step in enumerate(steps):
        began += step.seconds
        metrics += _metrics(number, step, began) if number not in known else []
    _log(client, run, metrics)


def end(client: "MlflowClient", run: str, status: str, reason: str) -> None:
    """End a run as FINISHED, FAILED or KILLED, and say why."""
    client.set_tag(run, REASON_TAG, reason[:REASON_CHARACTERS])
    client.set_terminated(run, status)


def give_up(settings: Registry, cycle: str, reason: str) -> None:
    """The cycle has come to nothing: its run, where it has one, ends as failed, with the reason."""
    client = connect(settings)
    if run := find(client, settings.model, cycle):
        end(client, run, "FAILED", reason)


@contextmanager
def log_steps_live(
    settings: Registry, cycle: str, say: Callable[[str], None], warn: Callable[[str], None]
) -> Iterator[Callable[[str], None]]:
    """Takes the trainer's lines while it trains, passes them on to `say`, and logs the steps among them to the cycle's run.

    Without an exception the run is left running: it ends with its cycle. A run that was begun before goes on, each step once.
    """
    arrived: SimpleQueue[Metric | _End] = SimpleQueue()
    try:
        client = connect(settings)
        run = run_of(client, settings.model, cycle)
        client.update_run(run, status="RUNNING")
        known = _known(client, run)
    except Exception as error:
        warn(f"MLflow: {error}; the steps are logged when the cycle is")
        known, sender = set(), None
    else:
        sender = threading.Thread(target=_send, args=(client, run, arrived, warn), daemon=True)
        sender.start()
    count = 0

    def take(line: str) -> None:
        nonlocal count
        say(line)
        if sender and (found := STEP.match(line)):
            if count not in known:
                for metric in _metrics(count, StepMetrics.model_validate_json(found[1]), time.time()):
                    arrived.put(metric)
            count += 1

    last = _End()
    try:
        yield take
    except BaseException as error:
        last = _End("FAILED" if isinstance(error, Exception) else "KILLED", f"{type(error).__name__}: {error}")
        raise
    finally:
        if sender:
            arrived.put(last)
            sender.join(LAST_SECONDS)


def _send(client: "MlflowClient", run: str, arrived: "SimpleQueue[Metric | _End]", warn: Callable[[str], None]) -> None:
    last: _End | None = None
    try:
        while not last:
            metrics, last = _taken(arrived)
            _log(client, run, metrics)
        if last.status:
            end(client, run, last.status, last.reason)
    except Exception as error:
        warn(f"MLflow: {error}; the steps that it did not get are logged when the cycle is")


def _taken(arrived: "SimpleQueue[Metric | _End]") -> "tuple[list[Metric], _End | None]":
    """All that has arrived, once there is something, and the end where it was among it."""
    metrics: list[Metric] = []
    while not metrics or not arrived.empty():
        if isinstance(found := arrived.get(), _End):
            return metrics, found
        metrics.append(found)
    return metrics, None


def _known(client: "MlflowClient", run: str) -> set[int]:
    """Numbers of the steps that a run holds."""
    return {metric.step for metric in client.get_metric_history(run, "step.loss")}


def _metrics(number: int, step: StepMetrics, seconds: float) -> "list[Metric]":
    from mlflow.entities import Metric

    figures: dict[str, Any] = step.model_dump()
    return [Metric(f"step.{k}", float(v), int(seconds * 1000), number) for k, v in figures.items() if math.isfinite(v)]


def _log(client: "MlflowClient", run: str, metrics: "Sequence[Metric]") -> None:
    for start in range(0, len(metrics), BATCH):
        client.log_batch(run, metrics=metrics[start : start + BATCH])
