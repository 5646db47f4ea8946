"""An event's user and project are those of its completion, or it is refused by the field that is missing."""

from collections.abc import Callable
from typing import Any

import pytest

from infra.identity import user_hash
from tests.serving.fakes import TEXT, House
from tests.serving.gateway.test_feedback import continue_event
from tests.serving.helpers import AN_EDITOR
from tests.tasks.rows import join

NO_USER = {"X-User-ID": ""}
PROMPT = "<|fim_prefix|>def f(x):\n    <|fim_suffix|>\n\nprint(1)\n<|fim_middle|>"
DATA = {"completionId": "c1", "accepted": True, "prompt": PROMPT, "completion": TEXT}
SEGMENTS = {"prefix": "def f(x):\n    ", "suffix": "\n\nprint(1)\n"}
Event = Callable[[str], tuple[str, dict[str, Any]]]
EVENTS: dict[str, Event] = {
    "native": lambda id: ("/v1/feedback", {"completion_id": id, "outcome": "accepted"}),
    "tabby": lambda id: ("/v1/events?select_kind=", {"type": "select", "completion_id": id, "choice_index": 0}),
    "continue": lambda id: ("/v1/continue/events", continue_event(DATA)),
    "rlinf": lambda id: ("/api/training/submit", DATA),
}


@pytest.mark.parametrize("port", [0, 1], ids=["completions", "feedback"])
@pytest.mark.parametrize("named_by", ["header", "body"])
@pytest.mark.parametrize("kind", EVENTS)
async def test_an_event_that_names_nobody_is_of_its_completions_user(house: House, kind: str, named_by: str, port: int) -> None:
    headers = {"X-User-ID": "bob" if named_by == "header" else "", "X-Project-ID": "web"}
    asked: dict[str, Any] = {"segments": SEGMENTS} if kind == "tabby" else {"prompt": PROMPT}
    answer = await house.complete(headers=headers, **asked, user=None if named_by == "header" else "bob")
    url, body = EVENTS[kind](answer.json()["id"])
    sent = await house.client.post(house.urls[port] + url, json=body, headers={**NO_USER, "X-Project-ID": ""})
    assert sent.status_code == 200, sent.text
    (event,) = house.rows("feedback")
    assert (event.user, event.project) == (user_hash(b"salt", "bob"), "web")
    joined = join(house.rows("completions"), [event], join_seconds=60)
    assert [row.label.outcome if row.label else None for row in joined.joined] == ["accepted"]


@pytest.mark.parametrize("kind", EVENTS)
async def test_an_events_own_user_counts(house: House, kind: str) -> None:
    answer = await house.complete(headers={"X-User-ID": "bob"}, prompt=PROMPT)
    url, body = EVENTS[kind](answer.json()["id"])
    await house.send_feedback(url, body, {"X-User-ID": "eve"})
    await house.send_feedback(url, {**body, "user": "mallory"}, NO_USER)
    users = [row.user for row in house.rows("feedback")]
    assert users == [user_hash(b"salt", name) for name in ("eve", "mallory")]
    joined = join(house.rows("completions"), house.rows("feedback"), join_seconds=60)
    assert [row.label for row in joined.joined] == [None], "nobody judges another user's completion"


@pytest.mark.parametrize("kind", EVENTS)
async def test_an_event_of_an_unknown_completion_is_refused_by_name(house: House, kind: str) -> None:
    await house.complete(headers={"X-User-ID": "bob"}, prompt="import os\n")
    url, body = EVENTS[kind]("cmpl-of-another-replica")
    answer = await house.send_feedback(url, body, NO_USER)
    message = answer.json()["error"]["message"]
    assert answer.status_code == 400 and message.startswith("X-User-ID or user: expected, since"), message
    assert ("cmpl-of-another-replica" in message) == (kind in ("native", "tabby"))
    assert house.rows("feedback") == []
    assert (await house.send_feedback(url, body, {"X-User-ID": "bob"})).status_code == 200


async def test_the_answer_says_whether_an_event_is_about_a_completion_of_its_user(house: House) -> None:
    id = (await house.complete(headers={"X-User-ID": "bob"}, prompt=PROMPT)).json()["id"]
    for completion_id, headers, matched in (
        (id, {"X-User-ID": "bob"}, True),
        ("cmpl-0", {"X-User-ID": "bob"}, False),
        (id, {"X-User-ID": "eve"}, False),
        (id, {"X-User-ID": "bob", "X-Project-ID": "another"}, False),
    ):
        answer = await house.send_feedback("/v1/feedback", {"completion_id": completion_id, "outcome": "accepted"}, headers)
        assert (answer.status_code, answer.json()["status"], answer.json()["matched"]) == (200, "recorded", matched)


async def test_tabbys_agent_learns_of_a_wrong_token(house: House) -> None:
    url = f"{house.urls[0]}/v1/health"
    for headers, status in (({}, 200), ({"Authorization": ""}, 200), ({"Authorization": "Bearer wrong"}, 401)):
        assert (await house.client.get(url, headers=headers)).status_code == status


async def test_a_position_of_two_users_names_neither(house: House) -> None:
    for name in ("bob", "eve"):
        await house.complete(headers={"X-User-ID": name}, prompt=PROMPT)
    answer = await house.send_feedback("/v1/continue/events", continue_event(DATA), NO_USER)
    assert answer.status_code == 400 and "X-User-ID" in answer.text
    await house.complete(headers={"X-User-ID": "eve"}, prompt=PROMPT.replace("f(x)", "unique(y)"))
    own = continue_event({**DATA, "prompt": PROMPT.replace("f(x)", "unique(y)")})
    assert (await house.send_feedback("/v1/continue/events", own, NO_USER)).status_code == 200
    assert house.rows("feedback")[0].user == user_hash(b"salt", "eve")


async def test_the_reused_stream_of_a_user_is_found_by_its_position(house: House) -> None:
    await house.complete(headers={"X-User-ID": "bob"}, prompt=PROMPT)
    typed = PROMPT.replace("    <|fim", "    retu<|fim")
    data = {**DATA, "prompt": typed, "completion": TEXT.removeprefix("retu")}
    assert (await house.send_feedback("/v1/continue/events", continue_event(data), NO_USER)).status_code == 200
    joined = join(house.rows("completions"), house.rows("feedback"), join_seconds=60)
    assert [row.label.outcome if row.label else None for row in joined.joined] == ["accepted"]


async def test_a_token_that_never_names_users_reports_for_itself(house: House) -> None:
    await house.complete(headers=NO_USER)
    for url, body in (event("cmpl-unknown") for event in EVENTS.values()):
        assert (await house.send_feedback(url, body, NO_USER)).status_code == 200
    assert {row.user for row in house.rows("feedback")} == {user_hash(b"salt", "proxy")}


async def test_an_editor_that_names_its_project_only_with_completions_gets_its_label(house: House) -> None:
    editor = {**AN_EDITOR, "X-User-ID": ""}
    answer = await house.complete(headers={**editor, "X-Project-ID": "web"}, prompt=PROMPT)
    url, body = EVENTS["native"](answer.json()["id"])
    assert (await house.send_feedback(url, body, {**editor, "X-Project-ID": ""})).status_code == 200
    assert house.rows("feedback")[0].project == "web"
    unknown = await house.send_feedback(url, {**body, "completion_id": "cmpl-0"}, {**editor, "X-Project-ID": ""})
    assert unknown.status_code == 400 and unknown.json()["error"]["message"].startswith("X-Project-ID: expected, since")
