"""What is shown of a completion: by the version's estimate, at the level of the request."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from infra.model.showing import FILE, Estimate
from infra.records import Completion, ExperimentRecord
from serving.gateway.showing import ShowBest, ShowTerms
from tests.infra.model.test_showing import made
from tests.serving.fakes import TEXT, House
from tests.serving.helpers import CONTINUE, events

SURE = made(bias=9.0)
"""Everything is kept."""
NEVER = made(bias=-9.0)
SHORT = made(bias=6.0, characters=-20.0)
"""The more characters, the less likely."""


async def served(house: House, estimate: Any, **headers: str) -> tuple[str, Completion]:
    """Complete with an estimate; return the streamed text and the record."""
    for slot in house.arms.slots:
        slot.estimate = estimate.model_copy(update={"temperature": 0.8}) if estimate else None
    response = await house.client.post(house.urls[0] + "/v1/completions", json=CONTINUE, headers=headers)
    assert response.status_code == 200, response.text
    text = "".join(json.loads(event)["choices"][0]["text"] for event in events(response.text)[:-1])
    return text, house.rows("completions")[-1]


NO_AUDIT: dict[str, Any] = {"showing": {"audit_share": 0.0}}


async def test_without_an_estimate_all_is_shown(tmp_path: Path, tokenizer: Tokenizer) -> None:
    async with House(tmp_path, tokenizer, settings=NO_AUDIT) as house:
        text, row = await served(house, None)
        assert text == row.text == TEXT and (row.held_back, row.level, row.chance, row.withheld) == ("", "", None, False)


async def test_a_sure_completion_is_shown_in_whole_and_the_chance_recorded(tmp_path: Path, tokenizer: Tokenizer) -> None:
    async with House(tmp_path, tokenizer, settings=NO_AUDIT) as house:
        text, row = await served(house, SURE)
        assert text == row.text == TEXT and row.held_back == "" and row.finish_reason == "length"
        assert (row.level, row.withheld, row.audited) == ("eager", False, False) and row.chance is not None and row.chance > 0.999


async def test_the_beginning_worth_most_is_streamed_and_the_rest_is_held_back(tmp_path: Path, tokenizer: Tokenizer) -> None:
    async with House(tmp_path, tokenizer, settings=NO_AUDIT) as house:
        house.engines[0].delay = 0.01  # token by token
        text, row = await served(house, SHORT)
        assert text == row.text and TEXT.startswith(text) and 0 < len(text) < len(TEXT)
        assert row.held_back and TEXT.startswith(row.text + row.held_back)
        assert row.token_ends[-1] == len(row.text + row.held_back) and len(row.text) in row.token_ends
        assert not row.withheld and row.finish_reason == "stop" and len(row.token_ids) < len(house.engines[0].reply)
        assert 'tabloop_shortened_total{arm="champion",sampling="served",version="0"} 1.0' in house.metrics_text().decode()


async def test_nothing_is_shown_that_is_not_worth_an_interruption_and_sampling_ends(tmp_path: Path, tokenizer: Tokenizer) -> None:
    async with House(tmp_path, tokenizer, settings=NO_AUDIT) as house:
        house.engines[0].reply, house.engines[0].delay = tokenizer.encode(TEXT).ids * 3, 0.01
        text, row = await served(house, NEVER)
        assert text == row.text == "" and row.withheld and row.held_back and row.chance is not None and row.chance < 0.01
        assert len(row.token_ids) < len(house.engines[0].reply)
        assert 'tabloop_withheld_total{arm="champion",sampling="served",version="0"} 1.0' in house.metrics_text().decode()


async def test_an_estimate_of_another_temperature_does_not_hold(tmp_path: Path, tokenizer: Tokenizer) -> None:
    async with House(tmp_path, tokenizer, settings=NO_AUDIT) as house:
        for slot in house.arms.slots:
            slot.estimate = NEVER  # of 0.1, and the house samples at 0.8
        await house.client.post(house.urls[0] + "/v1/completions", json=CONTINUE)
        (row,) = house.rows("completions")
        assert row.text == TEXT and row.level == ""


async def test_a_share_of_what_is_held_back_is_shown_all_the_same(tmp_path: Path, tokenizer: Tokenizer) -> None:
    async with House(tmp_path, tokenizer, settings={"showing": {"audit_share": 0.1}}) as house:
        rows = [(await served(house, NEVER))[1] for _ in range(120)]
        audited = [row for row in rows if row.audited]
        assert 1 <= len(audited) <= 30 and {row.text for row in audited} == {TEXT}
        assert all(row.withheld and not row.text for row in rows if not row.audited)


def terms(level: str | None, **others: Any) -> dict[str, Any]:
    return {"logged": True, "experiments": True, "level": level} | others


@pytest.mark.parametrize(
    ("settings", "headers", "level"),
    [
        ({}, {}, "eager"),
        ({"showing": {"level": "quiet"}}, {}, "quiet"),
        ({"terms": terms("balanced")}, {}, "balanced"),
        ({"terms": terms("balanced"), "projects": {"p1": terms("quiet")}}, {}, "quiet"),
        ({"terms": terms("balanced"), "projects": {"p1": terms("quiet")}}, {"X-Tabloop-Level": "eager"}, "eager"),
    ],
)
async def test_the_level_is_the_headers_then_the_projects_then_the_apps(
    tmp_path: Path, tokenizer: Tokenizer, settings: dict[str, Any], headers: dict[str, str], level: str
) -> None:
    async with House(tmp_path, tokenizer, settings=settings) as house:
        _, row = await served(house, SURE, **headers)
        assert row.level == level


async def test_an_unknown_level_is_refused(house: House) -> None:
    response = await house.complete(headers={"X-Tabloop-Level": "loud"})
    assert response.status_code == 400 and house.rows("completions") == []
    assert response.json()["error"]["message"] == "X-Tabloop-Level: expected all, eager, balanced, quiet, got 'loud'"


async def test_the_price_of_the_level_decides(tmp_path: Path, tokenizer: Tokenizer) -> None:
    prices = {"showing": {"eager": 0.0, "quiet": 1000.0, "audit_share": 0.0}}
    async with House(tmp_path, tokenizer, settings=prices) as house:
        eager, _ = await served(house, SURE, **{"X-Tabloop-Level": "eager"})
        quiet, row = await served(house, SURE, **{"X-Tabloop-Level": "quiet"})
        assert (eager, quiet) == (TEXT, "") and row.withheld


async def test_at_the_level_all_everything_is_shown(tmp_path: Path, tokenizer: Tokenizer) -> None:
    async with House(tmp_path, tokenizer, settings={"showing": {"level": "quiet"}}) as house:
        text, row = await served(house, NEVER, **{"X-Tabloop-Level": "all"})
        assert text == row.text == TEXT and row.level == "" and row.chance is None


@pytest.mark.parametrize("before", [SURE, None])
async def test_in_a_test_each_version_has_its_own_estimate_as_after_a_promotion(house: House, before: Estimate | None) -> None:
    first, second = house.arms.slots
    house.arms.champion, house.arms.challenger, second.version = 0, 1, "1"
    second.verified = (second.pid, "1")
    house.arms.experiment = ExperimentRecord(id="e", champion="0", challenger="1", share=0.5, started=0.0)
    first.estimate, second.estimate = before, NEVER
    users = [f"u{number}" for number in range(20)]
    tested = [house.arms.route(user, 1.0)[0] for user in users]
    assert {route.arm for route in tested} == {"champion", "challenger"}
    assert all(route.estimate == (before if route.arm == "champion" else NEVER) for route in tested)
    assert house.arms.pinned(version="1").estimate == NEVER


async def test_past_acceptance_is_counted_from_feedback_and_recorded(tmp_path: Path, tokenizer: Tokenizer) -> None:
    async with House(tmp_path, tokenizer, settings=NO_AUDIT) as house:
        await served(house, SURE)
        assert house.rows("completions")[-1].user_acceptance is None
        for number in range(12):
            outcome = "accepted" if number < 3 else "rejected"
            body = {"completion_id": f"cmpl-{number}", "outcome": outcome}
            assert (await house.send_feedback("/v1/feedback", body, {"X-Project-ID": "p1"})).status_code == 200
        await house.send_feedback("/v1/feedback", {"completion_id": "x"} | {"outcome": "shown"}, {"X-Project-ID": "p1"})
        _, row = await served(house, SURE)
        assert row.project_acceptance == 0.25 and row.user_acceptance == 0.25


async def test_who_opted_out_is_not_counted_and_leaves_no_text(tmp_path: Path, tokenizer: Tokenizer) -> None:
    async with House(tmp_path, tokenizer, settings=NO_AUDIT) as house:
        for number in range(12):
            body, headers = {"completion_id": f"cmpl-{number}", "outcome": "accepted"}, {"X-Tabloop-Opt-Out": "1"}
            await house.send_feedback("/v1/feedback", body, headers | {"X-Project-ID": "p1"})
        _, row = await served(house, NEVER, **{"X-Tabloop-Opt-Out": "1"})
        assert row.project_acceptance is None and (row.text, row.held_back, row.token_ids) == ("", "", ())


async def test_a_secret_in_what_is_held_back_is_removed(tmp_path: Path, tokenizer: Tokenizer) -> None:
    async with House(tmp_path, tokenizer, settings=NO_AUDIT) as house:
        secret = "ghp_" + "aB3dE5gH7jK9mN1pQ3sT5vW7yZ9bC1dE3fG5"
        house.engines[0].reply = tokenizer.encode(f'token = "{secret}"').ids[:24]
        _, row = await served(house, NEVER.model_copy(update={"bias": -2.0}))
        assert row.redacted and secret[:20] not in row.held_back + row.text and row.token_ids == ()


async def test_a_version_brings_its_estimate_into_the_slot(tmp_path: Path, tokenizer: Tokenizer) -> None:
    async with House(tmp_path, tokenizer) as house:
        for version, files in (("1", {FILE: SURE.model_dump_json()}), ("2", {FILE: "{"}), ("3", {})):
            house.registry.sources[version] = house.store.add_version(f"v{version}", **files)
            house.registry.aliases["champion"] = version
            await house.follow()
            slot = house.arms.slots[house.number("champion")]
            assert slot.version == version and slot.estimate == (SURE if version == "1" else None)


def test_tokens_that_arrive_together_are_decided_as_one_by_one() -> None:
    logprobs, ends, text = [-0.1] * 6, [3, 6, 9, 12, 15, 18], "abcdefghijklmnopqr"
    shown = []
    for steps in ([6], [2, 4, 6], [1, 2, 3, 4, 5, 6]):
        display = ShowBest(SHORT.at(place()), ShowTerms("eager", 0.5), 0.5, 24)
        for count in steps:
            display.update(logprobs[:count], ends[:count], text[: ends[count - 1]])
            if display.ended:
                break
        display.finish(text)
        shown.append((display.limit, display.chance))
    assert len(set(shown)) == 1


def place() -> Any:
    from infra.model.showing import Place

    return Place("x = ", "\n")
