"""Each part of the stack killed (SIGKILL) while developers type and a cycle runs: it comes back, and the loop goes on."""

import asyncio
import os
import signal
import time

from evals import developers
from evals.bench.figures import Figure, figure
from evals.bench.loop import address_of
from evals.demo.loop import CYCLE, Traffic
from evals.demo.orchestration import Orchestration
from infra.registry import CHALLENGER, Registry
from infra.settings import Settings
from infra.stack import control

PARTS = ("engine-0", "engine-1", "serving", "s3", "mlflow", "prefect", "worker")
LABELS, USERS = 600, 60
BACK_SECONDS, CYCLE_SECONDS = 240.0, 900.0
PAUSE_SECONDS = 5.0


async def run(settings: Settings) -> list[Figure]:
    """Kill one part after another, then see that answers and cycles go on.

    Raises:
        RuntimeError: a part stays away, nothing is answered any more, or no cycle comes to its end.
    """
    traffic, stop = Traffic(0.0), asyncio.Event()
    run = developers.RunSettings(address=address_of(settings), users=USERS, concurrency=4, seed=int(time.time()))
    typing = asyncio.create_task(developers.run(run, developers.code_from(), stop=stop, progress=traffic, rate=traffic.rate))
    figures = []
    try:
        await _answered(traffic, LABELS, "before anything was killed")
        async with Orchestration(settings.orchestration.api) as prefect:
            await prefect.start(CYCLE)
            await asyncio.sleep(4 * PAUSE_SECONDS)  # the cycle has begun
        for part in PARTS:
            figures.append(figure(f"{part}.back_after", await asyncio.to_thread(_kill, part), "s", most=BACK_SECONDS))
            await _answered(traffic, traffic.tally.total.answered + 20, f"after {part} was killed")
            await asyncio.sleep(PAUSE_SECONDS)
        # The cycle that was under way may have come to its end, and its test would keep the next one from beginning.
        registry = Registry.connect(settings.registry)
        registry.set_experiment(None)
        registry.delete_alias(CHALLENGER)
        began = time.monotonic()
        tries = await _cycle(settings)
        figures += [
            figure("cycle_after_all_kills", time.monotonic() - began, "s", most=CYCLE_SECONDS),
            figure("cycle_runs_until_one_ended", tries, ""),
            figure("requests_answered", traffic.tally.total.answered, ""),
        ]
    finally:
        stop.set()
        await typing
    return figures


def _kill(part: str) -> float:
    """Seconds until it answers again, in a process of its own."""
    before = _row(part).pid
    os.kill(before, signal.SIGKILL)
    began = time.monotonic()
    while not ((row := _row(part)).ready and row.pid != before):
        if time.monotonic() > began + BACK_SECONDS:
            raise RuntimeError(f"{part}: not back {BACK_SECONDS:.0f} s after it was killed; its log: {row.log}")
        time.sleep(0.5)
    return time.monotonic() - began


def _row(part: str) -> control.Row:
    return next(row for row in control.status() if row.part == part)


async def _answered(traffic: Traffic, count: int, when: str) -> None:
    deadline = time.monotonic() + BACK_SECONDS
    while traffic.tally.total.answered < count:
        if time.monotonic() > deadline:
            raise RuntimeError(f"serving: nothing is answered {when}; `make status`")
        await asyncio.sleep(0.2)


async def _cycle(settings: Settings) -> int:
    """Start the deployment until a run of it opens a test, as its schedule would; how often it was started.

    A run that died with its worker holds its deployment's only slot until Prefect gives it up; runs are cancelled meanwhile.
    """
    deadline, tries = time.monotonic() + CYCLE_SECONDS, 0
    async with Orchestration(settings.orchestration.api) as prefect:
        while True:
            identifier = await prefect.start(CYCLE)
            tries += 1
            while not (found := await prefect.run(identifier)).ended:
                if time.monotonic() > deadline:
                    raise RuntimeError(f"cycle: {found.state} after {CYCLE_SECONDS:.0f} s; see the run in Prefect")
                await asyncio.sleep(1.0)
            if "open experiment" in {name for name, _ in await prefect.tasks(identifier)}:
                return tries
            if time.monotonic() > deadline:
                raise RuntimeError(f"cycle: {tries} runs ended and none opened a test; the last: {found.state}: {found.message}")
            await asyncio.sleep(4 * PAUSE_SECONDS)
