"""/infill: the fields that llama.vim and llama.vscode send, and the responses in their shape."""

import json

import pytest

from tests.serving.asked import INFILL, events, until
from tests.serving.fakes import TEXT, House


async def test_infill_samples_as_many_tokens_as_are_asked_for_and_all_where_none_are(house: House) -> None:
    sampled = []
    for n_predict in (128, 3, -1, None):
        await house.complete("/infill", **{**INFILL, "n_predict": n_predict})
        sampled.append(len(house.rows("completions")[-1].token_ids))
    body = {name: value for name, value in INFILL.items() if name != "n_predict"}
    await house.complete("/infill", **body)
    whole = len(house.engines[0].reply)
    assert [*sampled, len(house.rows("completions")[-1].token_ids)] == [whole, 3, whole, whole, whole]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"n_predict": False}, "n_predict"),
        ({"t_max_predict_ms": "soon"}, "t_max_predict_ms"),
        ({"response_fields": "content"}, "response_fields"),
        ({"stream": "yes"}, "stream"),
    ],
)
async def test_a_bad_infill_gets_an_error_that_names_the_field(house: House, body: dict[str, object], field: str) -> None:
    answer = await house.complete("/infill", **INFILL | body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, field)
    assert house.rows("completions") == []


async def test_infill_tells_what_llama_vscode_shows(house: House) -> None:
    house.engines[0].delay = 0.002
    found = (await house.complete("/infill", **INFILL)).json()
    prompt, sampled = len(house.engines[0].requests[-1].prompt_token_ids), len(house.engines[0].reply)
    assert found["generation_settings"] == {"n_ctx": 40 + 20 + 3 + 24, "n_predict": 24, "temperature": 0.8, "top_p": 1.0}
    assert (found["tokens_cached"], found["tokens_evaluated"], found["truncated"]) == (prompt + sampled, prompt, False)
    timings = found["timings"]
    assert (timings["prompt_n"], timings["predicted_n"]) == (prompt, sampled)
    assert timings["predicted_ms"] >= 2 * (sampled - 1) and timings["prompt_ms"] > 0
    assert timings["predicted_per_second"] == pytest.approx(sampled * 1e3 / timings["predicted_ms"], rel=0.01)
    row = house.rows("completions")[-1]
    assert timings["prompt_ms"] + timings["predicted_ms"] == pytest.approx(row.total_ms, abs=0.01)


async def test_infill_tells_the_fields_that_are_named(house: House) -> None:
    fields = ["content", "timings/prompt_n", "truncated", "timings/no_such", "content/x"]
    found = (await house.complete("/infill", **INFILL, response_fields=fields)).json()
    prompt = len(house.engines[0].requests[-1].prompt_token_ids)
    assert found == {"content": TEXT, "timings/prompt_n": prompt, "truncated": False}


async def test_infill_streams(house: House) -> None:
    *texts, last = map(json.loads, events((await house.complete("/infill", **INFILL, stream=True)).text))
    assert "".join(event["content"] for event in texts) == TEXT and not any(event["stop"] for event in texts)
    assert (last["stop"], last["content"], last["tokens_predicted"]) == (True, "", len(house.engines[0].reply))


async def test_infill_ends_at_its_time_once_there_is_a_line(house: House) -> None:
    engine = house.engines[0]
    engine.delay = 0.03
    for reply, ended in (("return alpha\n + beta + gamma + delta + epsilon", True), (TEXT, False)):
        engine.reply = house.tokenizer.encode(reply).ids
        content = (await house.complete("/infill", **INFILL, t_max_predict_ms=1)).json()["content"]
        assert (content == reply[: len(content)], content != reply) == (True, ended)
        row = house.rows("completions")[-1]
        assert row.finish_reason == "length" and (len(row.token_ids) < len(engine.reply)) == ended
        assert "\n" in content or not ended
    await until(lambda: engine.aborted == 1)


async def test_an_infill_stream_says_so_too(house: House) -> None:
    """That the engine died in the middle."""
    house.engines[0].dies_after, house.engines[0].delay = 2, 0.02
    *texts, error = map(json.loads, events((await house.complete("/infill", **INFILL, stream=True)).text))
    assert texts and not any(event["stop"] for event in texts) and error["error"]["type"] == "server_error"
