"""Log a cycle's run in MLflow while it trains: it starts before the first step and gets each step's metrics.

MLflow never stops a training: a thread sends the metrics, and metrics that were not sent are logged at the end of the cycle
(register.py). Its client takes seconds to import, so it is imported inside the functions.
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

from infra.http.authorization import mlflow_variables
from infra.settings.schema import Registry
from tasks.trainer.job import StepMetrics

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Metric

KIND = ("mlflow.experimentKind", "custom_model_development")
"""Tag of an experiment: its page opens on runs and models, and not on MLflow's pages for traces of language models."""
CYCLE_RUN_TAG = "tabloop.cycle"
REASON_TAG = "reason"
REASON_CHARACTERS = 2000
STEP = re.compile(r"^step \d+ of \d+: (\{.*\})$")
"""The line that the trainer prints for each step."""
EVERY_STEP = "loss"
"""A figure of every step: by it a step is known to be logged."""
NONE_AT_ZERO = ("tokens", "drawn_tokens", "settled_tokens", "efficiency")
"""Figures that are 0 where a step has none; no other is logged there."""
BATCH = 1000
"""Metrics per request to MLflow."""
LAST_SECONDS = 5.0
"""Seconds that a finished training waits for its last steps to be logged."""
PATIENCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_TIMEOUT": "20"}
"""Retries of MLflow's client, which reads them from the environment only; its defaults wait 4 minutes for a server that is
down."""


class _End(NamedTuple):
    """The last item of the queue."""

    status: str = ""
    """Status of the run; "" if it continues with the rest of the cycle."""
    reason: str = ""


def connect(settings: Registry) -> "MlflowClient":
    """Return a client of MLflow's tracking server."""
    from mlflow import MlflowClient

    for name, value in PATIENCE.items():
        os.environ.setdefault(name, value)
    os.environ.update(mlflow_variables(settings))  # its only way to take credentials, beside its URL
    return MlflowClient(tracking_uri=settings.uri)


def find(client: "MlflowClient", model: str, cycle: str) -> str | None:
    """Return the id of a cycle's run; None if it has none."""
    experiment = client.get_experiment_by_name(model)
    runs = (
        client.search_runs([experiment.experiment_id], f"tags.`{CYCLE_RUN_TAG}` = '{cycle}'", max_results=1) if experiment else []
    )
    return runs[0].info.run_id if runs else None


def run_of(client: "MlflowClient", model: str, cycle: str) -> str:
    """Return the id of a cycle's run; create the run if there is none."""
    if run := find(client, model, cycle):
        return run
    experiment = client.get_experiment_by_name(model)
    if experiment and experiment.tags.get(KIND[0]) != KIND[1]:
        client.set_experiment_tag(experiment.experiment_id, *KIND)
    number = experiment.experiment_id if experiment else client.create_experiment(model, tags=dict([KIND]))
    return client.create_run(number, run_name=cycle, tags={CYCLE_RUN_TAG: cycle}).info.run_id


def log_steps(client: "MlflowClient", run: str, steps: Sequence[StepMetrics], began: float) -> None:
    """Log those steps of an update that its run does not hold yet; `began`, in seconds since 1970, is when it started."""
    known, metrics = _logged_steps(client, run), []
    for number, step in enumerate(steps):
        began += step.seconds
        metrics += _metrics(number, step, began) if number not in known else []
    _log(client, run, metrics)


def end(client: "MlflowClient", run: str, status: str, reason: str) -> None:
    """End a run as FINISHED, FAILED or KILLED, and say why."""
    client.set_tag(run, REASON_TAG, reason[:REASON_CHARACTERS])
    client.set_terminated(run, status)


def give_up(settings: Registry, cycle: str, reason: str) -> None:
    """End the run of an abandoned cycle, if it has one, as failed, with the reason."""
    client = connect(settings)
    if run := find(client, settings.model, cycle):
        end(client, run, "FAILED", reason)


@contextmanager
def log_steps_live(
    settings: Registry, cycle: str, say: Callable[[str], None], warn: Callable[[str], None]
) -> Iterator[Callable[[str], None]]:
    """Yield a function that takes the trainer's lines, passes them to `say`, and logs its steps to the cycle's run.

    Without an exception the run stays open until its cycle ends. An existing run continues, each step once.
    """
    arrived: SimpleQueue[Metric | _End] = SimpleQueue()
    try:
        client = connect(settings)
        run = run_of(client, settings.model, cycle)
        client.update_run(run, status="RUNNING")
        known = _logged_steps(client, run)
    except Exception as error:
        warn(f"MLflow: {error}; the steps are logged at the end of the cycle")
        known, sender = set(), None
    else:
        sender = threading.Thread(target=_send, args=(client, run, arrived, warn), daemon=True)
        sender.start()
    count = 0

    def take(line: str) -> None:
        nonlocal count
        say(line)
        if sender and (match := STEP.match(line)):
            if count not in known:
                for metric in _metrics(count, StepMetrics.model_validate_json(match[1]), time.time()):
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
            metrics, last = _take_arrived(arrived)
            _log(client, run, metrics)
        if last.status:
            end(client, run, last.status, last.reason)
    except Exception as error:
        warn(f"MLflow: {error}; the missing steps are logged at the end of the cycle")


def _take_arrived(arrived: "SimpleQueue[Metric | _End]") -> "tuple[list[Metric], _End | None]":
    """Wait for metrics; return all that arrived, and the end if it did."""
    metrics: list[Metric] = []
    while not metrics or not arrived.empty():
        if isinstance(item := arrived.get(), _End):
            return metrics, item
        metrics.append(item)
    return metrics, None


def _logged_steps(client: "MlflowClient", run: str) -> set[int]:
    """The numbers of the steps in a run."""
    return {metric.step for metric in client.get_metric_history(run, f"step.{EVERY_STEP}")}


def _metrics(number: int, step: StepMetrics, seconds: float) -> "list[Metric]":
    """Return a step's figures; a term of the objective that is switched off has none, and draws no chart."""
    from mlflow.entities import Metric

    values: dict[str, Any] = step.model_dump()
    figures = {k: float(v) for k, v in values.items() if v is not None and math.isfinite(v) and (v or k not in NONE_AT_ZERO)}
    return [Metric(f"step.{name}", value, int(seconds * 1000), number) for name, value in figures.items()]


def _log(client: "MlflowClient", run: str, metrics: "Sequence[Metric]") -> None:
    for start in range(0, len(metrics), BATCH):
        client.log_batch(run, metrics=metrics[start : start + BATCH])
