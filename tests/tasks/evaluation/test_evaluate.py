"""A cycle's evaluation: what it writes, and what leaves a candidate without a verdict."""

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from infra.records import HeldOutPlace, Program
from infra.settings import Settings
from infra.settings.schema import Evaluate, Gate, Sampling, Serving
from tasks.evaluation import evaluate
from tasks.evaluation.cycle_sets import ScoredSet
from tasks.evaluation.evaluate import Contest, EvaluationBroken, evaluate_scores
from tasks.evaluation.sandbox import SandboxRefused
from tasks.evaluation.sandbox.scored import with_tests
from tasks.evaluation.scoring import ScoredModels
from tests.tasks.evaluation import fake_models
from tests.tasks.evaluation.fake_models import FixedText
from tests.tasks.evaluation.made_scores import CALIBRATION, PLACES, SET, scored_models, scores
from tests.tasks.made import MemoryStore

SETTINGS = Settings()


def calibrated(scored: ScoredModels, **fields: Any) -> ScoredModels:
    return replace(scored, calibration=replace(CALIBRATION, **fields))


def test_the_record_holds_every_number_margin_and_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, held_out = MemoryStore(), ScoredSet(SET, "0" * 64, (), left_out={"short": 3}, unchecked=("cycle-000000",))
    monkeypatch.setattr(evaluate, "score", lambda *_: scored_models(scores()))
    contest = Contest(tmp_path / "candidate", tmp_path / "champion", FixedText(lambda *_: ""), (held_out,))
    result = evaluate.evaluate(store, SETTINGS, contest, "cycle-000001")
    assert result.passed and result.reason.startswith("passed: within the margins of 13 guardrails")
    stored = store.get_json("cycles/cycle-000001/evaluation.json")
    assert (stored["verdict"], stored["passed"], stored["judge"]) == ("passed", True, "reference")
    assert {"guardrail", "margin", "low", "high", "difference", "verdict", "reason"} <= stored["findings"][0].keys()
    assert stored["gate"]["margins"]["exact"] == SETTINGS.evaluate.gate.margins["exact"]
    assert stored["calibration"]["auc"] == 1.0
    assert len(stored["positions"]) == len(stored["champion_positions"]) == PLACES
    assert stored["candidate"]["exact"] == result.champion["exact"]
    assert (stored["held_out"][0]["left_out"], stored["held_out"][0]["unchecked"]) == ({"short": 3}, ["cycle-000000"])
    counts = {stored[kind]["candidate"][SET]["exact"]["places"] for kind in ("metrics", "greedy")}
    assert counts == {PLACES}


def test_champion_and_candidate_complete_as_they_would_serve_and_once_greedily(tmp_path: Path) -> None:
    """Two sets name one file and offset; one place counts in neither, since it was trained on."""
    code = {"language": "go", "suffix": "", "truth": "a\nb"}
    places = [HeldOutPlace(id=f"p{i}", file=f"f{i}.go", prefix=f"x{i} = ", **code) for i in range(9)]
    sets = [ScoredSet(name, name * 8, tuple(places), frozenset({"p0"})) for name in ("one", "two")]
    sampling = {"sampling": Sampling(temperature=0.5), "challenger_sampling": Sampling(temperature=0.7)}
    settings = Settings(serving=Serving(**sampling), evaluate=Evaluate(gate=Gate(min_places=9), stop=("STOP",)))
    models = FixedText(lambda folder, _: "a\nb STOP more" if folder == "champion" else "a")
    checkpoints = [fake_models.write(tmp_path / name, name) for name in ("candidate", "champion")]
    store = MemoryStore()
    result = evaluate.evaluate(store, settings, Contest(*checkpoints, models, tuple(sets)), "cycle-000001")
    wanted = [("candidate", 9, 0.7), ("candidate", 9, 0.0), ("champion", 9, 0.5), ("champion", 9, 0.0)]
    assert sorted(models.sampled) == sorted(wanted * 2)
    stored = store.get_json("cycles/cycle-000001/evaluation.json")
    assert len(stored["positions"]) == 16 and {row["set"] for row in stored["positions"]} == {"one", "two"}
    champion, candidate = (stored["metrics"][name]["one"] for name in ("champion", "candidate"))
    assert (champion["exact"]["mean"], candidate["exact"]["mean"]) == (1.0, 0.0), "all lines count, up to the stop string"
    assert (champion["first_line"]["mean"], candidate["first_line"]["mean"]) == (1.0, 1.0)
    assert champion["truth_logprob"] == candidate["truth_logprob"] and champion["truth_logprob"]["mean"] == -1.0
    assert (result.verdict, stored["greedy"]["champion"]["two"]["exact"]["places"]) == ("failed", 8)
    # The candidate is made anew, the champion's completions are kept, each set's by itself.
    another = fake_models.write(tmp_path / "candidate 2", "other weights")
    evaluate.evaluate(store, settings, Contest(another, checkpoints[1], models, tuple(sets[:1])), "cycle-000002")
    assert sorted(models.sampled[8:]) == [("candidate 2", 9, 0.0), ("candidate 2", 9, 0.7)]


