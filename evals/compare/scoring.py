"""Scores of several models at the same places, by the same judge. The gate and `python -m evals.compare` both score here."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from evals import judge as judges
from evals.completions import Completions, Conditions, completions_of, set_sha256
from evals.drift import drifts_of
from evals.evaluation import score_completions
from evals.judge.calibration import Calibration, calibrate
from evals.positions import Position
from evals.scores import Scores
from infra.settings import Settings
from infra.store import ObjectStore


@dataclass(frozen=True)
class ScoredModels:
    """Scores at the same places, in order of the models; the first is the one that the others are compared with."""

    scores: Mapping[str, Scores]
    """By the model's name."""
    made: Mapping[str, Completions]
    """What was scored, by the model's name."""
    places: str
    """SHA-256 of the set's places."""
    calibration: Calibration
    """Of the judge, on this set."""


def score_models(
    models: Mapping[str, Path],
    places: Sequence[Position],
    settings: Settings,
    store: ObjectStore | None = None,
    progress: Callable[[int], None] | None = None,
) -> ScoredModels:
    """Complete and score every place with each model.

    Args:
        models: directories of checkpoints by name, the baseline first.
        store: where completions and judgements are kept; none: everything is made anew.
        progress: called with the number of places done.
    """
    evaluation, sampling = settings.evaluate, settings.serving.sampling
    conditions = Conditions(sampling, settings.model, evaluation.seed)
    made = {name: completions_of(folder, places, conditions, store, progress) for name, folder in models.items()}
    asked = judges.build(evaluation.judge)
    calibration = calibrate(asked, places, evaluation.judge.calibration_places, evaluation.judge.min_auc)
    judge, scores = judges.build(evaluation.judge, store), {}
    reference = next(iter(models.values()))
    for name, folder in models.items():
        drifts = None
        if evaluation.gate.margins.drift is not None:
            same = made[name].weights == next(iter(made.values())).weights
            drifts = [0.0] * len(places) if same else drifts_of(folder, reference, made[name], places, settings.model)
        scores[name] = score_completions(made[name], places, judge, sampling.temperature, drifts)
    return ScoredModels(scores, made, set_sha256(places), calibration)
