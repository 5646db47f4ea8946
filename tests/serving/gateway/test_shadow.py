"""Copies of requests for a challenger that nobody sees: what is copied, what is recorded, and what is left as it was."""

import asyncio

import pytest

from infra.records import ShadowCopy, Stage
from infra.settings.schema import Collect, Experiment
from tasks.experiments.planning.plan import make_plan
from tests.serving.fakes import TEXT, House, experiment
from tests.serving.helpers import run_experiment, until


async def shadow(house: House, share: float = 1.0) -> None:
    """Start a test of version 2 in its shadow stage."""
    await run_experiment(house)
    plan = make_plan(Experiment(), Collect()).model_copy(update={"shadow_share": share})
    stage = Stage(name="shadow", share=0.0, started=1.0)
    house.registry.experiment = experiment().model_copy(update={"plan": plan, "stages": (stage,)})
    await house.follow()


def copies(house: House) -> list[ShadowCopy]:
    return [row for row in house.rows("shadow") if isinstance(row, ShadowCopy)]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_copy_is_answered_unseen_and_leaves_no_trace_but_its_event(house: House, stream: bool) -> None:
    await shadow(house)
    answer = await house.complete(stream=stream)
    assert answer.status_code == 200 and TEXT not in answer.text, "the first slot has the challenger"
    await until(lambda: copies(house))
    (copy,) = copies(house)
    assert (copy.champion, copy.challenger, copy.experiment, copy.failed) == ("1", "2", "e1", False)
    assert not copy.same_line and 0 < copy.similarity < 1
    assert copy.challenger_first_ms and 0 < copy.challenger_first_ms <= copy.challenger_ms
    assert not {"user", "project", "text"} & set(ShadowCopy.model_fields)
    (row,) = house.rows("completions")
    assert (row.policy_version, row.arm, row.experiment, row.assigned) == ("1", "champion", "", "")
    assert b'tabloop_completions_total{arm="champion",finish="length",sampling="served",version="1"} 1.0' in house.metrics_text()
    assert b'version="2"} ' not in b"".join(line for line in house.metrics_text().splitlines() if b"completions_total" in line)


async def test_the_answer_does_not_wait_for_the_copy_and_copies_are_dropped_under_load(house: House) -> None:
    await shadow(house)
    engine = house.engines[house.number("challenger")]
    engine.tokens_allowed.clear()
    for _ in range(6):
        assert "gamma" in (await house.complete()).json()["choices"][0]["text"]
    assert copies(house) == []
    engine.tokens_allowed.set()
    await until(lambda: len(copies(house)) == 2)
    assert b'tabloop_shadow_copies_total{result="dropped"} 4.0' in house.metrics_text()


async def test_opted_out_pinned_and_excluded_requests_are_not_copied(house: House) -> None:
    await shadow(house)
    await house.complete(headers={"X-Tabloop-Opt-Out": "1"})
    assert house.rows("completions")[0].opted_out
    asked = len(house.engines[house.number("challenger")].requests)
    await asyncio.sleep(0.2)
    assert copies(house) == [] and len(house.engines[house.number("challenger")].requests) == asked


async def test_a_challenger_that_fails_costs_its_copies_and_nobody_else(house: House) -> None:
    await shadow(house)
    house.engines[house.number("challenger")].fails_after = 1
    for _ in range(3):
        assert (await house.complete()).status_code == 200
        await until(lambda: not house.arms.slots[1].in_flight)
    await until(lambda: len(copies(house)) == 3)
    assert all(copy.failed and copy.similarity == 0 for copy in copies(house))


async def test_copies_are_shipped_as_objects_of_their_own(house: House) -> None:
    await shadow(house)
    await house.complete()
    await until(lambda: copies(house))
    assert await house.ship()
    assert [row.experiment for row in house.store.shipped("shadow")] == ["e1"]
    assert len(house.store.shipped("completions")) == 1
