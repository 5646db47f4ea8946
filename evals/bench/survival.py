"""Each part of the stack is killed (SIGKILL) while developers type and a cycle runs: the part restarts and the loop continues."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator

from evals.bench.figures import Bench, Figure, Size, figure
from evals.bench.loop import REGISTER, end_test, settle, typing
from evals.bench.rigs.servers import until
from evals.demo.loop import CYCLE, Traffic
from evals.demo.orchestration import FlowRun, Orchestration
from infra.registry.client import Registry
from infra.settings import Settings
from infra.stack import control

PARTS = Size(full=("engine-0", "engine-1", "evaluation", "serving", "s3", "mlflow", "prefect", "worker"), quick=("serving",))
LABELS, STEP, USERS = Size(full=600, quick=50), 200, 60
"""Requests before the first kill, and how many more at a time until they are enough for a cycle."""
STEPS = 5
"""Runs of the cycle that may find too few of them."""
BACK_SECONDS, CYCLE_SECONDS = 240.0, Size(full=900.0, quick=240.0)
PAUSE_SECONDS = 5.0


async def run(settings: Settings, bench: Bench) -> AsyncIterator[Figure]:
    """Kill one part after another, then check that the app answers and a cycle completes.

    Raises RuntimeError where a part does not restart, the app stops answering, or no cycle completes.
    """
    async with typing(settings, USERS, 4) as (traffic, _):
        with bench.part("developers type", share=0.1):
            await _until_answered(traffic, LABELS.of(bench.quick), "before the first kill")
            async with Orchestration(settings.orchestration) as prefect:
                running = await _begin_cycle(settings, prefect, traffic)
        for part in PARTS.of(bench.quick):
            with bench.part(f"{part} is killed", share=0.5 / len(PARTS.of(bench.quick))):
                seconds = await _kill(part)
            yield figure(f"{part}.back_after", seconds, "s", most=BACK_SECONDS)
            await _until_answered(traffic, traffic.tally.total.answered + 10, f"after the kill of {part}")
            await asyncio.sleep(PAUSE_SECONDS)
        began = time.monotonic()
        with bench.part("cycle after the kills", share=0.4):
            attempts = await _complete_cycle(settings, running, CYCLE_SECONDS.of(bench.quick))
        yield figure("cycle_after_all_kills", time.monotonic() - began, "s", most=CYCLE_SECONDS.of(bench.quick))
        yield figure("cycle_runs_until_one_ended", attempts, "")
        yield figure("requests_answered", traffic.tally.total.answered, "")


async def _kill(part: str) -> float:
    """Kill a part. Return the seconds until a new process of it is ready."""

    def row() -> control.Row:
        return next(row for row in control.status() if row.part == part)

    pid = (await asyncio.to_thread(row)).pid

    async def is_back() -> bool:
        now = await asyncio.to_thread(row)
        return now.ready and now.pid != pid

    os.kill(pid, signal.SIGKILL)
    began = time.monotonic()
    await until(is_back, BACK_SECONDS, f"{part}: not ready after the kill", every=0.5)
    return time.monotonic() - began


async def _until_answered(traffic: Traffic, count: int, when: str) -> None:
    await until(lambda: traffic.tally.total.answered >= count, BACK_SECONDS, f"serving: no request is answered {when}")


async def _begin_cycle(settings: Settings, prefect: Orchestration, traffic: Traffic) -> str:
    """Start the cycle's deployment until a run trains. Return its id.

    Developers type slowly from then on: at full speed they would type thousands of requests, and the next cycle would train for
    minutes.
    """
    for _ in range(STEPS):
        traffic.quiet = True
        await settle(settings)
        identifier = await prefect.start(CYCLE)
        while not (run := await prefect.flow_run(identifier)).ended:
            if "train" in await prefect.current_task(identifier):
                return identifier
            await asyncio.sleep(1.0)
        traffic.quiet = False
        await _until_answered(traffic, traffic.tally.total.answered + STEP, "before the first kill")
    raise RuntimeError(f"cycle: none of {STEPS} runs trained; the last: {run.state}: {run.message}")


async def _complete_cycle(settings: Settings, running: str, seconds: float) -> int:
    """Wait for the run that the kills met, then start others, as its schedule would, until one registers a version.

    Return the number of runs that ended after the kills.

    A run that died with its worker holds its deployment's only slot until Prefect marks it as crashed, and further runs are
    cancelled until then. The test of the cycle before would keep the next one from beginning, so it is ended, whenever it began.
    """
    registry, attempts, identifier = Registry.connect(settings.registry), 0, running
    run: FlowRun | None = None
    try:
        async with asyncio.timeout(seconds), Orchestration(settings.orchestration) as prefect:
            if (run := await prefect.flow_run(running)).ended:
                end_test(registry)
                identifier = await prefect.start(CYCLE)
            while True:
                while not (run := await prefect.flow_run(identifier)).ended:
                    await asyncio.sleep(1.0)
                attempts += 1
                if REGISTER in {task.name for task in await prefect.tasks(identifier)}:
                    return attempts
                await asyncio.sleep(2 * PAUSE_SECONDS)
                end_test(registry)
                identifier = await prefect.start(CYCLE)
    except TimeoutError:
        late = f"none of {attempts} runs registered a version within {seconds:.0f} s"
        last = f"the last: {run.state}: {run.message}" if run else f"no answer from {settings.orchestration.api}"
        raise RuntimeError(f"cycle: {late}; {last}") from None
