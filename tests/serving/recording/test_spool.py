"""No acknowledged event is lost, and none is shipped twice."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.records import Feedback
from infra.storage.store import from_parquet
from serving.recording import journal
from serving.recording.shipping import Shipper, key, read_segment, ship_segment
from serving.recording.spool import Spool, SpoolFull
from tests.serving.fakes import MemoryStore
from tests.serving.recording.faulty_disk import FaultyDisk


def feedback(name: str, text: str = "") -> Feedback:
    common = {"project": "p", "user": "u", "client": "c", "client_id": "i", "prefix": text, "suffix": "", "shown": text}
    return Feedback(id=name, time=1.0, made_at=None, outcome="accepted", **common)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> FaultyDisk:
    """The journals' disk."""
    monkeypatch.setattr(journal, "os", fake := FaultyDisk())
    return fake


def shipped(store: MemoryStore) -> list[str]:
    return [row.id for row in store.shipped("feedback")]


async def closed_segment(directory: Path) -> Path:
    """Return the segment of a closed spool with one event, "a"."""
    spool = Spool(directory, 1 << 30)
    await spool.append(feedback("a"))
    await spool.close()
    (segment,) = (directory / "feedback").glob("*")
    return segment


async def test_all_concurrent_appends_are_written(tmp_path: Path) -> None:
    spool = Spool(tmp_path, 1 << 30)
    await asyncio.gather(*(spool.append(feedback(str(n))) for n in range(500)))
    (segment,) = (tmp_path / "feedback").glob("*")
    rows, unreadable = read_segment(segment, Feedback)
    assert ({row.id for row in rows}, len(rows), unreadable) == ({str(n) for n in range(500)}, 500, 0)
    await spool.close()


async def test_a_segment_is_uploaded_once_if_its_shipper_is_stopped_during_the_upload(tmp_path: Path) -> None:
    class BlockingStore(MemoryStore):
        """A store whose uploads begin and then block."""

        def __init__(self) -> None:
            super().__init__()
            self.started, self.resume = threading.Event(), threading.Event()

        def put(self, key: str, body: bytes) -> str:
            self.started.set()
            self.resume.wait(20)
            return super().put(key, body)

    spool, store = Spool(tmp_path, 1 << 30), BlockingStore()
    shipper = Shipper(spool, store, 0.02)
    running = asyncio.create_task(shipper.run())
    await spool.append(feedback("a"))
    await asyncio.to_thread(store.started.wait, 20)
    running.cancel()
    await asyncio.wait([running])
    await spool.close()
    last = asyncio.create_task(shipper.ship())
    await asyncio.sleep(0.1)
    store.resume.set()
    assert await last, shipper.error
    assert (len(store.puts), shipped(store), list((tmp_path / "feedback").glob("*"))) == (1, ["a"], [])


async def test_a_segment_that_is_being_opened_is_not_listed_as_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool, store = Spool(tmp_path, 1 << 30), MemoryStore()
    shipper, open_file, closed = Shipper(spool, store, 1.0), os.open, []

    def open_and_list_closed(path: Path, *arguments: int) -> int:
        """Open a file, and list the closed segments before the journal knows the descriptor."""
        descriptor = open_file(path, *arguments)
        closed.extend(spool.journals["feedback"].closed_segments())
        return descriptor

    monkeypatch.setattr(os, "open", open_and_list_closed)
    await spool.append(feedback("a"))
    monkeypatch.undo()
    await spool.close()
    assert closed == [] and await shipper.ship() and shipped(store) == ["a"]


async def test_a_segment_is_closed_after_the_clock_is_set_back(tmp_path: Path) -> None:
    now = 1000.0
    spool = Spool(tmp_path, 1 << 30, lambda: now)
    journal = spool.journals["feedback"]
    await spool.append(feedback("a"))
    await journal.rotate(60)
    assert journal.closed_segments() == []
    now = 10.0
    await journal.rotate(60)
    assert len(journal.closed_segments()) == 1
    await spool.close()


async def test_events_are_delayed_and_not_lost_while_the_store_is_unavailable(tmp_path: Path) -> None:
    spool, store = Spool(tmp_path, 1 << 30), MemoryStore()
    shipper = Shipper(spool, store, 0.02)
    store.unavailable = True
    running = asyncio.create_task(shipper.run())
    for n in range(20):
        await spool.append(feedback(str(n)))
        await asyncio.sleep(0.01)
    while "away" not in shipper.error:
        await asyncio.sleep(0.01)
    assert store.objects == {} and spool.bytes > 0
    store.unavailable = False
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await spool.close()
    assert await shipper.ship()
    assert sorted(shipped(store), key=int) == [str(n) for n in range(20)]
    assert list((tmp_path / "feedback").glob("*")) == [] and shipper.error == "" and spool.bytes == 0


