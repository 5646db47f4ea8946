"""/infill: the fields that llama.vim and llama.vscode send, and the responses in their shape."""

import json
from typing import Any

import pytest

from tests.serving.fakes import TEXT, House
from tests.serving.helpers import INFILL, events, until


async def test_n_predict_limits_the_tokens_unless_it_is_minus_1_or_absent(house: House) -> None:
    token_counts = []
    for n_predict in (128, 3, -1, None):
        await house.complete("/infill", **{**INFILL, "n_predict": n_predict})
        token_counts.append(len(house.rows("completions")[-1].token_ids))
    body = {name: value for name, value in INFILL.items() if name != "n_predict"}
    await house.complete("/infill", **body)
    reply_length = len(house.engines[0].reply)
    assert [*token_counts, len(house.rows("completions")[-1].token_ids)] == [
        reply_length,
        3,
        reply_length,
        reply_length,
        reply_length,
    ]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"n_predict": False}, "n_predict"),
        ({"t_max_predict_ms": "soon"}, "t_max_predict_ms"),
        ({"response_fields": "content"}, "response_fields"),
        ({"stream": "yes"}, "stream"),
    ],
)
async def test_an_invalid_body_gets_an_error_that_names_the_field(house: House, body: dict[str, Any], field: str) -> None:
    response = await house.complete("/infill", **INFILL | body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, field)
    assert house.rows("completions") == []


async def test_the_response_has_the_figures_that_llama_vscode_shows(house: House) -> None:
    house.engines[0].delay = 0.002
    response = (await house.complete("/infill", **INFILL)).json()
    prompt, sampled = len(house.engines[0].requests[-1].prompt_token_ids), len(house.engines[0].reply)
    assert response["generation_settings"] == {"n_ctx": 40 + 20 + 3 + 24}
    assert (response["tokens_cached"], response["tokens_evaluated"], response["truncated"]) == (prompt + sampled, prompt, False)
    timings = response["timings"]
    assert (timings["prompt_n"], timings["predicted_n"]) == (prompt, sampled)
    assert timings["predicted_ms"] >= 2 * (sampled - 1) and timings["prompt_ms"] > 0
    assert timings["predicted_per_second"] == pytest.approx(sampled * 1e3 / timings["predicted_ms"], rel=0.01)
    row = house.rows("completions")[-1]
    assert timings["prompt_ms"] + timings["predicted_ms"] == pytest.approx(row.total_ms, abs=0.01)


async def test_the_response_has_the_fields_in_response_fields(house: House) -> None:
    fields = ["content", "timings/prompt_n", "truncated", "timings/no_such", "content/x"]
    response = (await house.complete("/infill", **INFILL, response_fields=fields)).json()
    prompt = len(house.engines[0].requests[-1].prompt_token_ids)
    assert response == {"content": TEXT, "timings/prompt_n": prompt, "truncated": False}


async def test_infill_streams_texts_and_a_last_event(house: House) -> None:
    *texts, last = map(json.loads, events((await house.complete("/infill", **INFILL, stream=True)).text))
    assert "".join(event["content"] for event in texts) == TEXT and not any(event["stop"] for event in texts)
    assert (last["stop"], last["content"], last["tokens_predicted"]) == (True, "", len(house.engines[0].reply))


async def test_sampling_ends_after_t_max_predict_ms_once_a_line_is_complete(house: House) -> None:
    engine = house.engines[0]
    engine.delay = 0.03
    for reply, cut in (("return alpha\n + beta + gamma + delta + epsilon", True), (TEXT, False)):
        engine.reply = house.tokenizer.encode(reply).ids
        content = (await house.complete("/infill", **INFILL, t_max_predict_ms=1)).json()["content"]
        assert (content == reply[: len(content)], content != reply) == (True, cut)
        row = house.rows("completions")[-1]
        assert row.finish_reason == "length" and (len(row.token_ids) < len(engine.reply)) == cut
        assert "\n" in content or not cut
    await until(lambda: engine.aborted == 1)


async def test_a_stream_ends_with_an_error_when_the_engine_fails(house: House) -> None:
    house.engines[0].fails_after, house.engines[0].delay = 2, 0.02
    *texts, error = map(json.loads, events((await house.complete("/infill", **INFILL, stream=True)).text))
    assert texts and not any(event["stop"] for event in texts) and error["error"]["type"] == "server_error"
