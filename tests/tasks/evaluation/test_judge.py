"""The judges. The LLM judge runs against a real HTTP server that responds or fails."""

import json
import time
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from evals.studies.judged.settings import StudySettings
from infra.settings import schema
from tasks.evaluation.judge import Failed, Item, KeptJudge, ReferenceJudge, Scored, build
from tasks.evaluation.judge.openai import OpenAIJudge, RequestPolicy
from tasks.evaluation.judge.reading import read_score
from tests.tasks.evaluation.chat_endpoint import Endpoint, chat, item
from tests.tasks.made import MemoryStore

KEY = "sk-very-secret"
QUICK = RequestPolicy(attempts=3, pause_seconds=0.01, open_after=4)
CONCURRENCY = 4


def judge_at(url, timeout=5.0, policy=QUICK):
    return OpenAIJudge(settings_at(url), replace(policy, seconds=timeout))


def settings_at(url, **fields):
    settings = {"kind": "openai", "url": url, "model": "judge-1", "api_key": KEY, "concurrency": CONCURRENCY, **fields}
    return schema.Judge(**settings)


def test_blanks_around_the_key_are_no_part_of_it_and_another_sign_is_refused_without_it():
    with Endpoint(lambda *_: (200, chat(7))).running() as url:
        assert OpenAIJudge(settings_at(url, api_key="sk-secret\n"), QUICK).score([item()]) == [Scored(7.0)]
    with pytest.raises(ValueError, match=r"evaluate\.judge\.api_key .*expected printable ASCII") as refused:
        OpenAIJudge(settings_at("http://127.0.0.1:9/v1", api_key="sk\u2026secret"))
    assert "secret" not in str(refused.value)


def test_scores_are_in_the_order_of_the_items():
    def slow(material, _):
        time.sleep(0.2)
        return 200, chat(len(material["completion"]))

    endpoint = Endpoint(slow)
    with endpoint.running() as url:
        judge = judge_at(url)
        assert judge.score([item("x" * n, n) for n in range(11)]) == [Scored(float(n)) for n in range(11)]
        assert judge.name == "judge-1"
    assert 1 < endpoint.max_concurrent <= CONCURRENCY
    path, headers, body = endpoint.requests[0]
    assert path == "/v1/chat/completions" and headers["Authorization"] == f"Bearer {KEY}"
    expected = body["response_format"]["json_schema"]
    assert expected["strict"] and expected["schema"]["properties"]["score"] == {"type": "integer", "minimum": 0, "maximum": 10}
    assert body["temperature"] == 0 and body["model"] == "judge-1"


@pytest.mark.parametrize(
    ("status", "body", "kind", "attempts"),
    [
        (200, chat(11), "out_of_range", 3),
        (200, chat(-0.1), "out_of_range", 3),
        (200, chat(float("nan")), "out_of_range", 3),
        (200, chat("ten"), "garbage", 3),
        (200, chat(True), "garbage", 3),
        (200, b"<html>", "garbage", 3),
        (200, b'{"choices": []}', "garbage", 3),
        (200, json.dumps({"choices": [{"message": {"content": None}}]}).encode(), "garbage", 3),
        (500, b"", "unavailable", 3),
        (429, b"", "unavailable", 3),
        (401, b"", "refused", 1),
        (400, b"", "refused", 3),  # without a reason: the response format may be one
    ],
)
def test_each_failure_has_a_kind_and_a_number_of_attempts(status, body, kind, attempts):
    endpoint = Endpoint(lambda *_: (status, body))
    with endpoint.running() as url:
        (judgement,) = judge_at(url).score([item()])
    assert isinstance(judgement, Failed) and judgement.kind == kind
    assert endpoint.attempts.total() == attempts


def test_transient_failures_are_retried():
    endpoint = Endpoint(lambda _, number: (503, b"") if number == 1 else (200, b"?") if number == 2 else (200, chat(7)))
    with endpoint.running() as url:
        assert judge_at(url).score([item()]) == [Scored(7.0)]


def after_three_seconds(*_):
    time.sleep(3.0)
    return 200, chat(5)


@pytest.mark.parametrize("slow", [after_three_seconds, lambda *_: (200, [b" "] * 30)])
@pytest.mark.timing(reason="a deadline of 0.3 s must end within 2 s")
def test_the_deadline_bounds_all_attempts_of_a_judgement(slow):
    with Endpoint(slow).running() as url:
        started_at = time.monotonic()
        (judgement,) = judge_at(url, timeout=0.3).score([item()])
        assert time.monotonic() - started_at < 2
    assert isinstance(judgement, Failed) and judgement.kind == "timeout"


