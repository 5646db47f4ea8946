"""A spool on the disk of a replica that is gone is known to the others, until a replica with that disk has shipped it."""

import asyncio
from pathlib import Path

import pytest

from infra.storage import spool_notes
from infra.storage.store import Unreachable
from serving.recording.left_spools import LeftSpools, spool_name
from serving.recording.shipping import Shipper
from serving.recording.spool import Spool
from tests.serving.recording.test_spool import feedback
from tests.tasks.made import MemoryStore


class Store(MemoryStore):
    """A bucket that can be away."""

    away = False

    def put(self, key: str, body: bytes) -> str:
        if self.away:
            raise Unreachable("no answer")
        return super().put(key, body)


class Replica:
    """A spool with its shipper and its note."""

    def __init__(self, disk: Path, store: Store, host: str) -> None:
        self.spool = Spool(disk)
        self.shipper = Shipper(self.spool, store, 60.0)
        self.notes = LeftSpools(self.spool, store, host, lambda: store.now)

    async def end(self) -> None:
        """End as the app does."""
        await self.spool.close()
        if await self.shipper.ship():
            await self.notes.end()


async def test_a_spool_that_nobody_ships_is_named_until_its_disk_is_back(tmp_path: Path) -> None:
    store = Store()
    gone, stays = (Replica(tmp_path / host, store, host) for host in ("app-4", "app-0"))
    await asyncio.gather(gone.notes.step(), stays.notes.step())
    await gone.spool.append(feedback("a"))
    store.now += spool_notes.EVERY_SECONDS
    await gone.notes.step()
    seen, store.away = store.now, True
    await gone.end()
    store.away = False
    for minute in range(1, 7):
        store.now = seen + 60 * minute
        await stays.notes.step()
        assert list(stays.notes.left) == ([gone.notes.name] if minute == 6 else []), "it may be starting again"
    (note,) = stays.notes.left.values()
    assert (note.seen, note.bytes, note.set_aside) == (seen, gone.spool.bytes, 0) and note.bytes > 0
    assert gone.notes.name.startswith("app-4-")
    back = Replica(tmp_path / "app-4", store, "another-host")
    assert back.notes.name == gone.notes.name, "the disk keeps it"
    await back.notes.step()
    await stays.notes.step()
    assert stays.notes.left == {}
    await back.end()
    assert list(store.keys(spool_notes.PREFIX)) == [spool_notes.key(stays.notes.name)]
    assert len(list(store.keys("events/feedback/"))) == 1


async def test_a_replica_that_is_killed_before_its_first_event_leaves_its_note(tmp_path: Path) -> None:
    store = Store()
    killed, stays = (Replica(tmp_path / host, store, host) for host in ("app-1", "app-0"))
    await killed.notes.step()
    store.now += spool_notes.GONE_SECONDS + 1
    await stays.notes.step()
    assert {name: note.bytes for name, note in stays.notes.left.items()} == {killed.notes.name: 0}


async def test_segments_that_were_set_aside_keep_the_note(tmp_path: Path) -> None:
    store = Store()
    replica = Replica(tmp_path, store, "app-0")
    await replica.notes.step()
    replica.spool.bad.mkdir()
    (replica.spool.bad / "feedback-x.jsonl").write_text("{}\n")
    await replica.end()
    note = store.get_json(spool_notes.key(replica.notes.name))
    assert (note["bytes"], note["set_aside"]) == (0, 1)


async def test_a_late_step_does_not_bring_the_note_of_an_ended_replica_back(tmp_path: Path) -> None:
    store = Store()
    replica = Replica(tmp_path, store, "app-0")
    await replica.notes.step()
    await replica.end()
    await replica.notes.step()
    assert not list(store.keys(spool_notes.PREFIX))


async def test_a_store_that_is_away_leaves_the_values_before_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store()
    replica, killed = Replica(tmp_path / "a", store, "app-0"), Replica(tmp_path / "b", store, "app-1")
    await killed.notes.step()
    store.now += spool_notes.GONE_SECONDS + 1
    await replica.notes.step()
    store.away = True
    for _ in range(3):
        await replica.notes.step()
    assert replica.notes.error == "Unreachable: no answer" and list(replica.notes.left) == [killed.notes.name]
    assert len(caplog.records) == 1
    store.away = False
    await replica.notes.step()
    assert not replica.notes.error


@pytest.mark.parametrize("written", ["", "../../events/x-00000000", "app"])
def test_a_broken_name_is_replaced(tmp_path: Path, written: str) -> None:
    (tmp_path / "name").write_text(written)
    name = spool_name(tmp_path, "pod/of:ours")
    assert name.startswith("pod-of-ours-") and spool_name(tmp_path, "another") == name
