"""The offline gate of a cycle: it scores candidate and champion at the same places and records the verdict with its inputs."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from infra import settings as configuration
from infra.settings import Settings
from infra.storage import cycles
from infra.storage.store import ObjectStore
from tasks.evaluation.cycle_sets import ScoredSet
from tasks.evaluation.gate.intervals import estimate, estimates
from tasks.evaluation.gate.verdict import Finding, GateResult, Verdict, gate_candidate
from tasks.evaluation.heldout.sets import FOLDER
from tasks.evaluation.judge.calibration import Calibration
from tasks.evaluation.models.base import Models
from tasks.evaluation.sandbox.scored import with_tests
from tasks.evaluation.scores import PositionScore, Scores
from tasks.evaluation.scoring import Contestant, ScoredModels, score_models

CANDIDATE, CHAMPION = "candidate", "champion"
MAX_JUDGE_FAILURES = 0.1
"""Maximum share of places at which the judge may fail."""


class EvaluationBroken(RuntimeError):
    """Scores are missing, so the candidate has no verdict; the cycle can be resumed."""


class JudgeAway(EvaluationBroken):
    """The judge does not answer; it is asked again by the next run."""


class JudgeRefused(RuntimeError):
    """The judge refuses the requests: a setting must change first."""


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
    """Skipped checks, each with the reason."""
    calibration: Calibration | None = None
    """How well the judge separates true from corrupted texts."""

    @property
    def passed(self) -> bool:
        """Whether the candidate may meet users. An undecided candidate may not."""
        return self.verdict == "passed"


@dataclass(frozen=True)
class Contest:
    """The candidate, the champion and the conditions of an evaluation."""

    candidate: Path
    champion: Path
    models: Models
    held_out: tuple[ScoredSet, ...]


def evaluate(store: ObjectStore, settings: Settings, contest: Contest, cycle: str) -> Evaluation:
    """Score the candidate and the champion, and write the cycle's evaluation.

    Raises:
        JudgeAway: the judge does not answer.
        JudgeRefused: the judge refuses the requests.
        EngineAway: the engine does not answer.
        EngineRefused: the candidate does not fit the engine.
    """
    scored = score(store, settings, contest)
    result = evaluate_scores(scored, settings)
    names = [one.name for one in contest.held_out]
    metrics = {name: metrics_of(scores, names) for name, scores in scored.scores.items()}
    greedy = {name: metrics_of(scores, names) for name, scores in scored.greedy.items()}
    written = record(result, scored, settings, contest.held_out) | {"metrics": metrics, "greedy": greedy}
    store.put_json(cycles.key(cycle, cycles.EVALUATION), written)
    return result


def score(store: ObjectStore, settings: Settings, contest: Contest) -> ScoredModels:
    """Score champion and candidate as they are served, and their likeliest completions, at the places outside the training data.

    All places are completed, so that a cycle that leaves out other places can reuse the completions.
    """
    serving = settings.serving
    contestants = {
        CHAMPION: Contestant(configuration.path(contest.champion), serving.sampling),
        CANDIDATE: Contestant(configuration.path(contest.candidate), serving.challenger_sampling or serving.sampling),
    }
    left_out = {one.name: one.trained for one in contest.held_out}
    places = [one.completed for one in contest.held_out]
    scored = score_models(contestants, places, settings, contest.models, store, left_out=left_out, greedy=True)
    programs = {(one.name, place.id): place for one in contest.held_out for place in one.scored if place.program}
    return with_tests(scored, programs)


def metrics_of(scores: Scores, sets: Sequence[str]) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the mean of each metric with its interval, by set and metric."""
    found = {}
    for name in sets:
        rows = [row for row in scores.by_position if row.set == name]
        measured = [row.measured for row in rows if row.measured]
        assert len(measured) == len(rows), "score_position measures every completion"
        found[name] = {name: asdict(e) for name, e in estimates(measured, [row.cluster for row in rows]).items()}
        known = {number: row.truth_logprob for number, row in enumerate(rows) if row.truth_logprob is not None}
        if known:
            found[name]["truth_logprob"] = asdict(estimate(list(known.values()), [rows[number].cluster for number in known]))
    return found


