"""Feedback: the response and the record."""

import asyncio
import json
import time
from typing import Any

import pytest

from infra.storage.store import from_parquet
from serving.access import Access
from tests.serving.fakes import HEADERS, House

DATA = {
    "eventName": "autocomplete",
    "schema": "0.2.0",
    "timestamp": "2026-06-18T10:00:00.000Z",
    "userId": "",
    "userAgent": "Visual Studio Code/1.103.0 (Continue/2.1.0)",
    "disable": False,
    "accepted": True,
    "time": 812,
    "prefix": "whole file before",
    "suffix": "whole file after",
    "prompt": "<|fim_prefix|>before<|fim_suffix|>after<|fim_middle|>",
    "completion": "shown",
    "modelName": "Qwen2.5-Coder-1.5B",
    "cacheHit": False,
    "completionId": "c1",
    "uniqueId": "machine",
}
OLD_DATA = {k: v for k, v in DATA.items() if k not in ("eventName", "schema", "userId", "userAgent", "accepted")}
RLINF_BODY = {**OLD_DATA, "accepted": False, "numLines": 1, "timestamp": "2025-10-11T15:22:03.1", "somethingNew": [1]}


def continue_event(data: dict[str, Any], schema: str = "0.2.0", level: str = "all") -> dict[str, Any]:
    return {"name": "autocomplete", "schema": schema, "level": level, "profileId": "local", "data": data}


async def test_continues_events_are_recorded(house: House) -> None:
    await house.complete()
    assert (await house.send_feedback("/v1/continue/events", continue_event(DATA))).status_code == 200
    cached = continue_event({**DATA, "accepted": False, "cacheHit": True})
    assert (await house.send_feedback("/v1/continue/events", cached)).status_code == 200
    assert (await house.send_feedback("/v1/continue/events", continue_event(OLD_DATA, schema="0.1.0"))).status_code == 200
    accepted, rejected, old = house.rows("feedback")
    assert (accepted.outcome, rejected.outcome, old.outcome) == ("accepted", "rejected", "shown")
    assert (accepted.prefix, accepted.suffix, accepted.shown) == ("before", "after", "shown")
    assert (accepted.client, accepted.client_id, accepted.completion_id, accepted.elapsed_ms) == ("continue", "c1", "", 812)
    assert (accepted.cache_hit, rejected.cache_hit) == (False, True)
    assert accepted.made_at == 1781776800.0 and accepted.id != rejected.id
    completion = house.rows("completions")[0]
    assert (accepted.user, accepted.project) == (completion.user, completion.project)


async def test_only_the_file_ending_of_a_path_is_recorded(house: House) -> None:
    data_with_path = {**DATA, "filepath": "file:///home/ada/plans/merger.py"}
    await house.send_feedback("/v1/continue/events", continue_event(data_with_path))
    await house.send_feedback("/api/training/submit", {**RLINF_BODY, "filepath": "merger.ts"})
    await house.send_feedback("/v1/feedback", {"completion_id": "c", "outcome": "accepted", "language": "Rust"})
    await house.send_feedback("/v1/continue/events", continue_event(DATA))
    rows = house.rows("feedback")
    assert [row.language for row in rows] == ["py", "ts", "rust", ""]
    assert "merger" not in "".join(row.model_dump_json() for row in rows)


async def test_prefix_and_suffix_fields_are_recorded_if_the_prompt_has_no_fim_tokens(house: House) -> None:
    await house.send_feedback("/v1/continue/events", continue_event({**DATA, "prompt": ""}))
    (row,) = house.rows("feedback")
    assert (row.prefix, row.suffix) == ("whole file before", "whole file after")


async def test_events_other_than_autocomplete_are_accepted_and_ignored(house: House) -> None:
    response = await house.send_feedback("/v1/continue/events", {"name": "chatInteraction", "data": {"prompt": "secret"}})
    assert response.status_code == 200 and house.rows("feedback") == []


