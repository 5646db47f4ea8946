"""A cycle's evaluation: what it writes, and what leaves a candidate without a verdict."""

from dataclasses import replace
from pathlib import Path

import pytest

from evals.compare.scoring import ScoredModels
from infra.settings import Settings
from infra.settings.schema import Evaluate, HeldOut
from tasks.versions import evaluate
from tasks.versions.evaluate import EvaluationBroken, evaluate_scores
from tests.evals.made_scores import CALIBRATION, PLACES, scored_models, scores
from tests.tasks.made import MemoryStore, manifest

SETTINGS = Settings(evaluate=Evaluate(max_judge_failures=0.1))


def calibrated(scored: ScoredModels, **fields: object) -> ScoredModels:
    return replace(scored, calibration=replace(CALIBRATION, **fields))


def test_the_record_holds_every_number_margin_and_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    settings = SETTINGS.model_copy(
        update={
            "evaluate": SETTINGS.evaluate.model_copy(
                update={"samples": PLACES, "sets": (HeldOut(name="packages", kind="packages", silent=0.0),)}
            )
        }
    )
    store.put_json("cycles/cycle-000001/manifest.json", manifest("cycle-000001"))
    monkeypatch.setattr(evaluate, "score", lambda *_: scored_models(scores()))
    result = evaluate.evaluate(store, settings, Path("candidate"), Path("champion"), "cycle-000001")
    assert result.passed and result.reason.startswith("passed: within the margins of 13 guardrails")
    stored = store.get_json("cycles/cycle-000001/evaluation.json")
    assert (stored["verdict"], stored["passed"], stored["judge"]) == ("passed", True, "reference")
    assert {"guardrail", "margin", "low", "high", "difference", "verdict", "reason"} <= stored["findings"][0].keys()
    assert stored["gate"]["margins"]["exact"] == SETTINGS.evaluate.gate.margins.exact
    assert stored["calibration"]["auc"] == 1.0
    assert len(stored["positions"]) == len(stored["champion_positions"]) == stored["set"]["places"]
    assert stored["candidate"]["exact"] == result.champion["exact"]


@pytest.mark.parametrize("failing", ["candidate", "champion", "calibration"])
def test_a_judge_that_is_away_is_an_error_and_not_a_verdict(failing: str) -> None:
    unscored = [replace(s, judged=None if i % 5 == 0 else s.judged) for i, s in enumerate(scores())]
    scored = scored_models(unscored if failing == "candidate" else scores())
    if failing == "champion":
        scored = replace(scored, scores={name: scored_models(unscored).scores["candidate"] for name in scored.scores})
    if failing == "calibration":
        scored = calibrated(scored, places=40, failures=20, counts=False)
    with pytest.raises(EvaluationBroken, match="judge 'reference' failed on"):
        evaluate_scores(scored, SETTINGS)


def test_a_judge_that_cannot_tell_has_no_vote() -> None:
    worse = [replace(s, judged=0.0) for s in scores()]
    assert evaluate_scores(scored_models(worse), SETTINGS).verdict == "failed"
    blind = calibrated(scored_models(worse), auc=0.5, low=0.4, counts=False, reason="AUC 0.500 [0.400, 0.600]")
    result = evaluate_scores(blind, SETTINGS)
    assert result.passed and "judge: AUC 0.500 [0.400, 0.600]" in result.left_out
