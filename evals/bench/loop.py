"""The loop's time: one cycle by step, and from the last label to the first completion by the new version.

Developers type, one cycle runs through its deployment while they are slow.
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
        RuntimeError: the cycle made no version, or it was not served.
    """
    traffic, stop = Traffic(0.0), asyncio.Event()
    run = developers.RunSettings(address=address_of(settings), users=USERS, concurrency=8, seed=int(time.time()))
    typing = asyncio.create_task(developers.run(run, developers.code_from(), stop=stop, progress=traffic, rate=traffic.rate))
    try:
        began = time.monotonic()
        while traffic.tally.total.answered < LABELS:
            await asyncio.sleep(0.5)
        served = traffic.tally.total.requests / (time.monotonic() - began)
        known = set(traffic.tally.by_version())
        started, traffic.quiet = time.monotonic(), True
        async with Orchestration(settings.orchestration.api) as prefect:
            steps = await _cycle(prefect)
        ended, traffic.quiet = time.monotonic(), False
        while traffic.tally.by_version().keys() <= known:
            if time.monotonic() > ended + SWAP_SECONDS:
                raise RuntimeError(f"serving: no answer by the new version within {SWAP_SECONDS:.0f} s; `make status`")
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
        figure("requests_per_second_while_typing", served, "1/s"),
    ]


def address_of(settings: Settings) -> developers.Address:
    """The stack's own server, with the team's token."""
    serving = settings.serving
    return developers.Address(
        api_base=f"http://{serving.host}:{serving.port}/v1",
        feedback_url=f"http://{serving.host}:{serving.feedback_port}/v1/continue/events",
        token=serving.token.get_secret_value() if serving.token else "",
        model=settings.model.name,
    )


async def _cycle(prefect: Orchestration) -> list[tuple[str, float]]:
    """RunSettings the deployment; its steps and their seconds."""
    identifier = await prefect.start(CYCLE)
    while not (found := await prefect.run(identifier)).ended:
        await asyncio.sleep(0.5)
    steps = await prefect.tasks(identifier)
    if "register" not in {name for name, _ in steps}:
        raise RuntimeError(f"the cycle made no version: {found.state}: {found.message}; see the run in Prefect")
    return steps
