"""The step `evaluate` of a cycle, with an LLM judge behind a real HTTP server that answers as public endpoints do."""

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from infra.records import HeldOutPlace, Manifest
from infra.settings import PRODUCTION, Settings, load, schema
from infra.storage import cycles
from infra.storage.store import to_parquet
from tasks.evaluation.cycle_sets import ScoredSet
from tasks.evaluation.evaluate import Evaluation, JudgeRefused
from tasks.evaluation.judge.openai import RequestPolicy
from tasks.labels.accounting import Waiting
from tasks.steps import evaluate as step
from tasks.steps import transaction
from tasks.steps.context import Context
from tasks.trainer.run import Candidate
from tests.tasks.evaluation import fake_models
from tests.tasks.evaluation.chat_endpoint import Endpoint
from tests.tasks.evaluation.fake_models import FixedText
from tests.tasks.made import NOW, MemoryRegistry, MemoryStore, sample
from tests.tasks.steps.test_transaction import FIELDS

CYCLE = "cycle-000001"
PLACES = tuple(
    HeldOutPlace(
        id=f"p{n}", file=f"f{n}.py", language="py", prefix=f"value_{n} = {n}\nx = ", suffix="\n", truth=f"value_{n} + {n}"
    )
    for n in range(20)
)
REFUSES = "This response_format type is unavailable now"


@dataclass
class Cycle:
    """A sealed cycle whose candidate is trained."""

    store: MemoryStore
    context: Context
    manifest: Manifest
    candidate: Candidate

    def evaluate(self) -> Evaluation | Waiting:
        """Run the step, as a run that resumes the cycle."""
        transaction.attempt(self.store, CYCLE, "by hand")
        return step.evaluate.fn(self.context, self.manifest, self.candidate)

    @property
    def attempts(self) -> list[str]:
        """The runs that count as failed."""
        return list(self.store.keys(f"cycles/{CYCLE}/attempts/"))


@pytest.fixture
def sealed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that seals a cycle whose judge has an address; models, sets and Prefect's logger are stand-ins."""
    folders = {name: fake_models.write(tmp_path / name, name) for name in ("champion", "candidate")}

    @contextmanager
    def models(*_: object) -> Iterator[FixedText]:
        yield FixedText(lambda name, prompt: "value" if name == "champion" else "value_")

    for name, stand_in in {
        "engine_models": models,
        "trained_text": lambda *_: SimpleNamespace(of_cycles={}),
        "get_run_logger": logging.getLogger,
    }.items():
        monkeypatch.setattr(step, name, stand_in)
    monkeypatch.setattr(step.cycle_sets, "scored_sets", lambda *_: (ScoredSet("set", "0" * 64, PLACES),))
    monkeypatch.setattr(Context, "checkpoint", lambda *_: folders["champion"])
    monkeypatch.setattr("tasks.evaluation.judge.openai.RequestPolicy", partial(RequestPolicy, pause_seconds=0.001))

    def seal(url: str, **judge: Any) -> Cycle:
        wanted = load(PRODUCTION).evaluate.judge if not judge else Settings().evaluate.judge
        fields = wanted.model_dump() | {"url": url, "api_key": "sk-secret", "calibration_places": 20} | judge
        evaluate = schema.Evaluate(judge=schema.Judge(**fields), gate=schema.Gate(min_places=9), shares_disk=True)
        settings = Settings(evaluate=evaluate)
        store = MemoryStore()
        manifest = transaction.seal(store, CYCLE, FIELDS, to_parquet([sample()]), settings)
        context = Context(settings, store, MemoryRegistry(v1={}).client, lambda: NOW)
        return Cycle(store, context, manifest, Candidate(folders["candidate"], {}, 1.0))  # type: ignore[arg-type]  # no metrics

    return seal


def as_deepseek(material: Any, _: int) -> tuple[int, bytes]:
    """Answer as DeepSeek does: json_object alone, in a fence; the score is by the text."""
    asked = material["request"]
    assert asked["model"] == "deepseek-chat"
    if asked.get("response_format", {}).get("type") == "json_schema":
        refusal = {"message": REFUSES, "type": "invalid_request_error", "param": None, "code": "invalid_request_error"}
        return 400, json.dumps({"error": refusal}).encode()
    assert "json" in json.dumps(asked["messages"]).lower()
    content = f'```json\n{{"score": {9 if material["completion"] == material["written"] else 2}}}\n```'
    message = {"role": "assistant", "content": content}
    return 200, json.dumps({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}).encode()


