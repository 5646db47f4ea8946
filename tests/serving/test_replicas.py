"""Two replicas of the app, which share the object store and the registry only."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from tests.serving.fakes import House, experiment
from tests.serving.helpers import ADMINISTRATOR
from tests.tasks.rows import join

USERS = [f"user{n}" for n in range(20)]


@pytest.fixture
async def houses(tmp_path: Path, tokenizer: Tokenizer) -> AsyncIterator[tuple[House, House]]:
    """Two replicas on one store and one registry with versions 1 and 2."""
    one, two = House(tmp_path / "one", tokenizer), House(tmp_path / "two", tokenizer)
    two.store, two.registry = one.store, one.registry
    async with one, two:
        for version in ("1", "2"):
            one.add_version(version)
        yield one, two


async def test_replicas_follow_one_registry_and_ship_each_event_once(houses: tuple[House, House]) -> None:
    one, two = houses
    one.registry.aliases, one.registry.experiment = {"champion": "1", "challenger": "2"}, experiment()
    await asyncio.gather(one.follow(), two.follow())
    shipping = [asyncio.create_task(house.shipper.run()) for house in (one, two)]
    await asyncio.gather(*(_develop(user, one, two) for user in USERS))
    for task in shipping:
        task.cancel()
    await asyncio.gather(*shipping, return_exceptions=True)
    for house in (one, two):
        assert await house.ship() and not house.rows("completions")

    completions, feedback = one.store.shipped("completions"), one.store.shipped("feedback")
    assert len(one.store.puts) == len(set(one.store.puts)), "no key was written by both, or twice"
    assert {row.completion_id for row in feedback} == {row.id for row in completions}
    assert len(completions) == len(feedback) == 2 * len(USERS) == len({row.id for row in completions + feedback}) / 2
    arms: dict[str, set[tuple[str, str, str]]] = {}
    for row in completions:
        arms.setdefault(row.user, set()).add((row.arm, row.policy_version, row.experiment))
    assert len(arms) == len(USERS) and all(len(pairs) == 1 for pairs in arms.values()), "a user is on one arm everywhere"
    assert set.union(*arms.values()) == {("champion", "1", "e1"), ("challenger", "2", "e1")}
    joined = join(completions, feedback, join_seconds=60)
    assert joined.orphans == 0 and all(row.label and row.label.outcome == "accepted" for row in joined.joined)


async def test_a_rollback_reaches_every_replica(houses: tuple[House, House]) -> None:
    one, two = houses
    for champion in ("1", "2", "1"):
        one.registry.aliases = {"champion": champion}
        await asyncio.gather(one.follow(), two.follow())
        for house in (one, two):
            assert (await house.complete(headers=ADMINISTRATOR)).headers["x-tabloop-version"] == champion


async def _develop(user: str, one: House, two: House) -> None:
    """Request a completion from each replica, and send its feedback to the other."""
    headers = {"X-User-ID": user}
    for server, other in ((one, two), (two, one)):
        completion = (await server.complete(headers=headers)).json()["id"]
        response = await other.send_feedback("/v1/feedback", {"completion_id": completion, "outcome": "accepted"}, headers)
        assert response.status_code == 200
