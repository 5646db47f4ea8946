"""The held-out gate: candidate and champion on the same positions, scored by the same judge.

Generation imports torch and transformers, so evals.evaluation is imported inside the function.
"""

import hashlib
import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import TypeAdapter

from infra import settings as settings_
from infra.settings import Settings
from infra.settings.schema import Evaluate
from infra.store import ObjectStore

if TYPE_CHECKING:
    from evals.evaluation import Scores

JUDGE_SCALE = 10.0
"""Judges score from 0 to this."""


class EvaluationBroken(RuntimeError):
    """There are no scores to compare, so the candidate neither passes nor fails."""


@dataclass(frozen=True)
class Evaluation:
    """The scores of a candidate and its champion."""

    judge: str
    candidate: dict[str, float]
    """Mean by measure."""
    champion: dict[str, float]
    passed: bool
    reason: str
    """The reason of the result, with the numbers."""


def evaluate(store: ObjectStore, settings: Settings, candidate: Path, champion: Path, cycle: str) -> Evaluation:
    """Score the candidate and the champion; scores of the same weights with the same settings are reused.

    Raises:
        EvaluationBroken: the judge failed too often.
    """
    key = f"cycles/{cycle}/evaluation.json"
    scores = scores_of(store, settings, candidate)
    baseline = scores_of(store, settings, champion)
    result = gate(scores, baseline, settings.evaluate)
    store.put_json(key, {**asdict(result), "positions": [asdict(p) for p in scores.by_position]})
    return result


def scores_of(store: ObjectStore, settings: Settings, checkpoint: Path) -> "Scores":
    """Return a checkpoint's scores, stored by the checksum of its weights and of the settings that affect them."""
    from evals.evaluation import Scores

    key = f"evaluations/{weights_sha256(checkpoint)[:16]}-{fingerprint(settings)}.json"
    adapter = TypeAdapter(Scores)
    try:
        return adapter.validate_python(store.get_json(key))
    except KeyError:
        scores = score(settings, checkpoint)
        store.put_json(key, asdict(scores))
        return scores


def score(settings: Settings, checkpoint: Path) -> "Scores":
    """Complete the held-out positions at the served temperature."""
    from evals import judge
    from evals.evaluation import evaluate as run
    from evals.evaluation import held_out_positions

    evaluation = settings.evaluate
    return run(
        settings_.path(checkpoint),
        held_out_positions(evaluation.samples, evaluation.seed),
        settings.model,
        settings.serving.sampling,
        judge.build(evaluation.judge),
        seed=evaluation.seed,
    )


def weights_sha256(checkpoint: Path) -> str:
    """Return the checksum of a checkpoint's weights."""
    digest, files = hashlib.sha256(), sorted(checkpoint.glob("*.safetensors"))
    if not files:
        raise EvaluationBroken(f"held-out evaluation: {checkpoint} holds no *.safetensors")
    for file in files:
        with file.open("rb") as body:
            digest.update(hashlib.file_digest(body, "sha256").digest())
    return digest.hexdigest()


def fingerprint(settings: Settings) -> str:
    """Return the checksum of the settings that affect a score."""
    parts = (settings.evaluate.samples, settings.evaluate.seed, settings.evaluate.judge.kind, settings.evaluate.judge.model)
    text = json.dumps([*parts, settings.serving.sampling.model_dump(mode="json"), settings.model.fim_order])
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def gate(candidate: "Scores", champion: "Scores", settings: Evaluate) -> Evaluation:
    """Refuse a candidate with a lower judge's score, much shorter completions, or more empty ones.

    Raises:
        EvaluationBroken: scores are missing.
    """
    for name, scores in (("candidate", candidate), ("champion", champion)):
        if not scores.judge_failures <= settings.max_judge_failures or not math.isfinite(scores.judged.value):
            raise EvaluationBroken(
                f"held-out evaluation: judge {scores.judge!r} failed on {scores.judge_failures:.1%} of the {name}'s positions; "
                f"evaluate.max_judge_failures allows {settings.max_judge_failures:.1%}"
            )
    drop = (champion.judged.value - candidate.judged.value) / JUDGE_SCALE
    rise = candidate.empty.value - champion.empty.value
    length = candidate.length.value / champion.length.value if champion.length.value else 1.0
    problems = []
    if drop > settings.max_drop:
        problems.append(
            f"judge {candidate.judge} {candidate.judged.value:.2f} against {champion.judged.value:.2f} of 10, "
            f"a drop of {drop:.1%} of its scale, at most {settings.max_drop:.1%} is allowed"
        )
    if length < settings.min_length:
        problems.append(
            f"completions are {length:.2f} times as long as the champion's, at least {settings.min_length:.2f} is required"
        )
    if rise > settings.max_empty_rise:
        problems.append(f"nothing to show on {rise:+.1%} more positions, at most {settings.max_empty_rise:+.1%} is allowed")
    fine = (
        f"judge {candidate.judge} {candidate.judged.value:.2f} against {champion.judged.value:.2f}, length x{length:.2f}, "
        f"nothing to show {rise:+.1%}"
    )
    return Evaluation(candidate.judge, means(candidate), means(champion), not problems, "; ".join(problems) or fine)


def means(scores: "Scores") -> dict[str, float]:
    """Return the mean of each measure."""
    names = ("exact", "edit_similarity", "matching_characters", "judged", "empty", "length")
    return {name: getattr(scores, name).value for name in names} | {"judge_failures": scores.judge_failures}
