"""What OpenAI-compatible endpoints refuse and answer: the judge asks in another form, reads the score, or fails by name."""

import json
import re
import time
from collections import Counter
from typing import Any

import pytest

from tasks.evaluation.judge import Failed, FailureKind, Scored
from tasks.evaluation.judge.openai import OpenAIJudge
from tasks.evaluation.judge.reading import read_score
from tests.tasks.evaluation.chat_endpoint import Endpoint, chat, item
from tests.tasks.evaluation.test_judge import KEY, QUICK, judge_at, settings_at

DEEPSEEK = "This response_format type is unavailable now"


def error(message: str, **fields: Any) -> bytes:
    return json.dumps({"error": {"message": message, "type": "invalid_request_error", "param": None, **fields}}).encode()


def accepts(**wanted: Any):
    """Return a rule: an endpoint that refuses each field whose value is not among those wanted; "" for an absent field."""
    status, messages = wanted.pop("status", 400), wanted.pop("messages")

    def rule(material, _):
        request = material["request"]
        for name, values in wanted.items():
            value = request.get(name, "")
            value = value.get("type") if isinstance(value, dict) else value
            if value not in values:
                return status, error(messages[name]) if messages[name] else b""
        return 200, chat(7)

    return rule


FORMS = {
    "DeepSeek": accepts(response_format=("json_object", ""), messages={"response_format": DEEPSEEK}),
    "DeepSeek, before 2025": accepts(
        response_format=("json_object", ""),
        messages={
            "response_format": "Failed to deserialize the JSON body: response_format.type `json_schema` is unavailable now"
        },
        status=422,
    ),
    "deepseek-reasoner": accepts(
        response_format=("",), messages={"response_format": "deepseek-reasoner does not support Json Output."}
    ),
    "no structured output": accepts(response_format=("",), messages={"response_format": "Unknown parameter: 'response_format'."}),
    "OpenRouter": accepts(
        response_format=("",),
        messages={"response_format": "No endpoints found that can handle the requested parameters."},
        status=404,
    ),
    "a gateway without a reason": accepts(response_format=("",), messages={"response_format": ""}),
    "a server whose grammar fails": accepts(
        response_format=("json_object", ""), messages={"response_format": "guided decoding is not available"}, status=500
    ),
    "OpenAI's reasoning models": accepts(
        max_tokens=("",),
        temperature=("",),
        messages={
            "max_tokens": "Unsupported parameter: 'max_tokens' is unsupported. Use 'max_completion_tokens' instead.",
            "temperature": "Unsupported value: 'temperature' does not support 0. Only the default (1) is supported.",
        },
    ),
    "everything at once": accepts(
        max_tokens=("",),
        temperature=("",),
        response_format=("",),
        messages={
            "max_tokens": "max_tokens is not supported",
            "temperature": "`temperature` is deprecated for this model.",
            "response_format": "response_format is not supported",
        },
    ),
}


@pytest.mark.parametrize("rule", FORMS.values(), ids=FORMS.keys())
def test_an_endpoint_that_refuses_a_field_is_asked_without_it_and_it_is_remembered(rule) -> None:
    endpoint = Endpoint(rule)
    with endpoint.running() as url:
        judge = judge_at(url)
        assert judge.score([item()]) == [Scored(7.0)]
        learnt = endpoint.attempts.total()
        assert judge.score([item(n=n) for n in range(1, 30)]) == [Scored(7.0)] * 29
    assert 2 <= learnt <= 5 and endpoint.attempts.total() == learnt + 29, "refused requests are not repeated"


@pytest.mark.parametrize(
    "words", ["System role not supported", "Unsupported value: 'messages[0].role' does not support 'system' with this model"]
)
def test_a_chat_template_without_a_system_message_gets_the_instructions_from_the_user(words: str) -> None:
    def gemma(material, _):
        roles = [message["role"] for message in material["request"]["messages"]]
        return (200, chat(7)) if roles == ["user"] else (400, error(words))

    endpoint = Endpoint(gemma)
    with endpoint.running() as url:
        assert judge_at(url).score([item()]) == [Scored(7.0)]
    assert "You judge a code completion" in endpoint.requests[-1][2]["messages"][0]["content"]


def test_threads_that_find_the_form_at_once_all_get_their_scores() -> None:
    def slow(material, number):
        time.sleep(0.05)
        return FORMS["DeepSeek"](material, number)

    endpoint = Endpoint(slow)
    with endpoint.running() as url:
        assert judge_at(url).score([item(n=n) for n in range(12)]) == [Scored(7.0)] * 12


