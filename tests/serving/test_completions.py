"""What an editor gets, and what is recorded of it."""

import asyncio
import hashlib
import json
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from infra.identity import user_hash
from infra.settings.schema import Sampling, Serving
from serving import access
from serving.access import Bucket
from tests.serving.fakes import ADMIN, TOKEN, House, experiment

TEXT = "return alpha + beta"
ADMINISTRATOR = {"Authorization": f"Bearer {ADMIN}"}
CONTINUE = {
    "model": "qwen-coder",
    "max_tokens": 4096,
    "temperature": 0.01,
    "stream": True,
    "stop": ["<|endoftext|>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "/src/", "#- coding: utf-8", "```"],
    "prompt": "<|fim_prefix|>def f(x):\n    <|fim_suffix|>\n\nprint(1)\n<|fim_middle|>",
}

INFILL = {"input_prefix": "import os\n", "input_suffix": "\n", "prompt": "x = ", "n_predict": 128}


def events(body: str) -> list[str]:
    lines = body.split("\n\n")
    assert lines.pop() == "" and all(line.startswith("data: ") for line in lines)
    return [line.removeprefix("data: ") for line in lines]


async def test_continue_gets_its_stream_and_what_it_got_is_recorded(house: House) -> None:
    async with house.client.stream("POST", house.urls[0] + "/v1/completions", json=CONTINUE) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["connection"] == "close" and answer.headers["x-tabloop-version"] == "0"
        found = events((await answer.aread()).decode())
    assert found.pop() == "[DONE]"
    chunks = [json.loads(event) for event in found]
    texts = [chunk["choices"][0]["text"] for chunk in chunks]
    assert "".join(texts) == TEXT and len(texts) > 2  # the first token at once, the rest together, the end
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * (len(chunks) - 1) + ["length"]
    (row,) = house.rows("completions")
    assert {chunk["id"] for chunk in chunks} == {row.id}
    assert (row.text, row.prefix, row.suffix) == (TEXT, "def f(x):\n    ", "\n\nprint(1)\n")
    assert (row.client, row.project, row.arm, row.experiment) == ("continue", "p1", "champion", "")
    assert row.token_ids == tuple(house.engines[0].reply) and set(row.logprobs) == {-0.5}
    assert row.token_ends[-1] == len(TEXT) and list(row.token_ends) == sorted(row.token_ends)
    assert (row.temperature, row.top_p, row.max_tokens) == (0.8, 1.0, 24)
    assert row.ttft_ms is not None and 0 < row.ttft_ms <= row.total_ms


async def test_what_the_model_doubts_is_sampled_no_further_recorded_and_not_shown(tmp_path: Path, tokenizer: Tokenizer) -> None:
    async with House(tmp_path, tokenizer, withhold_below=0.3) as house:
        house.engines[0].reply = tokenizer.encode(TEXT).ids * 3
        house.engines[0].delay = 0.01
        answer = await house.client.post(house.urls[0] + "/v1/completions", json=CONTINUE)
        (chunk,) = [json.loads(event) for event in events(answer.text)[:-1]]
        assert chunk["choices"][0] == {"text": "", "index": 0, "logprobs": None, "finish_reason": "stop"}
        (row,) = house.rows("completions")
        assert row.withheld and row.text == "" and row.policy_version == "0" and not row.mixed
        assert len(row.token_ids) == 3  # e^-1.5 is the first below 0.3
        assert 'tabloop_withheld_total{arm="champion",version="0"} 1.0' in house.metrics.text(house.arms, house.spool).decode()


async def test_what_the_model_believes_is_shown_at_once_where_some_is_withheld(tmp_path: Path, tokenizer: Tokenizer) -> None:
    async with House(tmp_path, tokenizer, withhold_below=1e-9) as house:
        answer = await house.client.post(house.urls[0] + "/v1/completions", json=CONTINUE)
        texts = [json.loads(event)["choices"][0]["text"] for event in events(answer.text)[:-1]]
        assert texts == [TEXT, ""]
        (row,) = house.rows("completions")
        assert not row.withheld and row.text == TEXT and len(row.token_ids) == len(house.engines[0].reply)


async def test_the_record_is_on_disk_before_the_last_chunk(house: House) -> None:
    async with house.client.stream("POST", house.urls[0] + "/v1/completions", json=CONTINUE) as answer:
        async for line in answer.aiter_lines():
            if '"finish_reason": "length"' in line:
                assert len(house.rows("completions")) == 1
                return
    raise AssertionError("no last chunk")


async def test_the_prompt_goes_to_the_engine_in_the_models_order(house: House, tokenizer: Tokenizer) -> None:
    await house.complete(prompt="a<|fim_middle|>b", suffix="\n#end")  # the marker is the developer's text here
    sent = house.engines[0].requests[-1].prompt_token_ids
    frame = [tokenizer.token_to_id(t) for t in ("<|fim_suffix|>", "<|fim_prefix|>", "<|fim_middle|>")]
    assert [t for t in sent if t in frame] == frame
    assert (sent[0], sent[-1]) == (frame[0], frame[2])
    assert tokenizer.decode(sent[1 : sent.index(frame[1])]) == "\n#end"


async def test_a_long_file_keeps_what_is_next_to_the_cursor(house: House, tokenizer: Tokenizer) -> None:
    lines = [f"value_{n} = {n}\n" for n in range(20_000)]
    await house.complete(prompt="".join(lines), suffix="".join(lines))
    sent = house.engines[0].requests[-1].prompt_token_ids
    before = tokenizer.decode(sent[sent.index(tokenizer.token_to_id("<|fim_prefix|>")) + 1 :])
    assert 30 + 20 + 3 <= len(sent) <= 40 + 20 + 3
    assert before.startswith("value_") and before.endswith("value_19999 = 19999\n")
    assert house.rows("completions")[0].prefix == "".join(lines)


async def test_a_client_may_ask_for_fewer_tokens_and_not_for_more(house: House) -> None:
    for asked, got in ((3, 3), (4096, len(house.engines[0].reply)), (None, len(house.engines[0].reply))):
        answer = (await house.complete(max_tokens=asked)).json()
        assert answer["usage"]["completion_tokens"] == got
        assert answer["choices"][0]["finish_reason"] == "length"


async def test_a_stop_string_cuts_the_text_and_not_the_record(house: House) -> None:
    house.engines[0].delay = 0.02
    answer = (await house.complete(stop=["a + b", "zzz"])).json()
    assert answer["choices"][0] == {"text": "return alph", "index": 0, "logprobs": None, "finish_reason": "stop"}
    (row,) = house.rows("completions")
    assert row.text == "return alph" and house.tokenizer.decode(list(row.token_ids)).startswith("return alpha + b")
    assert row.token_ends[-1] >= len("return alpha + b")
    await _until(lambda: house.engines[0].aborted == 1 or len(row.token_ids) == len(house.engines[0].reply))


async def test_the_end_token_ends_it_and_is_recorded(house: House) -> None:
    house.engines[0].reply = [*house.engines[0].reply, 0]
    answer = (await house.complete()).json()
    assert answer["choices"][0]["text"] == TEXT and answer["choices"][0]["finish_reason"] == "stop"
    assert house.rows("completions")[0].token_ids[-1] == 0


async def test_a_client_that_leaves_stops_the_engine_and_is_recorded(house: House) -> None:
    house.engines[0].delay = 0.05
    for stream in (True, False):
        request = house.client.build_request("POST", house.urls[0] + "/v1/completions", json={**CONTINUE, "stream": stream})
        task = asyncio.create_task(house.client.send(request, stream=True))
        await asyncio.sleep(0.15)
        if stream:
            await (await task).aclose()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await _until(lambda stream=stream: len(house.rows("completions")) == (1 if stream else 2))
        row = house.rows("completions")[-1]
        assert row.finish_reason == "disconnected" and 0 < len(row.token_ids) < len(house.engines[0].reply)
        assert TEXT.startswith(row.text) and row.policy_version == "0" and not row.mixed
    await _until(lambda: house.engines[0].aborted == 2)
    assert all(slot.in_flight == 0 for slot in house.arms.slots)


async def test_a_dead_engine_is_replaced_by_the_other(house: House) -> None:
    house.engines[0].up = False
    assert (await house.complete()).json()["choices"][0]["text"] == "return gamma"
    assert (await house.complete()).status_code == 200
    house.engines[1].up = False
    for _ in range(2):
        answer = await house.complete(stream=True)
        assert answer.status_code == 503 and int(answer.headers["retry-after"]) > 0
        assert answer.json()["error"]["type"] == "server_error"
    assert (await house.client.get(house.urls[0] + "/ready")).status_code == 503
    house.engines[0].up = True
    await house.follow()
    assert (await house.client.get(house.urls[0] + "/ready")).status_code == 200
    assert (await house.complete()).json()["choices"][0]["text"] == TEXT


async def test_a_stream_says_that_the_engine_died_in_the_middle(house: House) -> None:
    house.engines[0].dies_after, house.engines[0].delay = 2, 0.02
    answer = await house.complete(stream=True)
    *texts, error, end = events(answer.text)
    assert answer.status_code == 200 and end == "[DONE]" and texts
    assert {json.loads(event)["choices"][0]["finish_reason"] for event in texts} == {None}
    assert json.loads(error)["error"]["type"] == "server_error"
    (row,) = house.rows("completions")
    assert row.finish_reason == "error" and len(row.token_ids) == 2


async def test_an_infill_stream_says_so_too(house: House) -> None:
    house.engines[0].dies_after, house.engines[0].delay = 2, 0.02
    *texts, error = map(json.loads, events((await house.complete("/infill", **INFILL, stream=True)).text))
    assert texts and not any(event["stop"] for event in texts) and error["error"]["type"] == "server_error"


async def test_a_whole_answer_whose_engine_died_has_what_there_is_as_a_part(house: House) -> None:
    house.engines[0].dies_after, house.engines[0].delay = 2, 0.02
    answer = (await house.complete()).json()["choices"][0]
    assert TEXT.startswith(answer["text"]) and (answer["text"] != "", answer["finish_reason"]) == (True, "length")
    assert house.rows("completions")[0].finish_reason == "error"


@pytest.mark.parametrize("body", [{}, {"stream": True}, {"segments": {"prefix": "a"}}])
async def test_an_engine_that_died_with_nothing_to_show_is_a_503(
    tmp_path: Path, tokenizer: Tokenizer, body: dict[str, object]
) -> None:
    async with House(tmp_path, tokenizer, withhold_below=1e-9) as house:  # nothing is shown before the end
        house.engines[0].dies_after, house.engines[0].delay = 2, 0.02
        answer = await house.complete(**body)
        assert answer.status_code == 503 and int(answer.headers["retry-after"]) > 0
        assert answer.json()["error"]["type"] == "server_error"
        (row,) = house.rows("completions")
        assert row.finish_reason == "error" and len(row.token_ids) == 2


async def test_an_engine_with_other_weights_than_it_should_have_is_not_used(house: House) -> None:
    house.engines[0].version = "7"  # restarted, and nobody has looked yet
    assert (await house.complete()).json()["choices"][0]["text"] == "return gamma"
    assert house.rows("completions")[0].policy_version == "0"


async def test_an_experiment_is_sticky_split_by_its_share_and_recorded(house: House) -> None:
    await _experiment(house)
    for user in range(40):
        for _ in range(2):
            await house.complete(headers={"X-User-ID": f"user{user}"})
    arms: dict[str, set[tuple[str, str, str]]] = {}
    for row in house.rows("completions"):
        arms.setdefault(row.user, set()).add((row.arm, row.policy_version, row.experiment))
    assert len(arms) == 40 and all(len(found) == 1 for found in arms.values())
    challengers = sum(found == {("challenger", "2", "e1")} for found in arms.values())
    assert 8 <= challengers <= 32
    assert sum(found == {("champion", "1", "e1")} for found in arms.values()) == 40 - challengers
    assert not any("user" in user for user in arms)


async def test_an_experiment_counts_only_while_both_arms_serve(house: House) -> None:
    await _experiment(house)
    house.engines[house.arms.challenger].up = False
    await house.follow()
    for user in range(20):
        assert (await house.complete(headers={"X-User-ID": f"user{user}"})).status_code == 200
    assert {(r.arm, r.experiment, r.policy_version) for r in house.rows("completions")} == {("champion", "", "1")}


async def test_pins_are_for_administrators_and_count_in_no_experiment(house: House) -> None:
    await _experiment(house)
    for pin, version in (
        ({"X-Tabloop-Arm": "challenger"}, "2"),
        ({"X-Tabloop-Arm": "champion"}, "1"),
        ({"X-Tabloop-Version": "2"}, "2"),
    ):
        assert (await house.complete(headers=pin)).status_code == 403
        answer = await house.complete(headers={**pin, **ADMINISTRATOR})
        assert (answer.status_code, answer.headers["x-tabloop-version"]) == (200, version)
        row = house.rows("completions")[-1]
        assert (row.policy_version, row.pinned, row.experiment) == (version, True, "")
        assert row.arm == ("challenger" if version == "2" else "champion")
    missing = await house.complete(headers={"X-Tabloop-Version": "9", **ADMINISTRATOR})
    assert missing.status_code == 409 and "version 9" in missing.json()["error"]["message"]
    assert (await house.complete(headers={"X-Tabloop-Arm": "loser", **ADMINISTRATOR})).status_code == 400


async def test_each_arm_samples_in_its_own_way(tmp_path: Path, tokenizer: Tokenizer) -> None:
    async with House(tmp_path, tokenizer, challenger=Sampling(temperature=0.3, max_tokens=2)) as house:
        await _experiment(house)
        for arm, asked in (("champion", (0.8, 24)), ("challenger", (0.3, 2))):
            await house.complete(headers={"X-Tabloop-Arm": arm, **ADMINISTRATOR})
            row = house.rows("completions")[-1]
            assert (row.arm, row.temperature, row.max_tokens) == (arm, *asked)
            sent = house.engines[house.arms.champion if arm == "champion" else house.arms.challenger].requests[-1]
            assert (sent.temperature, sent.max_tokens) == asked


TERMS = {
    "terms": {},
    "projects": {
        "open": {"experiments": True},
        "quiet": {"experiments": True, "logged": False},
        "slow": {"version": "1"},
        "gone": {"version": "7"},
    },
}


async def test_projects_take_part_on_their_own_terms(tmp_path: Path, tokenizer: Tokenizer) -> None:
    async with House(tmp_path, tokenizer, settings=TERMS) as house:
        await _experiment(house)
        found: dict[str, set[tuple[str, str, bool, bool]]] = {}
        for project in ("open", "other", "quiet", "slow", "gone"):
            for user in range(12):
                answer = await house.complete(headers={"X-Project-ID": project, "X-User-ID": f"user{user}"})
                assert answer.json()["choices"][0]["text"]
        for row in house.rows("completions"):
            found.setdefault(row.project, set()).add((row.policy_version, row.experiment, row.pinned, row.opted_out))
            assert (row.prefix == "") == row.opted_out
        assert found == {
            "open": {("1", "e1", False, False), ("2", "e1", False, False)},
            "other": {("1", "", False, False)},
            "quiet": {("1", "e1", False, True), ("2", "e1", False, True)},
            "slow": {("1", "", True, False)},
            "gone": {("1", "", False, False)},
        }


async def test_a_sample_is_logged_and_tested_only_where_project_and_user_both_say_so(
    tmp_path: Path, tokenizer: Tokenizer
) -> None:
    users = {"pinned": {"version": "1"}, "silent": {"logged": False}, "calm": {"experiments": False}, "free": {}}
    settings = {**TERMS, "users": {user_hash(b"salt", name): terms for name, terms in users.items()}}
    async with House(tmp_path, tokenizer, settings=settings) as house:
        await _experiment(house)
        for project in ("open", "quiet", "other"):
            for user in users:
                await house.complete(headers={"X-Project-ID": project, "X-User-ID": user})
        rows = iter(house.rows("completions"))
        found = {(p, u): next(rows) for p in ("open", "quiet", "other") for u in users}
        for (project, user), row in found.items():
            assert row.opted_out == (project == "quiet" or user == "silent"), (project, user)
            assert row.pinned == (user == "pinned"), (project, user)
            assert bool(row.experiment) == (project != "other" and user in ("silent", "free")), (project, user)
        body = {"completion_id": "c", "outcome": "accepted", "shown": "x"}
        await house.judge("/v1/feedback", body, {"X-Project-ID": "open", "X-User-ID": "silent"})
        assert house.rows("feedback")[0].shown == ""


async def test_a_token_has_projects_roles_and_a_rate(tmp_path: Path, tokenizer: Tokenizer) -> None:
    digest = hashlib.sha256(b"of-the-editors").hexdigest()
    editors = {"sha256": digest, "projects": ["p2", "p3"], "roles": ["complete"], "requests_per_minute": 4}
    async with House(tmp_path, tokenizer, settings={"tokens": {"editors": editors}}) as house:
        bearer = {"Authorization": "Bearer of-the-editors"}
        named = [await house.complete(headers={**bearer, "X-Project-ID": name}) for name in ("p3", "p1")]
        assert [answer.status_code for answer in named] == [200, 403]
        assert "p2, p3" in named[1].json()["error"]["message"]
        unnamed = await house.client.post(house.urls[0] + "/infill", json=INFILL, headers={**bearer, "X-Project-ID": "p2"})
        assert unnamed.status_code == 200 and house.rows("completions")[-1].project == "p2"
        refused = await house.judge("/v1/feedback", {"completion_id": "c", "outcome": "accepted"}, bearer)
        assert refused.status_code == 403 and "feedback" in refused.json()["error"]["message"]
        assert (await house.client.get(house.urls[0] + "/admin/status", headers=bearer)).status_code == 403
        answers = [await house.complete(headers={**bearer, "X-Project-ID": "p2"}) for _ in range(2)]
        assert [answer.status_code for answer in answers] == [200, 429]
        assert int(answers[1].headers["retry-after"]) >= 1 and "editors" in answers[1].json()["error"]["message"]
        assert (await house.complete()).status_code == 200  # another token's rate is its own


async def test_the_teams_and_the_administrators_tokens_have_a_rate_each(tmp_path: Path, tokenizer: Tokenizer) -> None:
    async with House(tmp_path, tokenizer, settings={"requests_per_minute": 2}) as house:
        for headers in ({}, ADMINISTRATOR):
            answers = [await house.complete(headers=headers) for _ in range(3)]
            assert [answer.status_code for answer in answers] == [200, 200, 429]
            assert int(answers[2].headers["retry-after"]) >= 1


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("jetbrains", (), {}),
        ("a team's “own”", (), {}),
        (
            "ci.1",
            ("--project", "web", "--project", "app", "--role", "complete"),
            {"projects": ("web", "app"), "roles": ("complete",)},
        ),
    ],
)
def test_a_token_is_made_with_the_lines_that_let_it_in(
    name: str, arguments: tuple[str, ...], expected: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    assert access.main([name, *arguments]) == 0
    printed = capsys.readouterr().out
    made = printed.splitlines()[0].rsplit(" ", 1)[1]
    given = tomllib.loads(printed)["serving"]
    found = access.Access(Serving(token=TOKEN, user_secret="salt", **given)).check({"api-key": made}, "complete")
    assert found.name == name
    token = Serving(**given).tokens[name]
    assert {field: getattr(token, field) for field in expected} == expected


def test_a_token_is_not_made_for_a_project_that_none_can_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        access.main(["jetbrains", "--project", "our web"])
    assert "--project" in capsys.readouterr().err


@given(st.lists(st.floats(0, 30), max_size=80), st.integers(1, 100))
def test_a_bucket_gives_a_minutes_worth_and_then_its_rate(pauses: list[float], per_minute: int) -> None:
    now = 0.0
    bucket = Bucket(per_minute, lambda: now)
    given_at: list[float] = []
    for pause in pauses:
        now += pause
        if not (wait := bucket.wait()):
            given_at.append(now)
        else:
            assert 0 < wait <= 60 / per_minute
    for first in range(len(given_at)):
        for last in range(first, len(given_at)):
            assert last - first + 1 <= per_minute + (given_at[last] - given_at[first]) * per_minute / 60 + 1e-6


async def test_who_opts_out_is_served_and_leaves_no_text(house: House) -> None:
    assert (await house.complete(headers={"X-Tabloop-Opt-Out": "1"})).json()["choices"][0]["text"] == TEXT
    (row,) = house.rows("completions")
    assert row.opted_out and (row.prefix, row.suffix, row.text, row.token_ids, row.prompt_token_ids) == ("", "", "", (), ())


async def test_the_user_is_the_header_then_the_body_then_the_token(house: House) -> None:
    await house.complete(user="bob")
    await house.complete(headers={"X-User-ID": ""}, user="ada")
    await house.complete(headers={"X-User-ID": ""})
    first, second, third = (row.user for row in house.rows("completions"))
    assert first == second != third and len(third) == 32


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"prompt": 3}, "prompt"),
        ({"prompt": ["a", "b"]}, "prompt"),
        ({"prompt": "<|fim_middle|>x<|fim_prefix|>"}, "prompt"),
        ({"n": 2}, "n"),
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
async def test_a_bad_body_gets_an_error_that_names_the_field(house: House, body: dict[str, object], field: str) -> None:
    answer = await house.complete(**body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == field and field in answer.json()["error"]["message"]
    assert house.rows("completions") == []


async def test_what_is_not_there_is_said_in_openais_shape(house: House) -> None:
    url = house.urls[0]
    answers = [
        (401, await house.complete(headers={"Authorization": ""})),
        (401, await house.complete(headers={"Authorization": "Bearer undefined"})),
        (400, await house.complete(headers={"X-Project-ID": "../x"})),
        (413, await house.complete(prompt="x" * 2_000_000)),
        (400, await house.client.post(url + "/v1/completions", content=b'{"prompt": "\\ud800"}')),
        (400, await house.client.post(url + "/v1/completions", content=b"[" * 100_000)),
        (400, await house.client.post(url + "/v1/chat/completions", json={})),
        (404, await house.client.get(url + "/v2/completions")),
        (405, await house.client.get(url + "/v1/completions")),
        (403, await house.client.get(url + "/admin/status")),
    ]
    for status, answer in answers:
        assert (answer.status_code, set(answer.json()["error"])) == (status, {"message", "type", "param", "code"})
    assert (await house.complete(headers={"Authorization": "", "api-key": TOKEN})).status_code == 200


async def test_a_client_that_leaves_in_the_middle_of_its_body_is_no_error_of_the_server(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    for url in house.urls:
        port = int(url.rsplit(":", 1)[1])
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        path = "/v1/completions" if url == house.urls[0] else "/v1/feedback"
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: 100\r\n\r\n"
        writer.write(head.encode() + b'{"prompt":')
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.close()
    left = b'tabloop_refused_total{status="499"} 2.0'
    await _until(lambda: left in house.metrics.text(house.arms, house.spool))
    assert "Traceback" not in caplog.text


async def test_tabby_and_llama_clients_are_served(house: House) -> None:
    tabby = (await house.complete(segments={"prefix": "def f(", "suffix": "\n"}, language="python")).json()
    assert tabby["choices"] == [{"index": 0, "text": TEXT}] and tabby["id"] == house.rows("completions")[0].id
    llama = (await house.complete("/infill", **INFILL)).json()
    assert llama["content"] == TEXT
    rows = house.rows("completions")
    assert [row.client for row in rows] == ["tabby", "llama"] and rows[1].prefix == "import os\nx = "
    assert (await house.complete("/infill", input_prefix="", input_suffix="", n_predict=0)).json()["content"] == ""
    assert len(house.rows("completions")) == 2


async def test_what_editors_send_by_default_is_refused_nowhere(house: House) -> None:
    plain = {"temperature": 0.01, "top_p": 0.9, "top_k": 40, "min_p": 0.05, "model": "another", "user": "ada"}
    nothing = {"n": 1, "best_of": 1, "echo": False, "logprobs": None, "seed": None, "logit_bias": {}, "stream": False}
    nothing |= {"presence_penalty": 0, "frequency_penalty": 0.0, "repetition_penalty": 1.0, "stream_options": None}
    answer = (await house.complete(**plain, **nothing)).json()
    assert (answer["choices"][0]["text"], answer["model"]) == (TEXT, "qwen-coder-x")


async def test_a_stream_ends_with_its_tokens_where_that_is_asked_for(house: House) -> None:
    answer = await house.complete(stream=True, stream_options={"include_usage": True})
    *chunks, usage = [json.loads(event) for event in events(answer.text)[:-1]]
    tokens = len(house.engines[0].reply)
    prompt = len(house.engines[0].requests[-1].prompt_token_ids)
    assert {"choices": [], "usage": usage["usage"]}.items() <= usage.items()
    assert usage["usage"] == {"prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens}
    assert all(chunk["usage"] is None and chunk["id"] == usage["id"] for chunk in chunks)


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
    await _until(lambda: engine.aborted == 1)


async def test_how_it_is_doing_can_be_read(house: House) -> None:
    await house.complete()
    get = house.client.get
    assert (await get(house.urls[0] + "/v1/models")).json()["data"][0]["id"] == "qwen-coder-x"
    status = (await get(house.urls[0] + "/admin/status", headers=ADMINISTRATOR)).json()
    assert (status["champion"], status["challenger"], status["ready"]) == ("0", None, True)
    text = (await get(house.urls[0] + "/metrics")).text
    assert 'tabloop_completions_total{arm="champion",finish="length",version="0"} 1.0' in text
    assert "tabloop_spool_bytes" in text and 'tabloop_slot_up{role="champion",slot="0",version="0"} 1.0' in text


async def test_a_full_spool_does_not_stop_completions(tmp_path: Path, tokenizer: Tokenizer) -> None:
    async with House(tmp_path, tokenizer, spool_bytes=0) as house:
        assert (await house.complete()).json()["choices"][0]["text"] == TEXT
        answer = await house.judge("/v1/feedback", {"completion_id": "c", "outcome": "accepted"})
        assert answer.status_code == 503 and int(answer.headers["retry-after"]) > 0
        assert b"tabloop_unrecorded_total 1.0" in house.metrics.text(house.arms, house.spool)


async def _experiment(house: House) -> None:
    for version in ("1", "2"):
        house.add_version(version)
    house.registry.aliases = {"champion": "1", "challenger": "2"}
    house.registry.experiment = experiment()
    await house.follow()
    assert {slot.version for slot in house.arms.slots} == {"1", "2"}


async def _until(reached: object, seconds: float = 5.0) -> None:
    async with asyncio.timeout(seconds):
        while not reached():
            await asyncio.sleep(0.01)
