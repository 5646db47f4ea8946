"""The judge as the user: train on its accepts and rejections, and print its score of base and trained models side by side.

    TABLOOP_SETTINGS=evals/studies/judged/judge_user.toml tabloop study judged

Section `judged` of the settings tells places, cycles and the rewarding judge; `evaluate.judge`, another one, scores.
evals/studies/judged/judge_user.toml is the published experiment with Qwen2.5-Coder on GPUs.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from evals.progress import Progress
from evals.studies.judged import recipes, table
from evals.studies.judged.places import TooFewPlaces, split_of
from evals.studies.judged.settings import StudySettings
from infra import settings as configuration
from tasks.evaluation import judge as judges
from tasks.evaluation.judge.calibration import calibrate
from tasks.trainer.run import TrainingFailed

RESULT = "result.json"
RECIPES = (recipes.OURS, recipes.GROUP)


ERRORS = (TooFewPlaces, recipes.NothingToLearn, TrainingFailed, ValueError)
"""What `compare` raises if something is missing."""


def run(settings: StudySettings, names: Sequence[str], out: Path | None) -> None:
    """Train by the named recipes (empty: all), score, print the table and write result.json.

    Args:
        settings: all of them.
        names: names of recipes.
        out: folder of samples, checkpoints and result.json; None: judged.folder.

    Raises:
        ValueError: a name is no recipe's; others of ERRORS as `compare`.
    """
    if unknown := [name for name in names if name not in RECIPES]:
        raise ValueError(f"unknown recipe {', '.join(unknown)}; choose from {', '.join(RECIPES)}")
    folder, console = configuration.path(out or settings.judged.folder), Console()
    with Progress(console) as progress:
        result = compare(settings, names or RECIPES, folder, progress)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / RESULT).write_text(json.dumps(result, indent=2))
    console.print(f"{folder / RESULT}, {result['seconds']:.0f} s")


def compare(settings: StudySettings, names: Sequence[str], folder: Path, progress: Progress) -> dict[str, Any]:
    """Train by each recipe, score base and trained models, print the table; return the content of result.json.

    Raises:
        TooFewPlaces: there are not enough places.
        NothingToLearn: the judge scored none of a cycle's completions.
        TrainingFailed: the trainer failed.
    """
    began, base, cycles = time.monotonic(), configuration.path(settings.model.base), settings.judged.cycles
    split = split_of(settings.judged)
    progress.say(f"{len(split.train)} training and {len(split.test)} test places; left out: {split.left_out or 'none'}")
    models = {"base": base, **{path.name: configuration.path(path) for path in settings.judged.models}}
    with progress.part("judged: cycles", len(names) * cycles) as part:
        trained = {name: recipes.run(name, base, split.train, settings, folder, progress.say, part.advance) for name in names}
    models |= {f"{name} after {cycles} cycles": one.checkpoint for name, one in trained.items()}
    judge, scores = judges.build(settings.evaluate.judge), {}
    with progress.part("judged: the judge is calibrated"):
        calibration = calibrate(judge, split.test, settings.evaluate.judge.calibration_places)
    with progress.part("judged: models are scored", len(models)) as part:
        for name, path in models.items():
            scores[name] = table.scores_of(path, split.test, judge, settings)
            part.advance()
            progress.say(f"{name}: mean score {np.nanmean(scores[name]):.3f}")
    rows = table.rows_of(scores, split.test, settings.judged.threshold)
    progress.console.print(table.shown(rows, calibration, settings.judged.threshold, len(split.test)))
    return {
        "rows": [asdict(row) for row in rows],
        "calibration": asdict(calibration),
        "rewards": {name: one.rewards for name, one in trained.items()},
        "failed": {name: one.failed for name, one in trained.items()},
        "left_out": split.left_out,
        "settings": settings.judged.model_dump(mode="json"),
        "seconds": time.monotonic() - began,
    }
