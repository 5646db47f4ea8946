"""The held-out gate of a cycle: candidate and champion at the same places, and the verdict with everything that it stands on."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from evals.compare.scoring import ScoredModels, score_models
from evals.evaluation import held_out_positions
from evals.gate import Finding, GateResult, Verdict, judge_candidate
from evals.judge.calibration import Calibration
from evals.scores import Scores
from infra import cycles
from infra import settings as configuration
from infra.settings import Settings
from infra.store import ObjectStore

CANDIDATE, CHAMPION = "candidate", "champion"


class EvaluationBroken(RuntimeError):
    """Scores are missing, so the candidate has no verdict; the cycle can be resumed."""


@dataclass(frozen=True)
class Evaluation:
    """Scores of a candidate and its champion, and the result of the gate."""

    judge: str
    candidate: dict[str, float]
    """Mean of each measure, by name."""
    champion: dict[str, float]
    verdict: Verdict
    reason: str
    """Reason for the verdict, with the numbers."""
    findings: tuple[Finding, ...] = ()
    """Of each guardrail."""
    left_out: tuple[str, ...] = ()
    """What was not checked, each with the reason."""
    calibration: Calibration | None = None
    """How well the judge tells true from corrupted texts."""

    @property
    def passed(self) -> bool:
        """Whether the candidate may meet users. A candidate that is undecided may not."""
        return self.verdict == "passed"


def evaluate(store: ObjectStore, settings: Settings, candidate: Path, champion: Path, cycle: str) -> Evaluation:
    """Score the candidate and the champion, and write the cycle's evaluation.

    Raises:
        EvaluationBroken: the judge failed too often.
    """
    scored = score(store, settings, candidate, champion)
    result = evaluate_scores(scored, settings)
    store.put_json(cycles.key(cycle, "evaluation.json"), record(result, scored, settings))
    return result


def score(store: ObjectStore, settings: Settings, candidate: Path, champion: Path) -> ScoredModels:
    """Score champion and candidate at the held-out places, as they are served."""
    places = held_out_positions(settings.evaluate.samples, settings.evaluate.seed)
    models = {CHAMPION: configuration.path(champion), CANDIDATE: configuration.path(candidate)}
    return score_models(models, places, settings, store)


def evaluate_scores(scored: ScoredModels, settings: Settings) -> Evaluation:
    """Return the verdict on a candidate's scores.

    Raises:
        EvaluationBroken: the judge failed too often.
    """
    candidate, champion = scored.scores[CANDIDATE], scored.scores[CHAMPION]
    check_judge(scored, settings.evaluate.max_judge_failures)
    gate = judge_candidate(
        candidate.by_position, champion.by_position, settings.evaluate.gate, judge_counts=scored.calibration.counts
    )
    left_out = gate.left_out if scored.calibration.counts else (*gate.left_out, f"judge: {scored.calibration.reason}")
    means = {name: means_of(scores) for name, scores in scored.scores.items()}
    return Evaluation(
        judge=candidate.judge,
        candidate=means[CANDIDATE],
        champion=means[CHAMPION],
        verdict=gate.verdict,
        reason=reason_of(gate, candidate, champion),
        findings=gate.findings,
        left_out=left_out,
        calibration=scored.calibration,
    )


def check_judge(scored: ScoredModels, most: float) -> None:
    """Raise EvaluationBroken where the judge failed at too many places of the calibration or, if its scores count, of a model."""
    calibration = scored.calibration
    failed = {"calibration": calibration.failures / (calibration.failures + calibration.places)}
    if calibration.counts:
        failed |= {f"{name}'s": scores.judge_failures for name, scores in scored.scores.items()}
    for name, share in failed.items():
        if not share <= most:
            raise EvaluationBroken(
                f"held-out evaluation: judge {calibration.judge!r} failed on {share:.1%} of the {name} places; "
                f"evaluate.max_judge_failures allows {most:.1%}. There is no verdict. Check evaluate.judge; the next run "
                "of the cycle asks again where the judge failed"
            )


def reason_of(gate: GateResult, candidate: Scores, champion: Scores) -> str:
    """Return the verdict's reason in one line."""
    return (
        f"{gate.verdict}: {gate.reason} (judge {candidate.judge} {candidate.judged.value:.2f} against "
        f"{champion.judged.value:.2f}, exact {candidate.exact.value:.1%} against {champion.exact.value:.1%}, "
        f"{len(candidate.by_position)} places)"
    )


def means_of(scores: Scores) -> dict[str, float]:
    """Return the mean of each measure."""
    names = ("exact", "edit_similarity", "matching_characters", "judged", "empty", "length")
    return {name: getattr(scores, name).value for name in names} | {"judge_failures": scores.judge_failures}


def record(result: Evaluation, scored: ScoredModels, settings: Settings) -> dict[str, Any]:
    """Return the content of evaluation.json: the verdict, its settings, and every place with both completions."""
    return {
        **asdict(result),
        "passed": result.passed,
        "gate": settings.evaluate.gate.model_dump(mode="json"),
        "set": {"sha256": scored.places, "places": len(scored.scores[CANDIDATE].by_position)},
        "weights": {name: made.weights for name, made in scored.made.items()},
        "positions": [asdict(score) for score in scored.scores[CANDIDATE].by_position],
        "champion_positions": [asdict(score) for score in scored.scores[CHAMPION].by_position],
    }
