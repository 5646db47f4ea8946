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
async def replicas(tmp_path: Path, tokenizer: Tokenizer) -> AsyncIterator[tuple[House, House]]:
    """Two replicas on one store and one registry with versions 1 and 2."""
    first, second = House(tmp_path / "first", tokenizer), House(tmp_path / "second", tokenizer)
    second.store, second.registry = first.store, first.registry
    async with first, second:
        for version in ("1", "2"):
            first.add_version(version)
        yield first, second


async def test_replicas_follow_one_registry_and_ship_each_event_once(replicas: tuple[House, House]) -> None:
    first, second = replicas
    first.registry.aliases, first.registry.experiment = {"champion": "1", "challenger": "2"}, experiment()
    await asyncio.gather(first.follow(), second.follow())
    shipping = [asyncio.create_task(replica.shipper.run()) for replica in (first, second)]
    await asyncio.gather(*(_complete_and_send_feedback(user, first, second) for user in USERS))
    for task in shipping:
        task.cancel()
    await asyncio.gather(*shipping, return_exceptions=True)
    for replica in (first, second):
        assert await replica.ship() and not replica.rows("completions")

    completions, feedback = first.store.shipped("completions"), first.store.shipped("feedback")
    assert len(first.store.puts) == len(set(first.store.puts)), "each key is written once"
    assert {row.completion_id for row in feedback} == {row.id for row in completions}
    assert len(completions) == len(feedback) == 2 * len(USERS) == len({row.id for row in completions + feedback}) / 2
    arms: dict[str, set[tuple[str, str, str]]] = {}
    for row in completions:
        arms.setdefault(row.user, set()).add((row.arm, row.policy_version, row.experiment))
    assert len(arms) == len(USERS) and all(len(pairs) == 1 for pairs in arms.values()), "each user has one arm on both replicas"
    assert set.union(*arms.values()) == {("champion", "1", "e1"), ("challenger", "2", "e1")}
    joined = join(completions, feedback, join_seconds=60)
    assert joined.orphans == 0 and all(row.label and row.label.outcome == "accepted" for row in joined.joined)


async def test_every_replica_follows_a_rollback(replicas: tuple[House, House]) -> None:
    first, second = replicas
    for champion in ("1", "2", "1"):
        first.registry.aliases = {"champion": champion}
        await asyncio.gather(first.follow(), second.follow())
        for replica in (first, second):
            assert (await replica.complete(headers=ADMINISTRATOR)).headers["x-tabloop-version"] == champion


async def _complete_and_send_feedback(user: str, first: House, second: House) -> None:
    """Request a completion from each replica, and send its feedback to the other."""
    headers = {"X-User-ID": user}
    for server, other in ((first, second), (second, first)):
        completion_id = (await server.complete(headers=headers)).json()["id"]
        response = await other.send_feedback("/v1/feedback", {"completion_id": completion_id, "outcome": "accepted"}, headers)
        assert response.status_code == 200
