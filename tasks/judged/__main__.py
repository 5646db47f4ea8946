"""The judge as the user: train on its accepts and rejections, and print its score of base and trained models side by side.

python -m tasks.judged

Section `judged` of the settings tells places, cycles and the rewarding judge; `evaluate.judge`, another one, scores.
infra/settings/judge_user.toml is the published experiment with Qwen2.5-Coder on GPUs:

TABLOOP_SETTINGS=infra/settings/judge_user.toml python -m tasks.judged
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from evals import judge as judges
from evals.judge.calibration import calibrate
from infra import settings as configuration
from tasks.judged import recipes, table
from tasks.judged.places import TooFewPlaces, split_of
from tasks.trainer.run import TrainingFailed

RESULT = "result.json"


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, score, print the table and write it to the folder; exit code 1 if something is missing."""
    parser = argparse.ArgumentParser(prog="python -m tasks.judged", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, help="folder of samples, checkpoints and result.json (default: judged.folder)")
    parser.add_argument(
        "--recipes",
        nargs="*",
        choices=(recipes.OURS, recipes.GROUP),
        default=[recipes.OURS, recipes.GROUP],
        help="what to train (default: both)",
    )
    options = parser.parse_args(arguments)
    settings, console, began = configuration.load(), Console(), time.monotonic()
    folder, base = configuration.path(options.out or settings.judged.folder), configuration.path(settings.model.base)
    try:
        split = split_of(settings.judged)
        console.print(f"{len(split.train)} training and {len(split.test)} test places; left out: {split.left_out or 'none'}")
        models = {"base": base, **{path.name: configuration.path(path) for path in settings.judged.models}}
        trained = {
            name: recipes.run(name, base, split.train, settings, folder, lambda line: console.print(line, highlight=False))
            for name in options.recipes
        }
    except (TooFewPlaces, recipes.NothingToLearn, TrainingFailed, ValueError) as error:
        print(f"judged: {error}", file=sys.stderr)
        return 1
    cycles = settings.judged.cycles
    models |= {f"{name} after {cycles} cycles": one.checkpoint for name, one in trained.items()}
    judge = judges.build(settings.evaluate.judge)
    calibration = calibrate(judge, split.test, settings.evaluate.judge.calibration_places, settings.evaluate.judge.min_auc)
    scores = {name: table.scores_of(path, split.test, judge, settings) for name, path in models.items()}
    rows = table.rows_of(scores, split.test, settings.judged.threshold)
    console.print(table.shown(rows, calibration, settings.judged.threshold, len(split.test)))
    result = {
        "rows": [asdict(row) for row in rows],
        "calibration": asdict(calibration),
        "rewards": {name: one.rewards for name, one in trained.items()},
        "failed": {name: one.failed for name, one in trained.items()},
        "left_out": split.left_out,
        "settings": settings.judged.model_dump(mode="json"),
        "seconds": time.monotonic() - began,
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / RESULT).write_text(json.dumps(result, indent=2))
    console.print(f"{folder / RESULT}, {result['seconds']:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
