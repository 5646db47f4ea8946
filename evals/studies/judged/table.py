"""The judge's score of several models at the same places, with intervals, side by side with the base's."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.table import Table

from evals.studies.judged.settings import StudySettings
from evals.studies.judged.user import item_of
from tasks.evaluation import judge as judges
from tasks.evaluation.gate.paired import Column, Difference, Levels, differences
from tasks.evaluation.judge.calibration import Calibration
from tasks.evaluation.models.generation import Generator
from tasks.evaluation.positions import Position

SEED = 1_000
"""Of the draws at test places; training takes the numbers of its cycles."""
TAIL = 0.025
"""Of 95 % intervals, on each side."""


@dataclass(frozen=True)
class Row:
    """A model's line in the table."""

    model: str
    score: Difference
    """Mean score with its interval."""
    change: Difference | None
    """From the first model, at places where both have a score; none for the first."""
    accepted: float
    """Share of the places with a score that reaches the threshold."""
    failed: int
    """Places that the judge could not score."""


def scores_of(checkpoint: Path, places: Sequence[Position], judge: judges.Judge, settings: StudySettings) -> np.ndarray:
    """Return the judge's score of what a model serves at each place, [N]; NaN where the judge failed."""
    generator, sampling = Generator(checkpoint, settings.model, dtype=settings.judged.dtype), settings.serving.sampling
    contexts = [(place.prefix, place.suffix) for place in places]
    made = generator.sample(contexts, sampling.max_tokens, sampling.temperature, SEED, whole=settings.judged.whole_text)
    scored = judge.score([item_of(place, completion) for place, completion in zip(places, made, strict=True)])
    return np.array([score.score if isinstance(score, judges.Scored) else np.nan for score in scored])


def rows_of(scores: Mapping[str, np.ndarray], places: Sequence[Position], threshold: float) -> list[Row]:
    """Return a row for each model's scores [N], in order; the first is the one that the others are compared with."""
    names, values = list(scores), list(scores.values())
    means = [Column(v, np.ones_like(v), np.isfinite(v)) for v in values]
    changes = [Column(v - values[0], np.ones_like(v), np.isfinite(v) & np.isfinite(values[0])) for v in values[1:]]
    found = differences([*means, *changes], [place.file for place in places], Levels(TAIL, TAIL))
    compared = [None, *found[len(means) :]]
    return [
        Row(name, found[k], compared[k], accepted(values[k], threshold), int(np.isnan(values[k]).sum()))
        for k, name in enumerate(names)
    ]


def accepted(scores: np.ndarray, threshold: float) -> float:
    """Return the share of the known scores that reach a threshold; NaN without one."""
    known = scores[np.isfinite(scores)]
    return float(np.mean(known >= threshold)) if len(known) else float("nan")


def shown(rows: Sequence[Row], calibration: Calibration, threshold: float, places: int) -> Table:
    """Return the rows as a table for the terminal."""
    table = Table("model", "score, 0 to 10", "change", f"score of {threshold:g} or more", "judge failed")
    table.title, table.title_justify = f"Judge {calibration.judge} at {places} test places", "left"
    table.caption, table.caption_justify = f"95 % intervals by file. {calibration.reason}", "left"
    if not calibration.counts:
        table.caption += ". The judge does not tell true from corrupted texts well enough: the scores say nothing"
    for row in rows:
        change = f"{row.change.estimate:+.3f} [{row.change.low:+.3f}, {row.change.high:+.3f}]" if row.change else ""
        score = f"{row.score.estimate:.3f} [{row.score.low:.3f}, {row.score.high:.3f}]"
        table.add_row(row.model, score, change, f"{row.accepted:.1%}", str(row.failed))
    return table
