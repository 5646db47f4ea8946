"""Train on the answers of a judge in place of developers, and print its score of base and trained models side by side.

    tabloop --settings evals/studies/judged/judge_user.toml study judged

Section `judged` of the settings names positions, cycles and the rewarding judge; `evaluate.judge`, another one, scores.
evals/studies/judged/judge_user.toml is the published experiment with Qwen2.5-Coder on GPUs.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from evals.compare.comparison import LEVEL, cells_of
from evals.compare.report import finite, interval
from evals.progress import Progress
from evals.studies.judged import cycles
from evals.studies.judged.settings import StudySettings
from evals.studies.judged.split import TooFewPlaces, split_of
from infra import settings as configuration
from tasks.evaluation import judge as judges
from tasks.evaluation.gate.measures import BY_NAME
from tasks.evaluation.gate.paired import Difference
from tasks.evaluation.judge.calibration import Calibration, calibrate
from tasks.evaluation.models.generation import Generator
from tasks.evaluation.positions import Position
from tasks.trainer.run import TrainingFailed

RESULT = "result.json"
RECIPES = (cycles.OURS, cycles.GROUP)
SEED = 1_000
"""Of the draws at test positions; training takes the numbers of its cycles."""
ERRORS = (TooFewPlaces, cycles.NothingToLearn, TrainingFailed, ValueError)
"""Errors of `run`."""


def run(settings: StudySettings, names: Sequence[str], out: Path | None) -> None:
    """Train by the named recipes (empty: all), score base and trained models, print the table and write result.json.

    `out`: folder of samples, checkpoints and result.json; None: judged.folder.

    Raises ValueError where a name is not the name of a recipe. Raises TooFewPlaces where there are not enough positions. Raises
    NothingToLearn where the judge scored none of a cycle's completions. Raises TrainingFailed where the trainer failed.
    """
    if unknown := [name for name in names if name not in RECIPES]:
        raise ValueError(f"unknown recipe {', '.join(unknown)}; choose from {', '.join(RECIPES)}")
    names, judged, folder = names or RECIPES, settings.judged, configuration.path(out or settings.judged.folder)
    split, judge, scores = split_of(judged), judges.build(settings.evaluate.judge), {}
    with Progress(Console()) as progress:
        say, base = progress.say, configuration.path(settings.model.base)
        say(f"{len(split.train)} training and {len(split.test)} test places; left out: {split.left_out or 'none'}")
        models = {"base": base, **{path.name: configuration.path(path) for path in judged.models}}
        with progress.part("judged: cycles", len(names) * judged.cycles) as part:
            trained = {name: cycles.run(name, base, split.train, settings, folder, say, part.advance) for name in names}
        models |= {f"{name} after {judged.cycles} cycles": one.checkpoint for name, one in trained.items()}
        with progress.part("judged: the judge is calibrated"):
            calibration = calibrate(judge, split.test, settings.evaluate.judge.calibration_places)
        with progress.part("judged: models are scored", len(models)) as part:
            for name, path in models.items():
                scores[name] = scores_of(path, split.test, judge, settings)
                part.advance()
                say(f"{name}: mean score {np.nanmean(scores[name]):.3f}")
        rows = rows_of(scores, split.test, judged.threshold)
        progress.console.print(shown(rows, calibration, judged.threshold, len(split.test)))
        result = {
            "rows": [asdict(row) for row in rows],
            "calibration": asdict(calibration),
            "rewards": {name: one.rewards for name, one in trained.items()},
            "failed": {name: one.failed for name, one in trained.items()},
            "left_out": split.left_out,
            "settings": judged.model_dump(mode="json"),
            "seconds": progress.seconds,
        }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / RESULT).write_text(as_json(result))
    print(f"{folder / RESULT}, {result['seconds']:.0f} s")


@dataclass(frozen=True)
class ModelScore:
    """A model's line in the table."""

    model: str
    score: Difference  # mean score with its interval
    change: Difference | None  # from the first model, at positions where both have a score; None for the first
    accepted: float  # share of the scored positions that reach the threshold
    failed: int  # positions that the judge could not score


def as_json(result: Mapping[str, Any]) -> str:
    """Return a result as JSON; a figure that is not known, as where the judge failed at every place, is null."""
    return json.dumps(finite(result), indent=2, allow_nan=False)


def scores_of(checkpoint: Path, positions: Sequence[Position], judge: judges.Judge, settings: StudySettings) -> np.ndarray:
    """Return the judge's score of a model's completion at each position, [N]; NaN where the judge failed."""
    generator, whole = Generator(checkpoint, settings.model, dtype=settings.judged.dtype), settings.judged.whole_text
    temperature = settings.serving.sampling.temperature
    _, scored = cycles.complete_and_score(generator, judge, positions, settings, temperature, SEED, whole)
    return np.array([score.score if isinstance(score, judges.Scored) else np.nan for score in scored])


def rows_of(scores: Mapping[str, np.ndarray], positions: Sequence[Position], threshold: float) -> list[ModelScore]:
    """Return a row for each model's scores [N], in order; the others are compared with the first."""
    cells = cells_of(BY_NAME["judged"], [*scores.values()], [position.file for position in positions])
    rows = []
    for (name, values), cell in zip(scores.items(), cells, strict=True):
        known = values[np.isfinite(values)]
        share = float(np.mean(known >= threshold)) if len(known) else float("nan")
        rows.append(ModelScore(name, cell.mean, cell.difference, share, len(values) - len(known)))
    return rows


def shown(rows: Sequence[ModelScore], calibration: Calibration, threshold: float, places: int) -> Table:
    """Return the rows as a table for the terminal."""
    table = Table("model", "score, 0 to 10", "change", f"score of {threshold:g} or more", "judge failed")
    table.title, table.title_justify = f"Judge {calibration.judge} at {places} test places", "left"
    table.caption, table.caption_justify = f"{LEVEL:.0%} intervals by file. {calibration.reason}", "left"
    if not calibration.counts:
        table.caption += ". The judge does not separate true from corrupted texts well enough: the scores say nothing"
    for row in rows:
        change = interval(row.change, "+.3f") if row.change else ""
        table.add_row(row.model, interval(row.score, ".3f"), change, f"{row.accepted:.1%}", str(row.failed))
    return table