def test_the_judge_of_production_scores_a_cycles_candidate(sealed: Any) -> None:
    endpoint = Endpoint(as_deepseek)
    with endpoint.running() as url:
        result = sealed(url).evaluate()
    assert isinstance(result, Evaluation) and result.calibration is not None
    assert result.calibration.counts and (result.calibration.places, result.calibration.failures) == (20, 0)
    assert result.candidate["judged"] == result.champion["judged"] == 2.0
    assert result.candidate["judge_failures"] == 0.0
    refused = sum("json_schema" in json.dumps(body) for _, _, body in endpoint.requests)
    assert refused <= load(PRODUCTION).evaluate.judge.concurrency, "the form is remembered for the run"


@pytest.mark.parametrize(
    ("status", "words", "setting"),
    [
        (401, "Authentication Fails, Your api key is invalid", "TABLOOP_EVALUATE__JUDGE__API_KEY"),
        (402, "Insufficient Balance", "judge.api_key has no balance"),
        (400, "Model Not Exist", "evaluate.judge.model"),
        (400, "Content Exists Risk", "choose another judge"),
    ],
)
def test_a_judge_that_refuses_stops_the_cycle_with_its_words_and_uses_up_no_resume(
    sealed: Any, status: int, words: str, setting: str
) -> None:
    answer = status, json.dumps({"error": {"message": words}}).encode()
    endpoint = Endpoint(lambda *_: answer)
    with endpoint.running() as url:
        cycle = sealed(url)
        for _ in range(2):
            with pytest.raises(JudgeRefused, match=f"HTTP {status}: {words}.*{setting}"):
                cycle.evaluate()
        assert cycle.attempts == [] and not cycle.store.exists(f"cycles/{CYCLE}/evaluation.json")
        # The setting is changed: another model, also of a sealed cycle.
        endpoint.rule = as_deepseek
        assert isinstance(cycle.evaluate(), Evaluation)


@pytest.mark.parametrize("answer", [(529, b'{"error": {"message": "overloaded"}}'), (429, b""), (503, b"<html>")])
def test_a_judge_that_is_away_delays_the_cycle(sealed: Any, answer: tuple[int, bytes]) -> None:
    endpoint = Endpoint(lambda *_: answer)
    with endpoint.running() as url:
        cycle = sealed(url)
        for _ in range(2):
            waiting = cycle.evaluate()
            assert isinstance(waiting, Waiting) and waiting.state == "WaitingForJudge"
            assert f"HTTP {answer[0]}" in waiting.reason and "The next run goes on" in waiting.reason
        assert cycle.attempts == []
        endpoint.rule = as_deepseek
        assert isinstance(cycle.evaluate(), Evaluation)


def test_a_judge_that_answers_nonsense_leaves_the_candidate_undecided_and_is_not_asked_for_ever(sealed: Any) -> None:
    endpoint = Endpoint(lambda *_: (200, json.dumps({"choices": [{"message": {"content": "Looks fine to me."}}]}).encode()))
    with endpoint.running() as url:
        result = sealed(url).evaluate()
    assert isinstance(result, Evaluation) and result.verdict == "undecided"
    assert "Looks fine to me" in " ".join((result.reason, *result.left_out))


def test_a_sealed_cycle_takes_the_judge_of_the_current_settings(sealed: Any) -> None:
    cycle = sealed("http://127.0.0.1:9/v1")
    other = cycle.context.settings.evaluate.judge.model_copy(update={"model": "another", "calibration_places": 99})
    current = Settings(evaluate=cycle.context.settings.evaluate.model_copy(update={"judge": other}))
    judge = cycles.settings_of(cycle.store, cycles.manifest_of(cycle.store, CYCLE), current).evaluate.judge
    assert (judge.model, judge.calibration_places) == ("another", 20)