def test_an_engine_that_holds_both_completes_with_candidate_and_champion_at_once(tmp_path: Path) -> None:
    """Each of the two waits for the other one."""
    met = threading.Barrier(2)

    def text(folder: str, _: str) -> str:
        met.wait(30)
        return "1" if folder == "champion" else "2"

    places = [HeldOutPlace(id=f"p{i}", file=f"f{i}.go", language="go", prefix=f"x{i} = ", suffix="", truth="1") for i in range(2)]
    settings = Settings(evaluate=Evaluate(gate=Gate(min_places=2)))
    checkpoints = [fake_models.write(tmp_path / name, name) for name in ("candidate", "champion")]
    contest = Contest(*checkpoints, FixedText(text, together=True), (ScoredSet("one", "0" * 64, tuple(places)),))
    result = evaluate.evaluate(MemoryStore(), settings, contest, "cycle-000001")
    assert (result.candidate["exact"], result.champion["exact"]) == (0.0, 1.0)


@pytest.mark.parametrize("failing", ["champion", "calibration"])
def test_a_judge_that_is_away_is_an_error_and_not_a_verdict(failing: str) -> None:
    unscored = [replace(s, judged=None if i % 5 == 0 else s.judged) for i, s in enumerate(scores())]
    scored = scored_models(scores())
    if failing == "champion":
        scored = replace(scored, scores={name: scored_models(unscored).scores["candidate"] for name in scored.scores})
    if failing == "calibration":
        scored = calibrated(scored, places=40, failures=20, away=15, counts=False)
    with pytest.raises(EvaluationBroken, match="judge 'reference' failed on"):
        evaluate_scores(scored, SETTINGS)


@pytest.mark.parametrize("failing", ["candidate", "calibration"])
def test_a_judge_that_answers_without_a_score_too_often_leaves_the_evaluation_undecided(failing: str) -> None:
    unscored = [replace(s, judged=None if i % 5 == 0 else s.judged) for i, s in enumerate(scores())]
    scored = scored_models(unscored if failing == "candidate" else scores())
    if failing == "calibration":
        scored = calibrated(scored, places=40, failures=20, away=3, counts=False)
    result = evaluate_scores(scored, SETTINGS)
    assert result.verdict == "undecided" and not result.passed
    assert result.reason.startswith("undecided: judge 'reference' failed on")
    empty = [
        replace(s, exact=False, edit_similarity=0.0, completion="", judged=None if i % 5 == 0 else 0.0)
        for i, s in enumerate(scores())
    ]
    assert evaluate_scores(scored_models(empty), SETTINGS).verdict == "failed", "what is worse anyway fails"


def test_tests_that_cannot_be_run_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    program = HeldOutPlace(id="0", file="f", prefix="", suffix="", truth="x", program=Program(before="", after=""))
    scored = scored_models(scores())

    def refuse(*_: object) -> None:
        raise SandboxRefused("sandbox: unshare: Operation not permitted; nothing was run")

    monkeypatch.setattr("tasks.evaluation.sandbox.scored.with_passed", refuse)
    refused = with_tests(scored, {("s", "0"): program})
    assert "nothing was run" in refused.untested[0] and refused.untested[0] in evaluate_scores(refused, SETTINGS).left_out
    assert with_tests(scored, {}) is scored


def test_a_judge_that_cannot_tell_has_no_vote() -> None:
    worse = [replace(s, judged=0.0) for s in scores()]
    assert evaluate_scores(scored_models(worse), SETTINGS).verdict == "failed"
    blind = calibrated(scored_models(worse), auc=0.5, low=0.4, counts=False, reason="AUC 0.500 [0.400, 0.600]")
    result = evaluate_scores(blind, SETTINGS)
    assert result.passed and "judge: AUC 0.500 [0.400, 0.600]" in result.left_out
