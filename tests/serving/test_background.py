"""What runs beside the requests."""

import asyncio

import pytest

from serving.__main__ import in_background


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
