"""What runs beside the requests."""

import asyncio
import threading

import pytest

from serving.__main__ import LOOP_THREADS, in_background, threads


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


async def test_a_registry_that_hangs_for_every_loop_leaves_threads_to_the_others() -> None:
    loops, answers = 9, threading.Event()
    asyncio.get_running_loop().set_default_executor(threads(loops))
    hanging = [asyncio.create_task(asyncio.to_thread(answers.wait, 20)) for _ in range(LOOP_THREADS * loops)]
    try:
        await asyncio.sleep(0)
        assert await asyncio.wait_for(asyncio.to_thread(str, "shipped"), 5) == "shipped"
    finally:
        answers.set()
        await asyncio.gather(*hanging)
