"""Scores of one checkpoint on lines of code that are not in its training data.

`tabloop evaluate infra/base_model --samples 400` prints them.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.table import Table

from evals.compare.comparison import LEVEL, row_of
from evals.compare.in_process import InProcess
from evals.compare.report import interval
from infra.settings import Settings, schema
from tasks.evaluation import judge as judges
from tasks.evaluation import positions
from tasks.evaluation.gate.measures import BY_NAME
from tasks.evaluation.heldout.build import held_out_positions
from tasks.evaluation.models.completions import Conditions, completions_of, set_of
from tasks.evaluation.scores import Scores, summarise
from tasks.evaluation.scoring import score_rows


def evaluate(
    checkpoint: Path,
    held_out: Sequence[positions.Position],
    model: schema.Model,
    sampling: schema.Sampling,
    judge: judges.Judge,
    *,
    seed: int = 0,
) -> Scores:
    """Complete every position with a checkpoint, in this process, and score it; `seed` fixes the draws for any checkpoint."""
    places, conditions = set_of(held_out), Conditions(sampling, model, seed)
    made = completions_of(InProcess(model), checkpoint, places, conditions)
    return summarise(score_rows(places, made.rows, judge), judge.name, sampling.temperature, made.seconds)


def scores_table(scores: Scores, title: str) -> Table:
    """Return the means with their intervals by file, as `tabloop compare` has them, as a table for the terminal."""
    table = Table("metric", f"mean [{LEVEL:.0%}, by file]", title=title)
    rows = (
        ("exact match", "exact", ".2%"),
        ("edit similarity", "edit_similarity", ".2%"),
        ("right characters from the start", "matching_characters", ".2f"),
        (f"judge `{scores.judge}`, 0 to 10", "judged", ".2f"),
        ("empty completions", "empty", ".2%"),
        ("characters", "length", ".2f"),
    )
    for name, measure, form in rows:
        found = row_of(BY_NAME[measure], [scores.by_position])
        table.add_row(name, interval(found.cells[0].mean, form) if found else "unknown")
    table.caption = (
        f"{len(scores.by_position)} positions, temperature {scores.temperature:g}, judge failures "
        f"{scores.judge_failures:.1%}, {scores.seconds:.1f} s"
    )
    return table


def report(
    checkpoint: Path,
    settings: Settings,
    *,
    samples: int | None = None,
    temperature: float = 0.0,
    seed: int | None = None,
    order: Literal["psm", "spm"] | None = None,
    examples: int = 0,
) -> None:
    """Score a checkpoint and print the table, and so many examples. A missing number has its value of the settings."""
    seed = settings.evaluate.seed if seed is None else seed
    held_out = held_out_positions(samples or settings.evaluate.samples, seed)
    model = settings.model.model_copy(update={"fim_order": order or settings.model.fim_order})
    judge = judges.build(settings.evaluate.judge)
    sampling = settings.serving.sampling.model_copy(update={"temperature": temperature})
    scores = evaluate(checkpoint, held_out, model, sampling, judge, seed=seed)
    console = Console()
    for position, score in list(zip(held_out, scores.by_position, strict=True))[:examples]:
        line = position.prefix.rsplit("\n", 1)[-1]
        console.print(f"{line!r} -> {score.completion!r}, real text {score.truth!r}", markup=False, highlight=False)
    console.print(scores_table(scores, checkpoint.name))
