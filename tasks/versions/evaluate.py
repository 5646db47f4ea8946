"""The held-out gate: the same judge scores candidate and champion on the same positions.

Generation imports torch and transformers, so evals.evaluation is imported inside the function.
"""

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from evals.heldout import sets
from evals.positions import Position
from infra import cycles
from infra import settings as configuration
from infra.settings import Settings
from infra.settings.schema import Evaluate
from infra.store import ObjectStore
from tasks.versions import heldout
from tasks.versions.heldout import ScoredSet

if TYPE_CHECKING:
    from evals.evaluation import Scores

JUDGE_SCALE = 10.0
"""Highest score of a judge; the lowest is 0."""


class EvaluationBroken(RuntimeError):
    """Scores are missing, so the candidate neither passes nor fails."""


@dataclass(frozen=True)
class Evaluation:
    """Scores of a candidate and its champion, and the result of the gate."""

    judge: str
    candidate: dict[str, float]
    """Mean of each measure, by name."""
    champion: dict[str, float]
    passed: bool
    reason: str
    """Reason for the result, with the numbers."""


def evaluate(store: ObjectStore, settings: Settings, candidate: Path, champion: Path, cycle: str) -> Evaluation:
    """Score the candidate and the champion, and write the cycle's evaluation; reuse scores of the same weights and settings.

    Raises:
        EvaluationBroken: the judge failed too often.
        SetMissing: a set is not in the store.
        NoPlaces: no place is left to score.
    """
    manifest = cycles.manifest_of(store, cycle)
    held_out = heldout.scored_sets(store, manifest, settings.evaluate)
    scores = scores_on(store, settings, candidate, held_out)
    baseline = scores_on(store, settings, champion, held_out)
    result = gate(scores, baseline, settings.evaluate)
    # What the team wrote stands in its set alone, where `forget` finds it.
    texts = [place.user == "" for one in held_out for place in one.scored]
    rows = [
        asdict(p) if open_text else asdict(replace(p, completion="", truth=""))
        for p, open_text in zip(scores.by_position, texts, strict=True)
    ]
    named = [one.model_dump(mode="json") for one in manifest.held_out]
    metrics = {"candidate": metrics_of(scores, held_out), "champion": metrics_of(baseline, held_out)}
    written = {**asdict(result), "held_out": named, "metrics": metrics, "positions": rows}
    store.put_json(cycles.key(cycle, "evaluation.json"), written)
    return result


def metrics_of(scores: "Scores", held_out: Sequence[ScoredSet]) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the mean of each metric with its interval, by set and metric."""
    from evals.metrics.intervals import estimates
    from evals.metrics.place import measure

    found, by_position = {}, iter(scores.by_position)
    for one in held_out:
        positions = [sets.position_of(place) for place in one.scored]
        measured = [measure(position, next(by_position).completion) for position in positions]
        found[one.name] = {name: asdict(e) for name, e in estimates(measured, [p.file for p in positions]).items()}
    return found


def scores_on(store: ObjectStore, settings: Settings, checkpoint: Path, held_out: Sequence[ScoredSet]) -> "Scores":
    """Return a checkpoint's scores at the places of all sets that training data do not hold."""
    from evals.evaluation import summarise

    by_set = [scores_of(store, settings, checkpoint, one) for one in held_out]
    rows = (zip(one.places, s.by_position, strict=True) for one, s in zip(held_out, by_set, strict=True))
    kept = tuple(score for pairs, one in zip(rows, held_out, strict=True) for place, score in pairs if one.scores(place))
    return summarise(kept, by_set[0].judge, by_set[0].temperature, sum(scores.seconds for scores in by_set))


def scores_of(store: ObjectStore, settings: Settings, checkpoint: Path, held_out: ScoredSet) -> "Scores":
    """Return a checkpoint's scores at all places of a set: the stored ones for its weights, the set and the settings, otherwise
    new ones, which it stores unless they hold text of the team."""
    from evals.evaluation import Scores

    key = f"evaluations/{weights_sha256(checkpoint)[:16]}-{held_out.sha256[:16]}-{fingerprint(settings)}.json"
    adapter = TypeAdapter(Scores)
    try:
        return adapter.validate_python(store.get_json(key))
    except KeyError:
        scores = score(settings, checkpoint, held_out.positions)
        if not any(place.user for place in held_out.places):
            store.put_json(key, asdict(scores))
        return scores


def score(settings: Settings, checkpoint: Path, positions: Sequence[Position]) -> "Scores":
    """Complete the positions at the served temperature."""
    from evals import judge
    from evals.evaluation import evaluate as evaluate_checkpoint

    evaluation = settings.evaluate
    return evaluate_checkpoint(
        configuration.path(checkpoint),
        positions,
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
        with file.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()


def fingerprint(settings: Settings) -> str:
    """Return the checksum of the settings that affect a score."""
    parts = (settings.evaluate.seed, settings.evaluate.judge.kind, settings.evaluate.judge.model)
    text = json.dumps([*parts, settings.serving.sampling.model_dump(mode="json"), settings.model.fim_order])
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def gate(candidate: "Scores", champion: "Scores", settings: Evaluate) -> Evaluation:
    """Fail a candidate whose judge score, completion length or share of empty completions is worse than the settings allow.

    Raises:
        EvaluationBroken: scores are missing.
    """
    for name, scores in (("candidate", candidate), ("champion", champion)):
        if not scores.judge_failures <= settings.max_judge_failures or not math.isfinite(scores.judged.value):
            raise EvaluationBroken(
                f"held-out evaluation: judge {scores.judge!r} failed on {scores.judge_failures:.1%} of the {name}'s positions; "
                f"evaluate.max_judge_failures allows {settings.max_judge_failures:.1%}"
            )
    judge_drop = (champion.judged.value - candidate.judged.value) / JUDGE_SCALE
    empty_rise = candidate.empty.value - champion.empty.value
    length_ratio = candidate.length.value / champion.length.value if champion.length.value else 1.0
    problems = []
    if judge_drop > settings.max_drop:
        problems.append(
            f"judge {candidate.judge} {candidate.judged.value:.2f} against {champion.judged.value:.2f} of 10, "
            f"a drop of {judge_drop:.1%} of its scale, at most {settings.max_drop:.1%} is allowed"
        )
    if length_ratio < settings.min_length:
        problems.append(
            f"completions are {length_ratio:.2f} times as long as the champion's, at least {settings.min_length:.2f} is required"
        )
    if empty_rise > settings.max_empty_rise:
        problems.append(f"nothing to show on {empty_rise:+.1%} more positions, at most {settings.max_empty_rise:+.1%} is allowed")
    summary = (
        f"judge {candidate.judge} {candidate.judged.value:.2f} against {champion.judged.value:.2f}, length x{length_ratio:.2f}, "
        f"nothing to show {empty_rise:+.1%}"
    )
    return Evaluation(candidate.judge, means(candidate), means(champion), not problems, "; ".join(problems) or summary)


def means(scores: "Scores") -> dict[str, float]:
    """Return the mean of each measure."""
    names = ("exact", "edit_similarity", "matching_characters", "judged", "empty", "length")
    return {name: getattr(scores, name).value for name in names} | {"judge_failures": scores.judge_failures}
