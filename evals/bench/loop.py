"""The time of the loop: each step of one cycle, and from the last label, and the registration, to the first completion by the new
version.

Developers type; while their requests settle, and the cycle runs through its deployment, they type slowly.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from evals import developers
from evals.bench.figures import Bench, Figure, Size, figure
from evals.bench.rigs.servers import until
from evals.demo.loop import CYCLE, Traffic
from evals.demo.orchestration import Orchestration, TaskRun
from evals.progress import Part
from infra.registry.client import CHALLENGER, Registry
from infra.settings import Settings

LABELS, USERS = Size(full=1000, quick=260), 120
CYCLE_TARGET_SECONDS = 120.0
FRESH_TARGET_SECONDS = 150.0
SWAP_SECONDS = 60.0
REGISTER = "register"
ASK_SECONDS = 5.0  # between two questions which step runs, since Prefect shares the cores with the cycle
SHIPMENTS = 2
"""Intervals of shipping after which the last request and its outcome are in the store."""


async def settle(settings: Settings) -> None:
    """Wait until a cycle uses the last request: it must be as old as collect.settle_seconds, and shipped."""
    await asyncio.sleep(settings.collect.settle_seconds + SHIPMENTS * settings.serving.ship_seconds)


def end_test(registry: Registry) -> None:
    """End the A/B test that a cycle opened, which would keep the next cycle from beginning."""
    registry.set_experiment(None)
    registry.delete_alias(CHALLENGER)


@asynccontextmanager
async def typing(settings: Settings, users: int, concurrency: int) -> AsyncIterator[tuple[Traffic, "asyncio.Task[object]"]]:
    """Let developers type until the block ends; yields their traffic and their task."""
    traffic, stop = Traffic(0.0), asyncio.Event()
    address = developers.stack_address(settings)
    run = developers.RunSettings(address=address, users=users, concurrency=concurrency, seed=int(time.time()), speed=200)
    task = asyncio.create_task(developers.run(run, developers.code_from(), stop=stop, progress=traffic, rate=traffic.rate))
    try:
        yield traffic, task
    finally:
        stop.set()
        await task


async def run(settings: Settings, bench: Bench) -> AsyncIterator[Figure]:
    """Type until there are enough labels, run a cycle, wait for its version in live answers.

    Raises RuntimeError where the cycle registers no version, or the version is not served.
    """
    async with typing(settings, USERS, 32) as (traffic, _):
        began = time.monotonic()
        labels = LABELS.of(bench.quick)
        with bench.part("developers type, requests", labels, share=0.3) as part:
            while traffic.tally.total.answered < labels:
                await asyncio.sleep(0.5)
                part.at(traffic.tally.total.answered)
        requests_per_second = traffic.tally.total.requests / (time.monotonic() - began)
        old_versions = set(traffic.tally.by_version())
        started, traffic.quiet = time.monotonic(), True
        with bench.part("requests settle"):
            await settle(settings)
        asked = time.monotonic()
        async with Orchestration(settings.orchestration) as prefect:
            with bench.part("cycle", share=0.7) as part:
                tasks = await _cycle_tasks(prefect, part)
        ended, traffic.quiet = time.monotonic(), False
        late = "serving: no answer by the new version"
        await until(lambda: bool(traffic.tally.by_version().keys() - old_versions), SWAP_SECONDS, late)
        fresh, first = time.monotonic() - started, time.time()
    for task in tasks:
        yield figure(f"cycle.{task.name}", task.seconds, "s")
    registered = next(task.ended for task in tasks if task.name == REGISTER)
    assert registered is not None, "the run has ended"
    for one in (
        figure("requests_settle", asked - started, "s"),
        figure("cycle.total", ended - asked, "s", most=CYCLE_TARGET_SECONDS),
        figure("cycle.outside_its_steps", ended - asked - sum(task.seconds for task in tasks), "s"),
        figure("last_label_to_first_new_completion", fresh, "s", most=FRESH_TARGET_SECONDS),
        figure("registration_to_first_new_completion", first - registered, "s"),
        figure("requests_per_second_while_typing", requests_per_second, "1/s"),
    ):
        yield one


async def _cycle_tasks(prefect: Orchestration, part: Part) -> list[TaskRun]:
    """Run the deployment. Return its tasks."""
    identifier, asked = await prefect.start(CYCLE), time.monotonic()
    while not (run := await prefect.flow_run(identifier)).ended:
        await asyncio.sleep(0.5)
        if time.monotonic() - asked > ASK_SECONDS:
            part.rename(f"loop: cycle{await prefect.current_task(identifier)}")
            asked = time.monotonic()
    tasks = await prefect.tasks(identifier)
    if REGISTER not in {task.name for task in tasks}:
        raise RuntimeError(f"the cycle registered no version: {run.state}: {run.message}; see the run in Prefect")
    return tasks