def test_an_endpoint_that_keeps_failing_gets_no_more_requests():
    endpoint = Endpoint(lambda *_: (401, b""))
    with endpoint.running() as url:
        judgements = judge_at(url).score([item(n=n) for n in range(60)])
    kinds = Counter(judgement.kind for judgement in judgements)
    assert set(kinds) == {"refused", "circuit_open"}
    assert endpoint.attempts.total() == kinds["refused"] < 4 + CONCURRENCY


def test_an_unreachable_server_is_a_failure_that_does_not_show_the_key():
    (judgement,) = judge_at("http://127.0.0.1:9/v1").score([item()])
    assert isinstance(judgement, Failed) and judgement.kind == "unavailable"
    assert KEY not in repr(judgement)


@given(st.one_of(st.text(), st.floats(), st.integers(), st.none(), st.lists(st.integers())))
@example(10**400)
def test_reading_a_score_never_raises(score):
    judgement = read_score(chat(score).decode())
    if isinstance(score, int | float):
        assert judgement == Scored(float(score)) if 0 <= score <= 10 else isinstance(judgement, Failed)
    elif isinstance(judgement, Scored):
        assert isinstance(score, str) and any(digit in score for digit in "0123456789")


def test_build_returns_the_judge_of_the_settings():
    assert isinstance(build(schema.Judge()), ReferenceJudge) and build(schema.Judge()).name == "reference"
    judge = build(schema.Judge(kind="openai", url="http://127.0.0.1:9/v1", model="m"))
    assert isinstance(judge, OpenAIJudge)
    with pytest.raises(ValueError, match="needs url and model"):
        build(schema.Judge(kind="openai"))


def test_the_rubric_is_a_file_whose_text_is_part_of_the_judges_identity(tmp_path):
    endpoint = Endpoint(lambda *_: (200, chat(3)))
    (tmp_path / "rubric.md").write_text("Count the vowels.\n")
    with endpoint.running() as url:
        judge = OpenAIJudge(settings_at(url, rubric=tmp_path / "rubric.md"), QUICK)
        assert judge.score([item()]) == [Scored(3.0)]
        assert judge.identity != judge_at(url).identity
    assert endpoint.requests[0][2]["messages"][0]["content"] == "Count the vowels."
    with pytest.raises(ValueError, match=r"evaluate\.judge\.rubric"):
        OpenAIJudge(settings_at("http://127.0.0.1:9/v1", rubric=tmp_path / "none.md"))


def test_the_code_around_a_completion_fits_the_judges_context():
    endpoint = Endpoint(lambda *_: (200, chat(3)))
    asked = Item("abcdef", "ghijkl", "x", "x")
    with endpoint.running() as url:
        for most in (0, 2, 100):
            build(settings_at(url, context_characters=most)).score([asked])
    sent = [json.loads(body["messages"][1]["content"]) for _, _, body in endpoint.requests]
    assert [(one["before"], one["after"]) for one in sent] == [("", ""), ("ef", "gh"), ("abcdef", "ghijkl")]


def test_the_judge_that_scores_is_never_the_one_that_rewards():
    same = {"kind": "openai", "url": "http://127.0.0.1:1/v1", "model": "deepseek-chat"}
    elsewhere = same | {"url": "https://example.com/v1", "model": "DeepSeek-Chat"}
    with pytest.raises(ValueError, match=r"judged\.judge and evaluate\.judge are both deepseek-chat"):
        StudySettings.model_validate({"evaluate": {"judge": same}, "judged": {"judge": elsewhere}})
    with pytest.raises(ValueError, match=r"are both kept"):
        StudySettings.model_validate({"evaluate": {"judge": {"kind": "kept"}}})
    other = elsewhere | {"model": "another"}
    assert StudySettings.model_validate({"evaluate": {"judge": same}, "judged": {"judge": other}}).judged.judge.model == "another"
    assert build(StudySettings().judged.judge).name == "kept" != build(schema.Settings().evaluate.judge).name


@pytest.mark.parametrize(
    ("completion", "truth", "score"),
    [
        ("total", "total", 10.0),
        ("", "", 10.0),
        ("", "x", 0.0),
        ("x", "", 0.0),
        ("a b", "a c", 10 / 3),
        ("x = 1", "x = 1; y = 2", 50 / 12),
    ],
)
def test_the_kept_judge_scores_what_stands_of_both(completion, truth, score):
    assert KeptJudge().score([Item("", "", completion, truth)]) == [Scored(pytest.approx(score))]  # type: ignore[arg-type]  # approx compares as the number does


def test_a_judges_scores_are_kept_where_there_is_a_store():
    endpoint, store = Endpoint(lambda *_: (200, chat(3))), MemoryStore()
    with endpoint.running() as url:
        for _ in range(2):
            assert build(settings_at(url), store).score([item(n=1), item(n=2)]) == [Scored(3.0), Scored(3.0)]
    assert endpoint.attempts.total() == 2
    assert isinstance(build(schema.Judge(), store), ReferenceJudge), "computing a similarity is faster than looking it up"