async def test_an_event_without_code_is_recorded_without_text(house: House) -> None:
    data_without_code = {k: v for k, v in DATA.items() if k not in ("prefix", "suffix", "prompt", "completion")}
    assert (
        await house.send_feedback("/v1/continue/events", continue_event(data_without_code, level="noCode"))
    ).status_code == 200
    (row,) = house.rows("feedback")
    assert (row.outcome, row.prefix, row.suffix, row.shown) == ("accepted", "", "", "")


async def test_rlinf_gets_its_response_and_a_repeated_event_is_recorded_once(house: House) -> None:
    for body in (RLINF_BODY, RLINF_BODY, {**RLINF_BODY, "accepted": True}):
        response = await house.send_feedback("/api/training/submit", body)
        assert response.status_code == 200
        assert response.json()["status"] == "submitted" and response.json()["message"] == "Training data submitted successfully"
        assert isinstance(response.json()["queue_position"], int)
    assert [(row.outcome, row.client) for row in house.rows("feedback")] == [("rejected", "rlinf"), ("accepted", "rlinf")]


async def test_an_event_of_a_client_that_ends_behind_it_is_recorded(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    check = Access.check

    async def slow(*arguments: Any) -> Any:
        await asyncio.sleep(0.05)  # as a round trip to Valkey
        return await check(*arguments)

    monkeypatch.setattr(Access, "check", slow)
    body = b'{"completion_id": "c", "outcome": "accepted"}'
    headers = {"Host": "127.0.0.1", "Content-Type": "application/json", "Content-Length": str(len(body)), **HEADERS}
    lines = ["POST /v1/feedback HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
    for size, stored in ((len(body), 1), (len(body) - 1, 1)):  # a part of an event is none
        _, writer = await asyncio.open_connection("127.0.0.1", int(house.urls[1].rsplit(":", 1)[1]))
        writer.write("\r\n".join(lines).encode() + body[:size])
        writer.close()
        await asyncio.sleep(0.3)
        assert len(house.rows("feedback")) == stored


async def test_feedback_can_name_the_servers_completion_id(house: House) -> None:
    completion_id = (await house.complete()).json()["id"]
    body = {"completion_id": completion_id, "outcome": "partially_accepted", "accepted_characters": 3, "elapsed_ms": 5}
    assert (await house.send_feedback("/v1/feedback", body)).json()["status"] == "recorded"
    (row,) = house.rows("feedback")
    assert (row.completion_id, row.outcome) == (completion_id, "partially_accepted")
    assert (row.accepted_characters, row.elapsed_ms) == (3, 5)


async def test_retained_text_and_thumbs_down_are_recorded(house: House) -> None:
    key = "ghp_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"
    for fields in ({"outcome": "retained", "retained": f"x = 1\nlogin({key!r})"}, {"outcome": "thumbs_down"}):
        assert (await house.send_feedback("/v1/feedback", {"completion_id": "cmpl-1", **fields})).status_code == 200
    retained_row, thumbs_down_row = house.rows("feedback")
    assert (retained_row.outcome, thumbs_down_row.outcome) == ("retained", "thumbs_down")
    assert retained_row.retained.startswith("x = 1\n") and key not in retained_row.retained
    body = {"completion_id": "c", "outcome": "retained", "retained": "a"}
    await house.send_feedback("/v1/feedback", body, {"X-Tabloop-Opt-Out": "1"})
    assert house.rows("feedback")[-1].retained == ""


@pytest.mark.parametrize(
    ("path", "body", "status", "field"),
    [
        ("/v1/continue/events", continue_event({}), 422, "data.completionId"),
        ("/v1/continue/events", {"data": {}}, 422, "name"),
        ("/api/training/submit", {**RLINF_BODY, "completionId": "x" * 300}, 422, "completionId"),
        ("/v1/feedback", {"completion_id": "c", "outcome": "loved"}, 422, "outcome"),
        ("/v1/feedback", {"completion_id": "c", "outcome": "partially_accepted"}, 422, "accepted_characters"),
        *(
            (
                "/v1/feedback",
                {"completion_id": "c", "outcome": "partially_accepted", "accepted_characters": n},
                422,
                "accepted_characters",
            )
            for n in (-1, "3", True, 10**30, 1.5)
        ),
        ("/v1/feedback", {"completion_id": "c", "outcome": "retained"}, 422, "retained"),
        ("/v1/feedback", {"completion_id": "c", "outcome": "retained", "retained": "x" * 20_000}, 422, "retained"),
        ("/v1/feedback", {"completion_id": "c", "outcome": "accepted", "shown": "x" * 20_000}, 422, "shown"),
        ("/v1/continue/events", continue_event({**DATA, "completion": "x" * 20_000}), 422, "data.completion"),
        ("/v1/continue/events", continue_event({**DATA, "accepted": 0.0}), 422, "data.accepted"),
        ("/v1/continue/events", continue_event({**DATA, "accepted": 1}), 422, "data.accepted"),
        ("/v1/continue/events", continue_event({**DATA, "accepted": "true"}), 422, "data.accepted"),
        ("/v1/continue/events", continue_event({**DATA, "cacheHit": 0}), 422, "data.cacheHit"),
        ("/v1/feedback", [], 400, "object"),
    ],
)
async def test_an_invalid_body_gets_an_error_that_names_the_field(
    house: House, path: str, body: object, status: int, field: str
) -> None:
    response = await house.send_feedback(path, body)
    assert (response.status_code, field in response.json()["error"]["message"]) == (status, True), response.text
    assert response.json()["error"]["message"].startswith((f"{field}: ", "body: ")), "the message begins with the field"
    assert house.rows("feedback") == []


async def test_wrong_tokens_and_large_bodies_are_refused(house: House) -> None:
    wrong = {"Authorization": "Bearer x"}
    large = continue_event({**DATA, "prompt": "x" * 2_000_000})
    assert (await house.send_feedback("/v1/continue/events", continue_event(DATA), headers=wrong)).status_code == 401
    assert (await house.send_feedback("/v1/continue/events", large)).status_code == 413
    assert house.rows("feedback") == []


async def test_unknown_clients_are_counted_as_other(house: House) -> None:
    for number in range(20):
        body = {"completion_id": "c", "outcome": "accepted"}
        assert (await house.send_feedback("/v1/feedback", body, {"User-Agent": f"editor{number}/1.0"})).status_code == 200
    text = house.metrics_text().decode()
    assert 'tabloop_feedback_total{client="other",outcome="accepted"} 20.0' in text and "editor" not in text
    (client,) = house.metrics.last_hour(time.time())
    assert (client.client, client.outcomes) == ("other", {"accepted": 20})
    assert len({row.client for row in house.rows("feedback")}) == 20


async def test_feedback_of_a_user_who_opted_out_has_no_text(house: House) -> None:
    await house.send_feedback("/v1/continue/events", continue_event(DATA), headers={"X-Tabloop-Opt-Out": "1"})
    (row,) = house.rows("feedback")
    assert (row.outcome, row.prefix, row.suffix, row.shown) == ("accepted", "", "", "")


async def test_events_are_shipped_to_the_object_store(house: House) -> None:
    await house.complete()
    await house.send_feedback("/v1/continue/events", continue_event(DATA))
    rows = {kind: house.rows(kind) for kind in ("completions", "feedback")}
    assert await house.ship()
    for kind, expected in rows.items():
        (key,) = [key for key in house.store.objects if key.startswith(f"events/{kind}/date=")]
        assert "/hour=" in key and from_parquet(house.store.objects[key], type(expected[0])) == expected
        assert house.rows(kind) == []
    assert json.dumps(HEADERS["X-User-ID"]).encode() not in b"".join(house.store.objects.values())