async def test_a_disk_that_cannot_be_measured_for_a_moment_does_not_end_shipping(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool, store = Spool(tmp_path, 1 << 30), MemoryStore()
    shipper = Shipper(spool, store, 0.02)

    def fail_once() -> None:
        monkeypatch.undo()
        raise OSError(24, "too many open files")

    monkeypatch.setattr(spool, "measure", fail_once)
    running = asyncio.create_task(shipper.run())
    await spool.append(feedback("a"))
    while not shipped(store):
        assert not running.done()
        await asyncio.sleep(0.01)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await spool.close()


async def test_a_measurement_that_began_earlier_does_not_replace_a_later_one(tmp_path: Path) -> None:
    segment, reached, resume = await closed_segment(tmp_path), threading.Event(), threading.Event()

    def clock() -> float:
        if threading.current_thread().name == "first":
            reached.set()
            resume.wait(20)
        return 4e9

    spool = Spool(tmp_path, 1 << 30, clock)
    first, later = (threading.Thread(target=spool.measure, name=name) for name in ("first", "later"))
    first.start()
    reached.wait(20)
    segment.unlink()
    later.start()
    later.join(0.2)
    resume.set()
    first.join()
    later.join()
    assert (spool.bytes, spool.segments, spool.oldest) == (0, 0, 0.0)


async def test_a_crash_between_upload_and_deletion_writes_the_same_object_again(tmp_path: Path) -> None:
    segment, store = await closed_segment(tmp_path), MemoryStore()
    body = segment.read_bytes()
    for _ in range(2):
        segment.write_bytes(body)
        assert ship_segment(segment, "feedback", store, tmp_path / "bad") == 1
    assert store.puts == [key("feedback", segment.stem)] * 2 and shipped(store) == ["a"]


async def test_a_torn_last_line_is_dropped_and_garbage_is_set_aside(tmp_path: Path) -> None:
    segment, store = await closed_segment(tmp_path), MemoryStore()
    segment.write_bytes(b"\0\0garbage\n" + segment.read_bytes() + b'{"id":"tor')
    assert await Shipper(Spool(tmp_path, 1 << 30), store, 1.0).ship()
    assert shipped(store) == ["a"] and len(list((tmp_path / "bad").glob("*"))) == 1


async def test_a_segment_that_fits_no_table_is_set_aside_and_the_others_are_shipped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spool, store = Spool(tmp_path, 1 << 30), MemoryStore()
    for name, characters in (("a", 1), ("b", 10**30), ("c", 2)):
        await spool.append(feedback(name).model_copy(update={"accepted_characters": characters}))
        await spool.journals["feedback"].rotate(0)
    whole = spool.journals["feedback"].closed_segments()[1].read_bytes()
    (tmp_path / "feedback" / "notes.jsonl").write_bytes(b"")
    assert await Shipper(spool, store, 1.0).ship()
    assert shipped(store) == ["a", "c"] and spool.segments == 0 and spool.set_aside == 2
    assert whole in [path.read_bytes() for path in (tmp_path / "bad").iterdir()]
    assert "OverflowError" in caplog.text and "kept in" in caplog.text
    await spool.close()


async def test_a_full_spool_refuses_events_until_it_is_shipped(tmp_path: Path) -> None:
    spool = Spool(tmp_path, 10)
    await spool.append(feedback("a"))
    spool.measure()
    with pytest.raises(SpoolFull):
        await spool.append(feedback("b"))
    await spool.journals["feedback"].rotate(0)
    assert await Shipper(spool, MemoryStore(), 1.0).ship()
    await spool.append(feedback("c"))
    await spool.close()


async def test_a_failed_sync_is_an_error_and_no_other_event_is_lost(tmp_path: Path, disk: FaultyDisk) -> None:
    spool = Spool(tmp_path, 1 << 30)
    await spool.append(feedback("a"))
    disk.sync_fails = True
    with pytest.raises(OSError, match="broken"):
        await spool.append(feedback("b"))
    disk.sync_fails = False
    await spool.append(feedback("c"))
    assert len(list((tmp_path / "feedback").glob("*"))) == 2  # no line follows one whose sync failed
    await spool.close()
    store = MemoryStore()
    assert await Shipper(spool, store, 1.0).ship()
    assert sorted(shipped(store)) == ["a", "c"]


async def test_lines_that_a_full_disk_refuses_leave_no_files(tmp_path: Path, disk: FaultyDisk) -> None:
    spool = Spool(tmp_path, 1 << 30)
    disk.tears_lines = True
    for _ in range(20):
        with pytest.raises(OSError, match="no space left"):
            await spool.append(feedback("a"))
    assert list((tmp_path / "feedback").iterdir()) == []
    disk.tears_lines = False
    await spool.append(feedback("b"))
    await spool.close()
    store = MemoryStore()
    assert await Shipper(spool, store, 1.0).ship() and shipped(store) == ["b"]


async def test_a_line_is_in_its_file_while_the_sync_stalls(tmp_path: Path, disk: FaultyDisk) -> None:
    spool = Spool(tmp_path, 1 << 30)
    disk.stalled_path = "feedback"
    synced = spool.write(feedback("a"))
    rotated = asyncio.create_task(spool.journals["feedback"].rotate(0))
    await asyncio.sleep(0.05)
    (segment,) = (tmp_path / "feedback").glob("*")
    assert [row.id for row in read_segment(segment, Feedback)[0]] == ["a"] and not synced.done()
    assert spool.journals["feedback"].closed_segments() == []
    disk.resume.set()
    await rotated
    assert synced.done() and spool.journals["feedback"].closed_segments() == [segment]
    await spool.close()


async def test_feedback_is_acknowledged_when_earlier_completions_are_synced(tmp_path: Path, disk: FaultyDisk) -> None:
    spool = Spool(tmp_path, 1 << 30)
    disk.stalled_path = "completions"
    completion_written = spool.journals["completions"].write(b"{}\n")
    acknowledged = asyncio.create_task(spool.append(feedback("a")))
    await asyncio.sleep(0)  # the event is written
    newest = spool.journals["feedback"].newest
    assert newest is not None
    await asyncio.wait([newest])
    await asyncio.sleep(0.05)
    assert newest.done() and not completion_written.done() and not acknowledged.done()
    disk.resume.set()
    await acknowledged
    assert completion_written.done()
    await spool.close()


ACTIONS = ("write", "write", "yield", "rotate", "ship", "break", "repair", "tear")


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from(ACTIONS), max_size=40))
def test_exactly_the_acknowledged_events_are_shipped_once_under_disk_faults(
    tmp_path_factory: pytest.TempPathFactory, actions: list[str]
) -> None:
    store, acknowledged, refused = MemoryStore(), set[str](), set[str]()

    async def run_actions(disk: FaultyDisk) -> None:
        spool = Spool(tmp_path_factory.mktemp("spool"), 1 << 30)
        shipper = Shipper(spool, store, 1.0)
        waiting: dict[str, asyncio.Future[None]] = {}
        for number, action in enumerate(actions):
            if action in ("write", "tear"):
                disk.tears_lines = action == "tear"
                try:
                    waiting[str(number)] = spool.write(feedback(str(number)))
                except OSError:
                    refused.add(str(number))
            elif action == "yield":
                await asyncio.sleep(0.002)
            elif action == "rotate":
                await spool.journals["feedback"].rotate(0)
            elif action == "ship":
                assert await shipper.ship()
            else:
                disk.sync_fails = action == "break"
        await spool.close()
        for name, synced in waiting.items():
            (refused if synced.exception() else acknowledged).add(name)
        assert await shipper.ship() and list((spool.directory / "feedback").glob("*")) == []

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(journal, "os", disk := FaultyDisk())
        asyncio.run(run_actions(disk))
    assert sorted(shipped(store)) == sorted(acknowledged) and not acknowledged & refused