def test_a_rubric_without_the_word_json_gets_it_where_no_schema_is_sent(tmp_path) -> None:
    (tmp_path / "rubric.md").write_text("Count the vowels.")

    def rule(material, number):
        said = material["request"]["messages"][0]["content"]
        if material["request"]["response_format"]["type"] == "json_object" and "json" not in said.lower():
            return 400, error("Prompt must contain the word 'json' in some form to use 'response_format' of type 'json_object'.")
        return FORMS["DeepSeek"](material, number)

    endpoint = Endpoint(rule)
    with endpoint.running() as url:
        assert OpenAIJudge(settings_at(url, rubric=tmp_path / "rubric.md"), QUICK).score([item()]) == [Scored(7.0)]
    assert endpoint.requests[-1][2]["response_format"] == {"type": "json_object"}


READ = {
    "a number": 7,
    "a number with a point": 7.0,
    "fenced": '```json\n{"score": 7}\n```',
    "wordy": 'Here is my judgement:\n{"score": 7}\nIt stops halfway, so {more} is missing.',
    "a thought": '<think>A {"score": 3} at first? No.</think>\n\n{"score": 7}',
    "a thought whose start the template holds": 'Maybe {"score": 2}.\n</think>{"score": 7}',
    "commented": '{"score": 7 // it stops halfway\n}',
    "commented, with a comma": '{\n  "score": 7, /* good */\n}',
    "single quotes": "{'score': 7}",
    "a text": '{"score": "7"}',
    "of ten": '{"score": "7/10"}',
    "out of ten": '{"score": "7 out of 10"}',
    "a float": '{"score": 7.0}',
    "with a reason": '{"reason": "a // b", "score": 7}',
    "capital": '{"Score": 7}',
    "nested": '{"result": {"score": 7}}',
    "twice": '{"score": 7}\n{"score": 7}',
    "bare": " 7\n",
    "a BOM": '\ufeff{"score": 7}',
    "parts": [{"type": "text", "text": '{"score":'}, {"type": "text", "text": " 7}"}],
    "an object": {"score": 7},
}


@pytest.mark.parametrize("content", READ.values(), ids=READ.keys())
def test_a_score_is_read_wherever_it_is_clear(content: object) -> None:
    assert read_score(json.dumps({"choices": [{"message": {"content": content}, "finish_reason": "stop"}]})) == Scored(7.0)


UNREAD: dict[str, tuple[object, str, FailureKind, str]] = {
    "an unended thought": ('<think>\nThe form is {"score": 10}. Let me', "length", "cut_off", "finish_reason 'length'"),
    "two scores": ('{"score": 3} or {"score": 7}', "stop", "garbage", "2 different scores"),
    "percent": ('{"score": "85/100"}', "stop", "garbage", "85/100"),
    "a word": ('{"score": "high"}', "stop", "garbage", "'high'"),
    "a list": ('{"score": [7]}', "stop", "garbage", r"\[7\]"),
    "a truth value": ('{"score": true}', "stop", "garbage", "True"),
    "too high": ('{"score": "11"}', "stop", "out_of_range", "'11', expected 0 to 10"),
    "below": ('{"score": -1}', "stop", "out_of_range", "-1, expected 0 to 10"),
    "infinite": ('{"score": Infinity}', "stop", "out_of_range", "inf"),
    "other words": ("The completion is fine: 7 points, 3 of them for style.", "stop", "garbage", "no score"),
    "empty": ("", "stop", "garbage", "no score"),
    "null": (None, "stop", "garbage", "no score"),
    "cut off": ('{"sc', "length", "cut_off", "finish_reason 'length'"),
    "filtered": ("", "content_filter", "declined", "content_filter"),
    "deep": ("{" * 5000, "stop", "garbage", "no score"),
}


@pytest.mark.parametrize(("content", "finish", "kind", "words"), UNREAD.values(), ids=UNREAD.keys())
def test_what_holds_no_clear_score_fails_by_name(content: object, finish: str, kind: FailureKind, words: str) -> None:
    judgement = read_score(json.dumps({"choices": [{"message": {"content": content}, "finish_reason": finish}]}))
    assert isinstance(judgement, Failed) and judgement.kind == kind
    assert re.search(words, judgement.detail), judgement.detail


def test_an_answer_that_is_cut_off_by_its_thought_gets_more_tokens_once() -> None:
    def thinks(material, _):
        if material["request"]["max_tokens"] < 1000:
            message = {"content": "", "reasoning_content": "Let me see: the completion"}
            return 200, json.dumps({"choices": [{"message": message, "finish_reason": "length"}]}).encode()
        return 200, chat(7)

    endpoint = Endpoint(thinks)
    with endpoint.running() as url:
        judge = judge_at(url)
        assert judge.score([item(n=0)]) + judge.score([item(n=1)]) == [Scored(7.0)] * 2
    assert endpoint.attempts == Counter({"a = 0": 2, "a = 1": 1})
    endless = Endpoint(lambda *_: (200, json.dumps({"choices": [{"message": {}, "finish_reason": "length"}]}).encode()))
    with endless.running() as url:
        (judgement,) = judge_at(url).score([item()])
    assert isinstance(judgement, Failed) and judgement.kind == "cut_off" and endless.attempts.total() == 2


