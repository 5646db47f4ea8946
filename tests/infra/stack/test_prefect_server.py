"""Prefect's server on SQLite: a change of automations blocks no other request."""

import asyncio

from prefect.server.events.models import automations

from infra.stack import prefect_server


async def test_a_changed_automation_waits_for_a_lock_without_stopping_the_loop_that_holds_it() -> None:
    lock, changed = asyncio.Lock(), asyncio.Event()

    async def change() -> None:
        async with lock:
            changed.set()

    async with asyncio.timeout(30):
        async with lock:
            prefect_server._start(change())
            await asyncio.sleep(0)
            assert not changed.is_set()
        await changed.wait()


def test_prefect_still_has_the_function_that_is_replaced(monkeypatch) -> None:
    monkeypatch.setattr(automations, "run_coro_as_sync", automations.run_coro_as_sync)
    prefect_server.create_app()
    assert automations.run_coro_as_sync is prefect_server._start
