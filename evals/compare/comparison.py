"""A comparison of several models at the same places: means, paired differences with the first one, verdicts, examples."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from infra.settings.schema import Gate
from tasks.evaluation.gate.measures import MEASURES, Measure
from tasks.evaluation.gate.paired import Column, Difference, Levels, differences
from tasks.evaluation.gate.verdict import GateResult, gate_candidate
from tasks.evaluation.judge.calibration import Calibration
from tasks.evaluation.positions import Position
from tasks.evaluation.scores import PositionScore
from tasks.evaluation.scoring import ScoredModels

LEVEL = 0.95
"""Of the intervals in the report, two-sided."""
CONTEXT = 160
"""Characters of an example's prefix."""


@dataclass(frozen=True)
class Cell:
    """A model's mean of a measure."""

    mean: Difference
    difference: Difference | None  # from the baseline, at the same places, in the measure's unit; none for the baseline


@dataclass(frozen=True)
class ComparedMeasure:
    """A measure of every model, in the order of the models."""

    measure: Measure
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Example:
    """A place at which a model and the baseline differ most."""

    model: str
    file: str
    prefix: str
    truth: str
    baseline: str  # the baseline's completion
    completion: str
    change: float  # of the edit similarity


@dataclass(frozen=True)
class Comparison:
    """The models side by side; the first is the baseline."""

    models: tuple[str, ...]
    rows: tuple[ComparedMeasure, ...]
    verdicts: dict[str, GateResult]  # of the gate on each model but the baseline, were the baseline the champion
    examples: tuple[Example, ...]  # by model, those where it gains most, then those where it loses most
    calibration: Calibration
    sets: Mapping[str, str]  # SHA-256 of each set, by name
    places: int
    files: int
    temperature: float


def compare(scored: ScoredModels, places: Sequence[Position], settings: Gate, examples: int) -> Comparison:
    """Return the comparison of scored models; `examples`: number of best and of worst places per model."""
    names = tuple(scored.scores)
    rows = {name: scores.by_position for name, scores in scored.scores.items()}
    baseline, counts = rows[names[0]], scored.calibration.counts
    return Comparison(
        models=names,
        rows=tuple(row for measure in MEASURES if (row := row_of(measure, list(rows.values())))),
        verdicts={name: gate_candidate(rows[name], baseline, settings, judge_counts=counts) for name in names[1:]},
        examples=tuple(e for name in names[1:] for e in examples_of(name, rows[name], baseline, places, examples)),
        calibration=scored.calibration,
        sets=scored.sets,
        places=len(baseline),
        files=len({score.cluster for score in baseline}),
        temperature=scored.scores[names[0]].temperature,
    )


def row_of(measure: Measure, models: Sequence[Sequence[PositionScore]]) -> ComparedMeasure | None:
    """Return a measure of every model; None if nothing is known of it."""
    values = [measure.values(scores) for scores in models]
    if not any(np.isfinite(v).any() for v in values):
        return None
    return ComparedMeasure(measure, cells_of(measure, values, [score.cluster for score in models[0]]))


def cells_of(measure: Measure, values: Sequence[np.ndarray], files: Sequence[str]) -> tuple[Cell, ...]:
    """Return each model's mean of a measure, and its difference from the first model.

    `values`: of each model, [N]; NaN where it is unknown. `files`: of each place, [N].
    """
    tail = (1 - LEVEL) / 2
    means = [Column(v, np.ones_like(v), np.isfinite(v)) for v in values]
    paired = [measure.column(v, values[0]) for v in values[1:]]
    found = differences([*means, *paired], files, Levels(tail, tail))
    return tuple(map(Cell, found[: len(means)], [None, *found[len(means) :]]))


def examples_of(
    name: str, scores: Sequence[PositionScore], baseline: Sequence[PositionScore], places: Sequence[Position], count: int
) -> list[Example]:
    """Return the places with the largest gains, then those with the largest losses; ties in order of the set."""
    changes = np.array([ours.edit_similarity - theirs.edit_similarity for ours, theirs in zip(scores, baseline, strict=True)])
    gains, losses = np.argsort(-changes, kind="stable"), np.argsort(changes, kind="stable")
    chosen = [*(i for i in gains[:count] if changes[i] > 0), *(i for i in losses[:count] if changes[i] < 0)]
    return [
        Example(
            model=name,
            file=places[i].file,
            prefix=places[i].prefix[-CONTEXT:],
            truth=places[i].truth,
            baseline=baseline[i].completion,
            completion=scores[i].completion,
            change=float(changes[i]),
        )
        for i in chosen
    ]
