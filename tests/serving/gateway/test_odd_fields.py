"""A field that no label needs costs itself, and no event: it becomes null and is counted."""

import json
import math
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.serving.fakes import TEXT, House
from tests.serving.gateway.test_feedback import continue_event
from tests.tasks.rows import join

PROMPT = "<|fim_prefix|>def f(x):\n    <|fim_suffix|>\n\nprint(1)\n<|fim_middle|>"
DATA = {"completionId": "c1", "accepted": True, "prompt": PROMPT, "completion": TEXT, "timestamp": "2026-06-18T10:00:00.000Z"}
ROUTES: dict[str, tuple[str, str, Callable[[str, Any], dict[str, Any]]]] = {
    "continue": ("/v1/continue/events", "time", lambda id, odd: continue_event({**DATA, "time": odd})),
    "rlinf": ("/api/training/submit", "time", lambda id, odd: {**DATA, "time": odd}),
    "native": ("/v1/feedback", "elapsed_ms", lambda id, odd: {"completion_id": id, "outcome": "accepted", "elapsed_ms": odd}),
    "seen": ("/v1/feedback", "seen_ms", lambda id, odd: {"completion_id": id, "outcome": "accepted", "seen_ms": odd}),
    "tabby": ("/v1/events", "elapsed", lambda id, odd: {"completion_id": id, "type": "select", "elapsed": odd}),
}
ODD = [-3, -1e-9, 1e300, 1.8e12, 86.5e6, 10**300, "812", "", True, [1], {"ms": 3}, math.nan, math.inf, -math.inf]


@pytest.mark.parametrize("route", ROUTES)
async def test_an_odd_duration_is_unknown_and_the_label_is_kept(house: House, route: str) -> None:
    url, field, body = ROUTES[route]
    for number, odd in enumerate(ODD):
        prompt = PROMPT.replace("f(x)", f"f{number}(x)")
        id = (await house.complete(prompt=prompt)).json()["id"]
        text = json.dumps(body(id, odd)).replace("f(x)", f"f{number}(x)").replace('"c1"', f'"c{number}"')
        sent = await house.client.post(house.urls[1] + url, content=text, headers={"Content-Type": "application/json"})
        assert sent.status_code == 200, (odd, sent.text)
    events = house.rows("feedback")
    assert [(row.elapsed_ms, row.seen_ms) for row in events] == [(None, None)] * len(ODD)
    joined = join(house.rows("completions"), events, join_seconds=60)
    assert [row.label.outcome if row.label else None for row in joined.joined] == ["accepted"] * len(ODD)
    client = {"native": "other", "seen": "other"}.get(route, route)
    assert f'tabloop_odd_fields_total{{client="{client}",field="{field}"}} {len(ODD)}.0'.encode() in house.metrics_text()


@pytest.mark.parametrize("route", ROUTES)
async def test_a_usual_duration_and_null_are_not_odd(house: House, route: str) -> None:
    url, _, body = ROUTES[route]
    for usual in (0, 812, 812.5, 86.4e6, None):
        assert (await house.send_feedback(url, {**body("cmpl-1", usual), "completionId": f"k{usual}"})).status_code == 200
    assert b"tabloop_odd_fields_total{" not in house.metrics_text()
    assert {row.elapsed_ms if route not in ("tabby", "seen") else row.seen_ms for row in house.rows("feedback")} >= {0, None}


@pytest.mark.parametrize(
    ("given", "known"),
    [
        pytest.param(datetime.fromtimestamp(time.time() + 7200, UTC).isoformat(), False, id="in two hours"),
        ("2026-06-18T10:00:00.000Z", True),
        (1_781_776_800_000, True),
        ("1781776800000", False),
        ("yesterday", False),
        (-1, False),
        (1e300, False),
        (True, False),
        ({"$date": 1}, False),
    ],
)
async def test_a_time_that_cannot_be_is_unknown(house: House, given: object, known: bool) -> None:
    for url, body in (
        ("/v1/continue/events", continue_event({**DATA, "timestamp": given})),
        ("/api/training/submit", {**DATA, "timestamp": given}),
    ):
        assert (await house.send_feedback(url, body)).status_code == 200
    assert [row.made_at for row in house.rows("feedback")] == [1781776800.0 if known else None] * 2
    assert (b"tabloop_odd_fields_total{" in house.metrics_text()) is not known


