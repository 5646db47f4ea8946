"""Made-up scores of a candidate and its champion at the same places."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np

from tasks.evaluation.judge.calibration import Calibration
from tasks.evaluation.metrics.place import Measured, measure
from tasks.evaluation.positions import Position
from tasks.evaluation.scores import PositionScore, summarise
from tasks.evaluation.scoring import ScoredModels

PLACES, FILES = 240, 40
LANGUAGES = ("py", "go")
SET = "packages"
CALIBRATION = Calibration("reference", 1.0, 1.0, 1.0, 60, 0, True, "AUC 1.000 [1.000, 1.000] at 60 places")


def scores(noise: float = 0.0, seed: int = 0) -> list[PositionScore]:
    """Return a champion's scores, each different from place to place; with noise, those of a model that is as good on average."""
    draw, other = np.random.default_rng(0), np.random.default_rng(seed + 1)
    return [place(number, float(draw.random()), noise * float(other.normal())) for number in range(PLACES)]


@cache
def place(number: int, quality: float, noise: float = 0.0) -> PositionScore:
    """Return the score at a place; quality and noise are of the edit similarity."""
    file, truth, language = f"file {number % FILES}", f"name_{number}", LANGUAGES[number % 2]
    completion = f"name_{number}(argument)"[: 6 + number % 12]
    return PositionScore(
        file=file,
        offset=number,
        completion=completion,
        truth=truth,
        exact=quality > 0.8,
        edit_similarity=quality + noise,
        matching_characters=round(8 * quality),
        judged=10 * quality,
        slices=(f"language: {language}", "characters: up to 8"),
        measured=measured(file, number, truth, language, completion),
        set=SET,
    )


@cache
def measured(file: str, offset: int, truth: str, language: str, text: str) -> Measured:
    """Return the metrics of a text at a place that has no other text."""
    return measure(Position(file, offset, "", "", truth, language), text)


def written(score: PositionScore, text: str) -> PositionScore:
    """Return a score whose completion is a text, with the metrics of the text."""
    language = score.slices[0].removeprefix("language: ")
    return replace(score, completion=text, measured=measured(score.file, score.offset, score.truth, language, text))


def measured_as(score: PositionScore, **metrics: float | None) -> PositionScore:
    """Return a score with other values of some metrics."""
    assert score.measured is not None
    return replace(score, measured=replace(score.measured, **metrics))  # type: ignore[arg-type]


def scored_models(candidate: Sequence[PositionScore], places: int = PLACES) -> ScoredModels:
    """Return a candidate's scores beside the champion's, at the first places."""
    models = {"champion": scores()[:places], "candidate": list(candidate)[:places]}
    summaries = {name: summarise(tuple(rows), "reference", 0.1) for name, rows in models.items()}
    return ScoredModels(summaries, {name: name * 8 for name in models}, {SET: "0" * 64}, CALIBRATION, summaries)