def evaluate_scores(scored: ScoredModels, settings: Settings) -> Evaluation:
    """Return the verdict on a candidate's scores.

    Raises:
        JudgeAway: the judge does not answer.
        JudgeRefused: the judge refuses the requests.
    """
    candidate, champion = scored.scores[CANDIDATE], scored.scores[CHAMPION]
    failures = {name: scores.judge_failures for name, scores in scored.scores.items()}
    missing = unheard(scored.calibration, failures, CHAMPION)
    gate = gate_candidate(
        candidate.by_position,
        champion.by_position,
        settings.evaluate.gate,
        judge_counts=scored.calibration.counts and not missing,
    )
    if missing and gate.verdict == "passed":
        gate = replace(gate, verdict="undecided", reason=missing)
    left_out = gate.left_out if scored.calibration.counts else (*gate.left_out, f"judge: {scored.calibration.reason}")
    left_out = (*left_out, *scored.untested)
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


def unheard(calibration: Calibration, failures: Mapping[str, float], champion: str) -> str:
    """Return why the judge's failures leave the evaluation undecided; "" if there are few enough.

    A judge that does not answer is an error: the candidate has no verdict, and the next run of the cycle asks again. So is one
    that refuses, and its words name the setting to change. A judge that answers without a score at too many places would do so
    again: the evaluation is undecided, which never passes.

    Args:
        failures: share of the places that the judge could not score, by model.
        champion: name of the model whose texts the judge should be able to score.

    Raises:
        JudgeAway: it failed at too many places, mostly because it did not answer.
        JudgeRefused: it failed at too many places, mostly because it refused.
    """
    most, found = MAX_JUDGE_FAILURES, calibration
    name, share = "calibration", found.failures / max(found.failures + found.places, 1)
    refused, away = 2 * found.refused > found.failures, 2 * found.away > found.failures
    if share <= most and found.counts:
        # The judge works on other texts: if it fails only on a candidate's, these texts are the reason.
        name, share = max(failures.items(), key=lambda item: item[1])
        refused, away = False, failures[champion] > most
    if share <= most:
        return ""
    words = f": {found.words}" if found.words else ""
    reason = f"judge {found.judge!r} failed on {share:.1%} of the {name} places; at most {most:.1%} may fail{words}"
    if refused:
        raise JudgeRefused(f"held-out evaluation: {reason}. There is no verdict. The next run of the cycle asks again")
    if away:
        raise JudgeAway(
            f"held-out evaluation: {reason}. There is no verdict. Check evaluate.judge; the next run of the cycle asks again "
            "where the judge failed"
        )
    return reason


def reason_of(gate: GateResult, candidate: Scores, champion: Scores) -> str:
    """Return the verdict's reason in one line."""
    return (
        f"{gate.verdict}: {gate.reason} (judge {candidate.judge} {candidate.judged:.2f} against "
        f"{champion.judged:.2f}, exact {candidate.exact:.1%} against {champion.exact:.1%}, "
        f"{len(candidate.by_position)} places)"
    )


def means_of(scores: Scores) -> dict[str, float]:
    names = ("exact", "edit_similarity", "matching_characters", "judged", "empty", "length")
    return {name: getattr(scores, name) for name in names} | {"judge_failures": scores.judge_failures}


def record(result: Evaluation, scored: ScoredModels, settings: Settings, held_out: Sequence[ScoredSet]) -> dict[str, Any]:
    """Return the content of evaluation.json: the verdict, its settings, and every place with both completions.

    The team's text is stored only in its set, where `forget` finds it.
    """
    hidden = {(one.name, place.id) for one in held_out for place in one.scored if place.user or one.folder != FOLDER}

    def row(score: PositionScore) -> dict[str, Any]:  # asdict copies each value
        shown = {"completion": "", "truth": ""} if (score.set, score.id) in hidden else {}
        return vars(score) | shown | {"measured": vars(score.measured) if score.measured else None}

    return {
        **asdict(result),
        "passed": result.passed,
        "gate": settings.evaluate.gate.model_dump(mode="json"),
        "held_out": [
            {
                "name": one.name,
                "sha256": one.sha256,
                "places": len(one.scored),
                "left_out": dict(one.left_out),
                "trained": sorted(one.trained),
                "unchecked": one.unchecked,
            }
            for one in held_out
        ],
        "weights": dict(scored.weights),
        "positions": [row(score) for score in scored.scores[CANDIDATE].by_position],
        "champion_positions": [row(score) for score in scored.scores[CHAMPION].by_position],
    }