@pytest.mark.parametrize(
    ("url", "body"),
    [
        ("/v1/continue/events", continue_event({**DATA, "filepath": 17, "cacheHit": None, "prefix": None, "suffix": None})),
        ("/api/training/submit", {**DATA, "filepath": ["a.py"], "cacheHit": None, "prefix": None}),
        (
            "/v1/feedback",
            {"completion_id": "c", "outcome": "accepted", "language": 5, "reason": None, "accepted_characters": "3"},
        ),
        ("/v1/feedback", {"completion_id": "c", "outcome": "accepted", "language": "x" * 300, "shown": None, "settled": None}),
        ("/v1/events", {"completion_id": "c", "type": "select", "view_id": 12, "choice_index": None}),
        ("/v1/events", {"completion_id": "c", "type": "select", "view_id": "v" * 300}),
    ],
)
async def test_other_odd_fields_cost_no_event_and_null_is_absent(house: House, url: str, body: dict[str, Any]) -> None:
    sent = await house.send_feedback(url, body)
    assert sent.status_code == 200, sent.text
    (row,) = house.rows("feedback")
    assert row.outcome == "accepted" and row.language == "" and row.accepted_characters is None
    assert row.client_id in ("c", "c1", "")  # Tabby's impression is then the completion


async def test_an_accept_before_its_completion_is_known_counts(house: House) -> None:
    body = continue_event({key: value for key, value in DATA.items() if key != "timestamp"})
    assert (await house.send_feedback("/v1/continue/events", body)).status_code == 200
    await house.complete(prompt=PROMPT)
    joined = join(house.rows("completions"), house.rows("feedback"), join_seconds=60)
    assert [row.label.outcome if row.label else None for row in joined.joined] == ["accepted"]


async def test_accepted_characters_are_code_points(house: House) -> None:
    house.engines[0].reply = house.tokenizer.encode('return "😀😀" # end').ids
    answer = (await house.complete()).json()
    text = answer["choices"][0]["text"]
    shown = text.index("#")
    body = {"completion_id": answer["id"], "outcome": "partially_accepted", "accepted_characters": shown}
    assert (await house.send_feedback("/v1/feedback", body)).status_code == 200
    joined = join(house.rows("completions"), house.rows("feedback"), join_seconds=60)
    label = joined.joined[0].label
    assert label is not None and text[: label.accepted_characters] == 'return "😀😀" '
    utf16 = {**body, "accepted_characters": len(text.encode("utf-16-le")) // 2}  # of all of it, as JavaScript counts
    await house.send_feedback("/v1/feedback", utf16)
    joined = join(house.rows("completions"), house.rows("feedback")[1:], join_seconds=60)
    label = joined.joined[0].label
    assert label is not None and label.accepted_characters == len(text), "never more than the completion has"


async def test_tabbys_accept_of_a_word_counts_as_the_line_that_it_is_reported_as(house: House) -> None:
    house.engines[0].reply = house.tokenizer.encode("return alpha\nprint(beta)").ids
    answer = (await house.complete(segments={"prefix": "def f(x):\n    "})).json()
    event = {"type": "select", "completion_id": answer["id"], "choice_index": 0, "view_id": "v", "elapsed": 900}
    assert (await house.send_feedback("/v1/events?select_kind=line", event)).status_code == 200
    joined = join(house.rows("completions"), house.rows("feedback"), join_seconds=60)
    label = joined.joined[0].label
    assert label is not None and (label.outcome, label.accepted_characters) == ("partially_accepted", len("return alpha"))


async def test_a_whole_number_with_a_point_is_one(house: House) -> None:
    for body in ({"outcome": "partially_accepted", "accepted_characters": 5.0}, {"settled_kept": 5.0, "settled_total": 9.0}):
        assert (await house.send_feedback("/v1/feedback", {"completion_id": "c", **body})).status_code == 200
    assert house.rows("feedback")[0].accepted_characters == 5 and house.rows("feedback")[1].settled_kept == 5
    refused = await house.send_feedback("/v1/feedback", {"completion_id": "c", "settled_kept": 5.5, "settled_total": 9})
    assert refused.status_code == 422


async def test_minus_one_asks_for_as_many_tokens_as_are_served(house: House) -> None:
    assert (await house.complete(max_tokens=-1)).status_code == 200
    assert (await house.complete(max_tokens=0)).status_code == 400
