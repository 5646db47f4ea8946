"""A comparison as a run in MLflow: parameters, metrics, the report, and a table that its evaluation view shows."""

import json
import math
import re
from typing import Any

from evals.compare.comparison import Comparison
from evals.compare.report import page
from infra.settings.schema import Registry
from tasks.evaluation.scoring import ScoredModels
from tasks.versions import tracking

TABLE = "eval_results_table.json"
DIGEST = 32
"""Digits of a set's checksum that MLflow shows with a run's datasets."""
MOST_TEXT = 400
"""Characters of a parameter."""


def log_run(settings: Registry, comparison: Comparison, scored: ScoredModels) -> str:
    """Log a comparison to the experiment `MODEL-comparisons` and return the run's id."""
    from mlflow.entities import Dataset, DatasetInput, Metric, Param

    client = tracking.connect(settings)
    name = f"{settings.model}-comparisons"
    experiment = client.get_experiment_by_name(name)
    number = experiment.experiment_id if experiment else client.create_experiment(name)
    run = client.create_run(number, run_name=" ".join(comparison.models)[:MOST_TEXT]).info
    now = int(run.start_time)
    metrics = [Metric(key, value, now, 0) for key, value in metrics_of(comparison).items() if math.isfinite(value)]
    named = {
        "models": ", ".join(comparison.models),
        "sets": ", ".join(f"{name} {sha256}" for name, sha256 in comparison.sets.items()),
        **{name: getattr(comparison, name) for name in ("places", "files", "temperature")},
        "judge": comparison.calibration.judge,
        **{f"verdict.{number}": verdict.verdict for number, verdict in enumerate(comparison.verdicts.values(), 1)},
    }
    params = [Param(key, str(value)[:MOST_TEXT]) for key, value in named.items()]
    client.log_batch(run.run_id, metrics=metrics, params=params)
    sets = scored.sets.items()
    inputs = [DatasetInput(Dataset(name, digest[:DIGEST], "local", json.dumps({"sha256": digest}))) for name, digest in sets]
    client.log_inputs(run.run_id, datasets=inputs)
    client.log_text(run.run_id, page(comparison), "report.html")
    client.log_table(run.run_id, table_of(scored), TABLE)
    client.set_terminated(run.run_id)
    return run.run_id


def metrics_of(comparison: Comparison) -> dict[str, float]:
    """Return means and differences with their bounds, by model and measure, in characters that MLflow allows."""
    metrics: dict[str, float] = {}
    for row in comparison.rows:
        for model, cell in zip(comparison.models, row.cells, strict=True):
            name = re.sub(r"[^\w.-]+", "_", model).strip("_") + f".{row.measure.name}"
            for key, value in ((name, cell.mean), (f"{name}.difference", cell.difference)):
                if value:
                    metrics |= {key: value.estimate, f"{key}.low": value.low, f"{key}.high": value.high}
    return metrics


def table_of(scored: ScoredModels) -> dict[str, list[Any]]:
    """Return each place with every model's completion and scores, by column."""
    first = next(iter(scored.scores.values())).by_position
    table: dict[str, list[Any]] = {name: [getattr(s, name) for s in first] for name in ("file", "offset", "truth")}
    for model, scores in scored.scores.items():
        for name in ("completion", "edit_similarity", "judged"):
            table[f"{model}: {name}"] = [getattr(s, name) for s in scores.by_position]
    return table
