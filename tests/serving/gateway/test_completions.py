"""Completions: the response and the record."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from serving.recording import journal
from tests.serving.fakes import HEADERS, TEXT, TOKEN, House
from tests.serving.helpers import ADMINISTRATOR, CONTINUE, events, until
from tests.serving.recording.faulty_disk import FaultyDisk

JSON = {"Content-Type": "application/json"}


async def test_continue_gets_a_stream_and_the_completion_is_recorded(house: House) -> None:
    async with house.client.stream("POST", house.urls[0] + "/v1/completions", json=CONTINUE) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["connection"] == "close" and "x-tabloop-version" not in response.headers
        assert response.headers["x-accel-buffering"] == "no"
        data = events((await response.aread()).decode())
    assert data.pop() == "[DONE]"
    chunks = [json.loads(event) for event in data]
    texts = [chunk["choices"][0]["text"] for chunk in chunks]
    assert "".join(texts) == TEXT and len(texts) > 2  # the first token at once, then the other tokens together, then the end
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * (len(chunks) - 1) + ["length"]
    (row,) = house.rows("completions")
    assert {chunk["id"] for chunk in chunks} == {row.id}
    assert (row.text, row.prefix, row.suffix) == (TEXT, "def f(x):\n    ", "\n\nprint(1)\n")
    assert (row.client, row.project, row.arm, row.experiment) == ("continue", "p1", "champion", "")
    assert row.token_ids == tuple(house.engines[0].reply) and set(row.logprobs) == {-0.5}
    assert row.token_ends[-1] == len(TEXT) and list(row.token_ends) == sorted(row.token_ends)
    assert (row.temperature, row.top_p, row.max_tokens) == (0.8, 1.0, 24)
    assert row.ttft_ms is not None and 0 < row.ttft_ms <= row.total_ms


async def test_an_improbable_completion_is_cut_recorded_and_not_shown(tmp_path: Path, tokenizer: Tokenizer) -> None:
    async with House(tmp_path, tokenizer, withhold_below=0.3) as house:
        house.engines[0].reply = tokenizer.encode(TEXT).ids * 3
        house.engines[0].delay = 0.01
        response = await house.client.post(house.urls[0] + "/v1/completions", json=CONTINUE)
        (chunk,) = [json.loads(event) for event in events(response.text)[:-1]]
        assert chunk["choices"][0] == {"text": "", "index": 0, "logprobs": None, "finish_reason": "stop"}
        (row,) = house.rows("completions")
        assert row.withheld and row.text == "" and row.policy_version == "0" and not row.mixed
        assert len(row.token_ids) == 3  # e^-1.5 is the first below 0.3
        assert 'tabloop_withheld_total{arm="champion",sampling="served",version="0"} 1.0' in house.metrics_text().decode()


async def test_withhold_below_delays_a_probable_completion_to_its_end(tmp_path: Path, tokenizer: Tokenizer) -> None:
    async with House(tmp_path, tokenizer, withhold_below=1e-9) as house:
        response = await house.client.post(house.urls[0] + "/v1/completions", json=CONTINUE)
        texts = [json.loads(event)["choices"][0]["text"] for event in events(response.text)[:-1]]
        assert texts == [TEXT, ""]
        (row,) = house.rows("completions")
        assert not row.withheld and row.text == TEXT and len(row.token_ids) == len(house.engines[0].reply)


async def test_the_completion_is_recorded_before_the_last_chunk(house: House) -> None:
    async with house.client.stream("POST", house.urls[0] + "/v1/completions", json=CONTINUE) as response:
        async for line in response.aiter_lines():
            if '"finish_reason": "length"' in line:
                assert len(house.rows("completions")) == 1
                return
    raise AssertionError("no last chunk")


async def test_the_last_text_and_the_end_are_sent_together(house: House) -> None:
    house.engines[0].delay = 0.02  # token by token
    async with house.client.stream("POST", house.urls[0] + "/v1/completions", json=CONTINUE) as response:
        *earlier_chunks, last = [chunk async for chunk in response.aiter_raw()]
    assert len(earlier_chunks) > 1 and not any(b"[DONE]" in chunk for chunk in earlier_chunks)
    text, finish, done = events(last.decode())
    assert json.loads(text)["choices"][0]["text"] and TEXT.endswith(json.loads(text)["choices"][0]["text"])
    assert json.loads(finish)["choices"][0]["finish_reason"] == "length" and done == "[DONE]"


async def test_a_completion_of_a_client_that_takes_not_even_the_head_is_recorded(tmp_path: Path, tokenizer: Tokenizer) -> None:
    async with House(tmp_path, tokenizer, withhold_below=0.3) as house:  # nothing is sent before the end
        headers = {"host": "127.0.0.1", "content-type": "application/json", **HEADERS}
        raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        scope = {"type": "http", "method": "POST", "path": "/v1/completions", "query_string": b"", "headers": raw}
        messages = asyncio.Queue[dict[str, Any]]()
        messages.put_nowait({"type": "http.request", "body": json.dumps(CONTINUE).encode()})

        async def send(message: Any) -> None:
            messages.put_nowait({"type": "http.disconnect"})
            await asyncio.Event().wait()  # its connection takes no byte

        await house.apps[0]({**scope, "http_version": "1.1"}, messages.get, send)
        assert len(house.rows("completions")) == 1


async def test_the_engine_gets_the_prompt_in_the_models_order(house: House, tokenizer: Tokenizer) -> None:
    await house.complete(prompt="a<|fim_middle|>b", suffix="\n#end")  # this marker is part of the developer's text
    prompt_ids = house.engines[0].requests[-1].prompt_token_ids
    frame = [i for t in ("<|fim_suffix|>", "<|fim_prefix|>", "<|fim_middle|>") if (i := tokenizer.token_to_id(t)) is not None]
    assert len(frame) == 3
    assert [t for t in prompt_ids if t in frame] == frame
    assert (prompt_ids[0], prompt_ids[-1]) == (frame[0], frame[2])
    assert tokenizer.decode(prompt_ids[1 : prompt_ids.index(frame[1])]) == "\n#end"


async def test_the_prompt_of_a_long_file_is_the_text_next_to_the_cursor(house: House, tokenizer: Tokenizer) -> None:
    lines = [f"value_{n} = {n}\n" for n in range(20_000)]
    await house.complete(prompt="".join(lines), suffix="".join(lines))
    prompt_ids = house.engines[0].requests[-1].prompt_token_ids
    marker = tokenizer.token_to_id("<|fim_prefix|>")
    assert marker is not None
    prefix_text = tokenizer.decode(prompt_ids[prompt_ids.index(marker) + 1 :])
    assert 30 + 20 + 3 <= len(prompt_ids) <= 40 + 20 + 3
    assert prefix_text.startswith("value_") and prefix_text.endswith("value_19999 = 19999\n")
    (row,) = house.rows("completions")
    assert "".join(lines).endswith(row.prefix) and "".join(lines).startswith(row.suffix)
    assert 8_192 <= len(row.prefix) < 8_192 + 4_096 and len(row.suffix) == 8_192, "what is kept of a megabyte"


async def test_max_tokens_can_lower_the_limit_but_not_raise_it(house: House) -> None:
    for requested, expected_tokens in ((3, 3), (4096, len(house.engines[0].reply)), (None, len(house.engines[0].reply))):
        response = (await house.complete(max_tokens=requested)).json()
        assert response["usage"]["completion_tokens"] == expected_tokens
        assert response["choices"][0]["finish_reason"] == "length"


async def test_a_stop_string_cuts_the_text_but_not_the_recorded_tokens(house: House) -> None:
    house.engines[0].delay = 0.02
    response = (await house.complete(stop=["a + b", "zzz"])).json()
    assert response["choices"][0] == {"text": "return alph", "index": 0, "logprobs": None, "finish_reason": "stop"}
    (row,) = house.rows("completions")
    assert row.text == "return alph" and house.tokenizer.decode(list(row.token_ids)).startswith("return alpha + b")
    assert row.token_ends[-1] >= len("return alpha + b")
    await until(lambda: house.engines[0].aborted == 1 or len(row.token_ids) == len(house.engines[0].reply))


async def test_the_end_token_ends_a_completion_and_is_recorded(house: House) -> None:
    house.engines[0].reply = [*house.engines[0].reply, 0]
    response = (await house.complete()).json()
    assert response["choices"][0]["text"] == TEXT and response["choices"][0]["finish_reason"] == "stop"
    assert house.rows("completions")[0].token_ids[-1] == 0


async def test_a_disconnect_stops_the_engine_and_the_completion_is_recorded(house: House) -> None:
    engine = house.engines[0]
    engine.delay = 0.3
    for stream in (True, False):
        sampled = engine.sampled
        request = house.client.build_request("POST", house.urls[0] + "/v1/completions", json={**CONTINUE, "stream": stream})
        task = asyncio.create_task(house.client.send(request, stream=True))
        await until(lambda: engine.sampled == sampled + 2)  # noqa: B023
        if stream:
            await (await task).aclose()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        count = 1 if stream else 2
        await until(lambda: len(house.rows("completions")) == count)  # noqa: B023
        row = house.rows("completions")[-1]
        assert row.finish_reason == "disconnected" and 0 < len(row.token_ids) < len(house.engines[0].reply)
        assert TEXT.startswith(row.text) and row.policy_version == "0" and not row.mixed
    await until(lambda: house.engines[0].aborted == 2)
    assert all(slot.in_flight == 0 for slot in house.arms.slots)


async def test_the_other_engine_serves_when_one_is_down(house: House) -> None:
    house.engines[0].up = False
    assert (await house.complete()).json()["choices"][0]["text"] == "return gamma"
    assert (await house.complete()).status_code == 200
    house.engines[1].up = False
    for _ in range(2):
        response = await house.complete(stream=True)
        assert response.status_code == 503 and int(response.headers["retry-after"]) > 0
        assert response.json()["error"]["type"] == "server_error"
    for path in ("/ready", "/v1/health"):
        assert (await house.client.get(house.urls[0] + path)).status_code == 503
    assert (await house.client.get(house.urls[1] + "/ready")).status_code == 200, "a balancer still sends feedback here"
    assert (await house.send_feedback("/v1/feedback", {"completion_id": "made-up", "outcome": "accepted"})).status_code == 200
    house.engines[0].up = True
    await house.follow()
    assert (await house.client.get(house.urls[0] + "/ready")).status_code == 200
    assert (await house.complete()).json()["choices"][0]["text"] == TEXT


async def test_a_stream_ends_with_an_error_when_the_engine_fails(house: House) -> None:
    house.engines[0].fails_after, house.engines[0].delay = 2, 0.02
    response = await house.complete(stream=True)
    *texts, error, end = events(response.text)
    assert response.status_code == 200 and end == "[DONE]" and texts
    assert {json.loads(event)["choices"][0]["finish_reason"] for event in texts} == {None}
    assert json.loads(error)["error"]["type"] == "server_error"
    (row,) = house.rows("completions")
    assert row.finish_reason == "error" and len(row.token_ids) == 2


async def test_a_whole_response_has_the_text_before_the_engines_failure(house: House) -> None:
    house.engines[0].fails_after, house.engines[0].delay = 2, 0.02
    choice = (await house.complete()).json()["choices"][0]
    assert TEXT.startswith(choice["text"]) and (choice["text"] != "", choice["finish_reason"]) == (True, "length")
    assert house.rows("completions")[0].finish_reason == "error"


@pytest.mark.parametrize("body", [{}, {"stream": True}, {"segments": {"prefix": "a"}}])
async def test_an_engine_failure_before_any_text_returns_503(tmp_path: Path, tokenizer: Tokenizer, body: dict[str, Any]) -> None:
    async with House(tmp_path, tokenizer, withhold_below=1e-9) as house:  # no text is sent before the end
        house.engines[0].fails_after, house.engines[0].delay = 2, 0.02
        response = await house.complete(**body)
        assert response.status_code == 503 and int(response.headers["retry-after"]) > 0
        assert response.json()["error"]["type"] == "server_error"
        (row,) = house.rows("completions")
        assert row.finish_reason == "error" and len(row.token_ids) == 2


async def test_an_engine_with_unexpected_weights_is_not_used(house: House) -> None:
    house.engines[0].version = "7"  # the engine restarted, and the follower has not seen it yet
    assert (await house.complete()).json()["choices"][0]["text"] == "return gamma"
    assert house.rows("completions")[0].policy_version == "0"


async def test_a_user_who_opted_out_is_served_and_recorded_without_text(house: House) -> None:
    assert (await house.complete(headers={"X-Tabloop-Opt-Out": "1"})).json()["choices"][0]["text"] == TEXT
    (row,) = house.rows("completions")
    assert row.opted_out and (row.prefix, row.suffix, row.text, row.token_ids, row.prompt_token_ids) == ("", "", "", (), ())


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"prompt": 3}, "prompt"),
        ({"prompt": ["a", "b"]}, "prompt"),
        ({"prompt": "<|fim_middle|>x<|fim_prefix|>"}, "prompt"),
        ({"n": 2}, "n"),
        ({"n": True}, "n"),
        ({"echo": 0}, "echo"),
        ({"presence_penalty": False}, "presence_penalty"),
        ({"echo": True}, "echo"),
        ({"logprobs": 5}, "logprobs"),
        ({"max_tokens": "many"}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"stop": {"a": 1}}, "stop"),
        ({"stop": ["x"] * 100}, "stop"),
        ({"suffix": 1}, "suffix"),
        ({"stream": 1}, "stream"),
        ({"stream": True, "stream_options": {"include_usage": "yes"}}, "stream_options.include_usage"),
        ({"stream_options": True}, "stream_options"),
        ({"seed": 7}, "seed"),
        ({"logit_bias": {"50256": -100}}, "logit_bias"),
        ({"presence_penalty": 0.5}, "presence_penalty"),
        ({"frequency_penalty": -1}, "frequency_penalty"),
        ({"best_of": 2}, "best_of"),
        ({"segments": 1}, "segments"),
        ({"segments": {"prefix": 1}}, "segments.prefix"),
    ],
)
async def test_an_invalid_body_gets_an_error_that_names_the_field(house: House, body: dict[str, Any], field: str) -> None:
    response = await house.complete(**body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == field and field in response.json()["error"]["message"]
    assert house.rows("completions") == []


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"stream": "true"}, 'stream: expected true or false, got "true"'),
        ({"max_tokens": "64"}, 'max_tokens: expected a whole number of at least 1, got "64"'),
        ({"suffix": ["x"]}, "suffix: expected a string, got a list"),
        ({"stream_options": []}, "stream_options: expected an object, got a list"),
        ({"echo": True}, "echo: true is not supported, expected false or nothing: the response does not repeat the prompt"),
        ({"segments": {"prefix": None}}, "segments.prefix: expected a string, got null"),
    ],
)
async def test_an_error_has_the_value_as_the_client_sent_it(house: House, body: dict[str, Any], message: str) -> None:
    assert (await house.complete(**body)).json()["error"]["message"] == message


async def test_errors_have_openais_shape(house: House) -> None:
    url = house.urls[0]
    responses = [
        (401, await house.complete(headers={"Authorization": ""})),
        (401, await house.complete(headers={"Authorization": "Bearer undefined"})),
        (400, await house.complete(headers={"X-Project-ID": "../x"})),
        (413, await house.complete(prompt="x" * 2_000_000)),
        (400, await house.client.post(url + "/v1/completions", content=b"[" * 100_000, headers=JSON)),
        (415, await house.client.post(url + "/v1/completions", content=b'{"prompt": "x"}')),
        (400, await house.client.post(url + "/v1/chat/completions", json={})),
        (404, await house.client.get(url + "/v2/completions")),
        (405, await house.client.get(url + "/v1/completions")),
        (403, await house.client.get(url + "/admin/status")),
    ]
    for status, response in responses:
        assert (response.status_code, set(response.json()["error"])) == (status, {"message", "type", "param", "code"})
    for empty in ("", "Bearer"):
        assert (await house.complete(headers={"Authorization": empty, "api-key": TOKEN})).status_code == 200


async def test_a_refused_token_gets_a_challenge_that_opens_no_dialog_of_a_browser(house: House) -> None:
    for url in house.urls:
        response = await house.client.post(url + "/v1/feedback", json={}, headers={"Authorization": "Bearer x"})
        assert (response.status_code, response.headers["www-authenticate"]) == (401, "Bearer")


async def test_a_disconnect_during_the_body_is_not_a_server_error(house: House, caplog: pytest.LogCaptureFixture) -> None:
    for url in house.urls:
        port = int(url.rsplit(":", 1)[1])
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        path = "/v1/completions" if url == house.urls[0] else "/v1/feedback"
        head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {TOKEN}\r\n"
        head += "Content-Type: application/json\r\nContent-Length: 100\r\n\r\n"
        writer.write(head.encode() + b'{"prompt":')
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.close()
    expected_metric = b'tabloop_refused_total{status="499"} 2.0'
    await until(lambda: expected_metric in house.metrics_text())
    assert "Traceback" not in caplog.text


async def test_default_values_of_editors_are_accepted(house: House) -> None:
    ignored_values: dict[str, Any] = {
        "temperature": 0.01,
        "top_p": 0.9,
        "top_k": 40,
        "min_p": 0.05,
        "model": "another",
        "user": "ada",
    }
    default_values: dict[str, Any] = {
        "n": 1,
        "best_of": 1,
        "echo": False,
        "logprobs": None,
        "seed": None,
        "logit_bias": {},
        "stream": False,
    }
    default_values |= {"presence_penalty": 0, "frequency_penalty": 0.0, "repetition_penalty": 1.0, "stream_options": None}
    response = (await house.complete(**ignored_values, **default_values)).json()
    assert (response["choices"][0]["text"], response["model"]) == (TEXT, "qwen-coder-x")


async def test_a_stream_ends_with_the_usage_if_requested(house: House) -> None:
    response = await house.complete(stream=True, stream_options={"include_usage": True})
    *chunks, usage = [json.loads(event) for event in events(response.text)[:-1]]
    tokens = len(house.engines[0].reply)
    prompt = len(house.engines[0].requests[-1].prompt_token_ids)
    assert {"choices": [], "usage": usage["usage"]}.items() <= usage.items()
    assert usage["usage"] == {"prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens}
    assert all(chunk["usage"] is None and chunk["id"] == usage["id"] for chunk in chunks)


async def test_models_status_and_metrics_respond(house: House) -> None:
    await house.complete()
    get = house.client.get
    assert (await get(house.urls[0] + "/v1/models")).json()["data"][0]["id"] == "qwen-coder-x"
    status = (await get(house.urls[0] + "/admin/status", headers=ADMINISTRATOR)).json()
    assert (status["champion"], status["challenger"], status["ready"]) == ("0", None, True)
    text = (await get(house.urls[0] + "/metrics", headers=ADMINISTRATOR)).text
    assert 'tabloop_completions_total{arm="champion",finish="length",sampling="served",version="0"} 1.0' in text
    assert "tabloop_spool_bytes" in text and 'tabloop_slot_up{project="",role="champion",slot="0",version="0"} 1.0' in text


async def test_a_full_spool_does_not_stop_completions(tmp_path: Path, tokenizer: Tokenizer) -> None:
    async with House(tmp_path, tokenizer, spool_bytes=0) as house:
        assert (await house.complete()).json()["choices"][0]["text"] == TEXT
        response = await house.send_feedback("/v1/feedback", {"completion_id": "c", "outcome": "accepted"})
        assert response.status_code == 503 and int(response.headers["retry-after"]) > 0
        assert b"tabloop_unrecorded_total 1.0" in house.metrics_text()


async def test_a_failed_sync_of_a_record_is_logged_and_counted(
    house: House, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(journal, "os", disk := FaultyDisk())
    disk.sync_fails = True
    assert (await house.complete()).json()["choices"][0]["text"] == TEXT
    await house.spool.close()
    assert b"tabloop_unrecorded_total 1.0" in house.metrics_text()
    assert "is not recorded: [Errno 5] broken" in caplog.text and house.rows("completions") == []