@settings(max_examples=40)
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=1, max_size=20))
def test_any_text_is_unchanged_by_spool_and_parquet(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> None:
    rows = [feedback(str(n), text) for n, text in enumerate(texts)]
    store = MemoryStore()

    async def ship_rows() -> None:
        spool = Spool(tmp_path_factory.mktemp("spool"), 1 << 30)
        for row in rows:
            await spool.append(row)
        await spool.close()
        assert await Shipper(spool, store, 1.0).ship()

    asyncio.run(ship_rows())
    assert from_parquet(next(iter(store.objects.values())), Feedback) == rows


WRITER = """
    import asyncio, pathlib, sys
    from infra.records import Feedback
    from serving.recording.spool import Spool

    ROW = Feedback.model_validate_json(sys.argv[3])

    async def main():
        spool = Spool(pathlib.Path(sys.argv[1]), 1 << 30)
        async def write(worker):
            for n in range(100_000):
                name = f"{sys.argv[2]}-{worker}-{n}"
                row = ROW.model_copy(update={"id": name})
                if sys.argv[4] == "append":
                    await spool.append(row)
                else:  # as completions: acknowledged before the disk has it
                    spool.write(row)
                    await asyncio.sleep(0)
                sys.stdout.write(name + "\\n"); sys.stdout.flush()
                if n % 7 == 0:
                    await spool.journals["feedback"].rotate(0)
        await asyncio.gather(*(write(w) for w in range(8)))

    asyncio.run(main())
"""


@pytest.mark.parametrize("method", ["append", "write"])
def test_sigkill_loses_no_acknowledged_event(tmp_path: Path, method: str) -> None:
    acknowledged: list[str] = []
    for run in range(4):
        command = [sys.executable, "-c", textwrap.dedent(WRITER), str(tmp_path), str(run), feedback("").model_dump_json(), method]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            acknowledged += [writer.stdout.readline().strip() for _ in range(20 * (run + 1))]
            writer.send_signal(signal.SIGKILL)
            acknowledged += writer.stdout.read().split("\n")[:-1]
    store = MemoryStore()
    assert asyncio.run(Shipper(Spool(tmp_path, 1 << 30), store, 1.0).ship())
    shipped_ids = shipped(store)
    assert len(shipped_ids) == len(set(shipped_ids)) and set(acknowledged) <= set(shipped_ids) and len(acknowledged) > 50
