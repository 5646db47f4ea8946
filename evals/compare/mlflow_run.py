"""A comparison as a run in MLflow: parameters, metrics, the report, and a table that its evaluation view shows."""

import json
import math
import os
import re
from typing import TYPE_CHECKING, Any

from evals.compare.comparison import Comparison
from evals.compare.report import page
from infra.http.authorization import mlflow_variables
from infra.settings.schema import Registry
from tasks.evaluation.gate.paired import Difference
from tasks.evaluation.scoring import ScoredModels

if TYPE_CHECKING:
    from mlflow import MlflowClient

TABLE = "eval_results_table.json"
DIGEST = 32
"""Digits of a set's checksum that MLflow shows with a run's datasets."""
MOST_TEXT = 400
"""Characters of a parameter."""


def log_run(settings: Registry, comparison: Comparison, scored: ScoredModels) -> str:
    """Log a comparison to the experiment `MODEL-comparisons` and return the run's id."""
    from mlflow.entities import Dataset, DatasetInput, Metric, Param

    client = connect(settings)
    name = f"{settings.model}-comparisons"
    experiment = client.get_experiment_by_name(name)
    number = experiment.experiment_id if experiment else client.create_experiment(name)
    run = client.create_run(number, run_name=" ".join(comparison.models)[:MOST_TEXT]).info
    now = int(run.start_time)
    metrics = [Metric(key, value, now, 0) for key, value in metrics_of(comparison).items() if math.isfinite(value)]
    params = [Param(key, str(value)[:MOST_TEXT]) for key, value in params_of(comparison).items()]
    client.log_batch(run.run_id, metrics=metrics, params=params)
    sets = scored.sets.items()
    inputs = [DatasetInput(Dataset(name, digest[:DIGEST], "local", json.dumps({"sha256": digest}))) for name, digest in sets]
    client.log_inputs(run.run_id, datasets=inputs)
    client.log_text(run.run_id, page(comparison), "report.html")
    client.log_table(run.run_id, table_of(scored), TABLE)
    client.set_terminated(run.run_id)
    return run.run_id


def connect(settings: Registry) -> "MlflowClient":
    """Return a client of MLflow's tracking server."""
    from mlflow import MlflowClient

    os.environ.update(mlflow_variables(settings))  # its only way to take credentials, beside its URL
    return MlflowClient(tracking_uri=settings.uri)


def params_of(comparison: Comparison) -> dict[str, Any]:
    """Return what the comparison is of."""
    return {
        "models": ", ".join(comparison.models),
        "sets": ", ".join(f"{name} {sha256}" for name, sha256 in comparison.sets.items()),
        "places": comparison.places,
        "files": comparison.files,
        "temperature": comparison.temperature,
        "judge": comparison.calibration.judge,
        **{f"verdict.{number}": verdict.verdict for number, verdict in enumerate(comparison.verdicts.values(), 1)},
    }


def metrics_of(comparison: Comparison) -> dict[str, float]:
    """Return means and differences with their bounds, by model and measure."""
    metrics: dict[str, float] = {}
    for row in comparison.rows:
        for name, cell in zip(comparison.models, row.cells, strict=True):
            metrics |= _bounded(f"{metric_name(name)}.{row.measure.name}", cell.mean)
            if cell.difference:
                metrics |= _bounded(f"{metric_name(name)}.{row.measure.name}.difference", cell.difference)
    return metrics


def metric_name(model: str) -> str:
    """Return a model's name in characters that MLflow allows."""
    return re.sub(r"[^\w.-]+", "_", model).strip("_")


def table_of(scored: ScoredModels) -> dict[str, list[Any]]:
    """Return each place with every model's completion and scores, by column."""
    first = next(iter(scored.scores.values()))
    table: dict[str, list[Any]] = {
        "file": [s.file for s in first.by_position],
        "offset": [s.offset for s in first.by_position],
        "truth": [s.truth for s in first.by_position],
    }
    for name, scores in scored.scores.items():
        table[f"{name}: completion"] = [s.completion for s in scores.by_position]
        table[f"{name}: edit_similarity"] = [s.edit_similarity for s in scores.by_position]
        table[f"{name}: judged"] = [s.judged for s in scores.by_position]
    return table


def _bounded(name: str, value: Difference) -> dict[str, float]:
    return {name: value.estimate, f"{name}.low": value.low, f"{name}.high": value.high}
