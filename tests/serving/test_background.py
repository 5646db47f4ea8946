"""What runs beside the requests."""

import asyncio
import threading

import pytest

from serving.__main__ import LOOP_THREADS, THREADS, in_background, threads
from serving.status.data import REFRESH_SECONDS
from tests.serving.fakes import House
from tests.serving.helpers import AN_EDITOR, run_experiment


async def test_what_ends_with_an_error_beside_the_requests_is_logged_at_once(caplog: pytest.LogCaptureFixture) -> None:
    async def follow() -> None:
        raise OSError(24, "too many open files")

    async def serve_on() -> None:
        await asyncio.Event().wait()

    broken, serving = in_background(follow(), serve_on())
    await asyncio.wait([broken])
    await asyncio.sleep(0)
    serving.cancel()
    await asyncio.wait([serving])
    (record,) = caplog.records
    assert "follow at" in record.getMessage() and "ended, start the app again: [Errno 24] too many" in record.getMessage()


async def test_a_registry_that_hangs_for_a_loop_leaves_threads_to_the_others(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serving.slots.follower.REGISTRY_SECONDS", 0.05)
    monkeypatch.setattr("serving.status.data.WAIT_SECONDS", 0.05)
    await run_experiment(house)
    asyncio.get_running_loop().set_default_executor(threads(1))
    house.registry.answers.clear()
    for engine, slot in zip(house.engines, house.arms.slots, strict=True):
        engine.logprob = float("nan")  # so that every step verifies the slots again
        slot.verified = (None, None)
    try:
        for _ in range(LOOP_THREADS):
            house.clock += 2 * REFRESH_SECONDS
            await asyncio.gather(house.follower.step(), house.data.refresh(house.arms.experiment))
        assert await asyncio.wait_for(asyncio.to_thread(str, "shipped"), 5) == "shipped"
        assert sum(thread.name.startswith("calls") for thread in threading.enumerate()) <= LOOP_THREADS
    finally:
        house.registry.answers.set()


async def test_a_store_that_hangs_for_pages_of_developers_leaves_threads_to_the_others(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serving.status.own_page.WAIT_SECONDS", 0.05)
    asyncio.get_running_loop().set_default_executor(threads(1))
    house.store.reads_allowed.clear()
    try:
        for _ in range(THREADS + LOOP_THREADS):
            page = await house.client.get(house.urls[0] + "/me", headers=AN_EDITOR)
            assert page.status_code == 200 and "the object store does not answer" in page.text
        assert await asyncio.wait_for(asyncio.to_thread(str, "shipped"), 5) == "shipped"
    finally:
        house.store.reads_allowed.set()