REFUSED: dict[str, tuple[int, bytes, FailureKind, str]] = {
    "a wrong key": (401, error("Authentication Fails (no such user)"), "refused", "Authentication Fails.*judge.api_key"),
    "no balance": (402, error("Insufficient Balance"), "refused", "Insufficient Balance.*no balance"),
    "no quota": (429, error("You exceeded your current quota", code="insufficient_quota"), "refused", "no quota left"),
    "no rights": (403, error("Your account cannot use this model"), "refused", "evaluate.judge.model"),
    "no model": (404, error("The model `deepseek-chatt` does not exist"), "refused", "does not exist.*evaluate.judge.model"),
    "no model, by 400": (400, error("Model Not Exist"), "refused", "Model Not Exist.*evaluate.judge.model"),
    "a wrong path": (404, b"<html>not found</html>", "refused", "includes /v1"),
    "a redirect": (301, b"", "refused", "evaluate.judge.url"),
    "DeepSeek's filter": (400, error("Content Exists Risk"), "declined", "Content Exists Risk.*filters"),
    "Azure's filter": (400, error("The response was filtered", code="content_filter"), "declined", "filtered|filters"),
    "too long": (
        400,
        error("'max_tokens' is too large: 64. This model's maximum context length is 2048 tokens"),
        "declined",
        "context_characters",
    ),
    "detail as a list": (422, b'{"detail":[{"loc":["body","model"],"msg":"unknown"}]}', "refused", "unknown"),
}


@pytest.mark.parametrize(("status", "body", "kind", "words"), REFUSED.values(), ids=REFUSED.keys())
def test_a_refusal_has_the_endpoints_words_and_the_setting(status: int, body: bytes, kind: FailureKind, words: str) -> None:
    endpoint = Endpoint(lambda *_: (status, body))
    with endpoint.running() as url:
        (judgement,) = judge_at(url).score([item()])
    assert isinstance(judgement, Failed) and judgement.kind == kind, judgement
    assert re.search(words, judgement.detail), judgement.detail
    assert endpoint.attempts.total() <= 3


def test_the_endpoints_words_never_show_the_key() -> None:
    with Endpoint(lambda *_: (401, error(f"Incorrect API key provided: {KEY}"))).running() as url:
        (judgement,) = judge_at(url).score([item()])
    assert "Incorrect API key" in repr(judgement) and KEY not in repr(judgement)


def test_a_filtered_text_does_not_end_the_questions() -> None:
    filtered = Endpoint(
        lambda material, _: (400, error("Content Exists Risk")) if material["before"] < "a = 5" else (200, chat(7))
    )
    with filtered.running() as url:
        found = judge_at(url).score([item(n=n) for n in range(10)])
    assert [isinstance(one, Scored) for one in found] == [False] * 5 + [True] * 5


AWAY = {
    "overloaded": (529, error("overloaded_error")),
    "Cloudflare": (524, b"<html>"),
    "rate limit": (429, error("Rate limit reached")),
    "OpenRouter, by 200": (200, b'{"error": {"code": 429, "message": "Provider returned error"}}'),
    "an error by 200": (200, b'{"error": {"message": "upstream"}}'),
}


@pytest.mark.parametrize("answer", AWAY.values(), ids=AWAY.keys())
def test_an_endpoint_that_is_away_is_asked_again(answer: tuple[int, bytes]) -> None:
    endpoint = Endpoint(lambda _, number: answer if number == 1 else (200, chat(7)))
    with endpoint.running() as url:
        assert judge_at(url).score([item()]) == [Scored(7.0)]
    with Endpoint(lambda *_: answer).running() as url:
        (judgement,) = judge_at(url).score([item()])
    assert isinstance(judgement, Failed) and judgement.kind == "unavailable"


def test_the_pause_that_an_endpoint_asks_for_is_kept() -> None:
    waited: list[float] = []
    answers = {1: {"Retry-After": "2"}, 2: {"Retry-After": "Thu, 01 Jan 1970 00:00:00 GMT"}}
    endpoint = Endpoint(lambda _, number: (429, b"", answers[number]) if number in answers else (200, chat(7)))
    with endpoint.running() as url:
        assert OpenAIJudge(settings_at(url), QUICK, waited.append).score([item()]) == [Scored(7.0)]
    assert waited == [2.0, pytest.approx(0.02)]
    with Endpoint(lambda *_: (429, error("slow down"), {"Retry-After": "600"})).running() as url:
        (judgement,) = OpenAIJudge(settings_at(url), QUICK, waited.append).score([item()])
    assert isinstance(judgement, Failed) and judgement.kind == "unavailable" and len(waited) == 2, "beyond the deadline"
