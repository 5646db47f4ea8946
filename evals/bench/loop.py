"""The time of the loop: each step of one cycle, and from the last label to the first completion by the new version.

Developers type; while the cycle runs through its deployment, they type slowly.
"""

import asyncio
import time

from evals import developers
from evals.bench.figures import Figure, figure
from evals.demo.loop import CYCLE, Traffic
from evals.demo.orchestration import Orchestration
from infra.settings import Settings

LABELS, USERS = 1000, 120
CYCLE_TARGET_SECONDS = 120.0
FRESH_TARGET_SECONDS = 150.0
SWAP_SECONDS = 60.0


async def run(settings: Settings) -> list[Figure]:
    """Type until there are enough labels, run a cycle, wait for its version in live answers.

    Raises:
        RuntimeError: the cycle registers no version, or the version is not served.
    """
    traffic, stop = Traffic(0.0), asyncio.Event()
    address = developers.stack_address(settings)
    run = developers.RunSettings(address=address, users=USERS, concurrency=8, seed=int(time.time()), speed=200)
    typing = asyncio.create_task(developers.run(run, developers.code_from(), stop=stop, progress=traffic, rate=traffic.rate))
    try:
        began = time.monotonic()
        while traffic.tally.total.answered < LABELS:
            await asyncio.sleep(0.5)
        requests_per_second = traffic.tally.total.requests / (time.monotonic() - began)
        old_versions = set(traffic.tally.by_version())
        started, traffic.quiet = time.monotonic(), True
        async with Orchestration(settings.orchestration) as prefect:
            steps = await _cycle_steps(prefect)
        ended, traffic.quiet = time.monotonic(), False
        while traffic.tally.by_version().keys() <= old_versions:
            if time.monotonic() > ended + SWAP_SECONDS:
                raise RuntimeError(f"serving: no answer by the new version within {SWAP_SECONDS:.0f} s; run `make status`")
            await asyncio.sleep(0.2)
        fresh = time.monotonic() - started
    finally:
        stop.set()
        await typing
    return [
        *(figure(f"cycle.{name}", seconds, "s") for name, seconds in steps),
        figure("cycle.total", ended - started, "s", most=CYCLE_TARGET_SECONDS),
        figure("cycle.outside_its_steps", ended - started - sum(seconds for _, seconds in steps), "s"),
        figure("last_label_to_first_new_completion", fresh, "s", most=FRESH_TARGET_SECONDS),
        figure("requests_per_second_while_typing", requests_per_second, "1/s"),
    ]


async def _cycle_steps(prefect: Orchestration) -> list[tuple[str, float]]:
    """Run the deployment. Return its steps and their seconds."""
    identifier = await prefect.start(CYCLE)
    while not (run := await prefect.flow_run(identifier)).ended:
        await asyncio.sleep(0.5)
    steps = await prefect.task_seconds(identifier)
    if "register" not in {name for name, _ in steps}:
        raise RuntimeError(f"the cycle registered no version: {run.state}: {run.message}; see the run in Prefect")
    return steps
