"""The whole loop on one machine: python -m evals.demo

Starts the stack, lets simulated developers type, runs cycles and A/B tests through the Prefect deployments, and at the end
measures base and champion on the same developers at the same places. Writes var/demo/report.html and report.json.
"""

import argparse
import asyncio
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from evals import developers
from evals.demo import history, measure, report
from evals.demo.loop import CYCLE, WATCH, Loop, Plan, Traffic
from evals.demo.orchestration import Orchestration
from evals.demo.record import Report
from evals.positions import Code
from infra import settings as configuration
from infra.registry import CHALLENGER, Registry
from infra.settings import Settings
from infra.stack.parts import parts
from infra.store import ObjectStore

STACK_UP = (sys.executable, "-m", "infra.stack", "up")
LATER = "engine-1"
BASE = "1"
"""Version that the stack registers on its first start."""
OUT = Path("var/demo")
SWAP_SECONDS = 60.0
VISITS_APART = 100_000
"""Between the places of one demo and of the next."""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    result = argparse.ArgumentParser(prog="python -m evals.demo", description=__doc__.split("\n")[0])
    add = result.add_argument
    add("--seed", type=int, default=0, help="of the simulated developers (default %(default)s)")
    add("--users", type=int, default=1000, help="developers (default %(default)s)")
    add("--code", type=Path, nargs="+", default=[], metavar="DIR", help="type through these (default: the held-out packages)")
    add("--cycles", type=int, default=3, help="cycles to have been run, earlier demos counted in (default %(default)s)")
    add("--labels", type=int, default=2400, help="labels that a cycle waits for at least (default %(default)s)")
    add("--minutes", type=float, default=11.0, help="begin no cycle after so long (default %(default)s)")
    add("--visits", type=int, default=3500, help="places of the closing comparison (default %(default)s)")
    add("--rate", type=float, default=0.0, help="most requests a second (default: what the concurrency lets through)")
    add("--concurrency", type=int, default=48, help="developers who type at the same time (default %(default)s)")
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    """RunSettings the demo. Exit code 0 when the champion beats the base for sure, 1 when not, or the error of the part that failed."""
    options = parser().parse_args(arguments)
    console = Console()
    began = time.monotonic()
    code = developers.code_from(options.code)
    settings = configuration.load()
    first = [part for part in parts(settings) if part != LATER]
    up = subprocess.run([*STACK_UP, "--paused", *first], cwd=configuration.ROOT, check=False)
    if up.returncode:
        return up.returncode
    settings = configuration.load()
    found = asyncio.run(demo(options, settings, code, console, began))
    report.write(found, configuration.ROOT / OUT)
    report.show(found, console)
    console.print(f"report: {OUT / 'report.html'}, {OUT / 'report.json'}", highlight=False)
    for name, address in found.addresses.items():
        console.print(f"{name}: {address}", highlight=False)
    console.print("`make down` stops it all; `make demo` again goes on from here", highlight=False)
    if not found.improved:
        console.print("no improvement that the interval can tell from chance, or fewer accepted characters", style="bold red")
    return 0 if found.improved else 1


async def demo(options: argparse.Namespace, settings: Settings, code: Code, console: Console, began: float) -> Report:
    """RunSettings the loop, then measure."""
    store, registry = ObjectStore.connect(settings.store), Registry.connect(settings.registry)
    traffic, stop = Traffic(options.rate), asyncio.Event()
    test, deadline = settings.experiment, began + 60 * options.minutes
    plan = Plan(options.cycles, options.labels, test.planned_requests, test.max_seconds, deadline)
    async with Orchestration(settings.orchestration.api) as prefect:
        before = await asyncio.to_thread(history.read_state, store, registry)
        if before.ended:
            # Something is to be seen in a second demo too: one more cycle than there was.
            plan = replace(plan, cycles=max(options.cycles, len(before.ended) + 1))
        loop = Loop(plan, store, registry, prefect, traffic, console)
        run = _developers(options, settings, first_visit=VISITS_APART * len(before.ended))
        typing = asyncio.create_task(developers.run(run, code, stop=stop, progress=traffic, rate=traffic.rate))
        try:
            world, _ = await asyncio.gather(loop.run(), _start_later())
            stop.set()
            live = await typing
            champion = world.aliases.champion or BASE
            loop.say(f"closing comparison: base (version {BASE}) and champion (version {champion}), {options.visits} places")
            paired = await _compare(options, settings, code, registry, champion, loop)
        finally:
            stop.set()
            typing.cancel()
            with suppress(asyncio.CancelledError):
                await typing
            for deployment in (CYCLE, WATCH):
                await prefect.pause(deployment, False)
    return Report(
        seed=options.seed,
        seconds=time.monotonic() - began,
        base_version=BASE,
        champion_version=champion,
        cycles=len(world.ended),
        promotions=world.promotions,
        rejections=world.rejections,
        judge=settings.evaluate.judge.kind,
        **measure.comparisons(paired),
        versions=measure.live_rows(live),
        history=history.cycle_rows(store, world),
        examples=measure.examples(paired),
        addresses={
            "Prefect": settings.orchestration.api.removesuffix("/api"),
            "MLflow": settings.registry.uri,
            "serving": f"http://{settings.serving.host}:{settings.serving.port}",
        },
    )


async def _start_later() -> None:
    """Start the second engine, too, while developers type: it has nothing to do before there is a challenger."""
    process = await asyncio.create_subprocess_exec(*STACK_UP, LATER, cwd=configuration.ROOT)
    if await process.wait():
        raise RuntimeError(f"{LATER} did not come up, see above; `make status`")


async def _compare(
    options: argparse.Namespace, settings: Settings, code: Code, registry: Registry, champion: str, loop: Loop
) -> developers.PairedRun:
    """Put the base into the idle slot, without an experiment, and let the developers meet both."""
    challenger = (await asyncio.to_thread(registry.aliases)).challenger  # of a test that has no verdict yet
    if champion != BASE:
        await asyncio.to_thread(registry.set_alias, CHALLENGER, BASE)
    try:
        run = _developers(options, settings, pinning=True)
        await _until_served(run, code, {BASE, champion})
        told = time.monotonic()

        def progress(done: int) -> None:
            nonlocal told
            if time.monotonic() - told > 15:
                loop.say(f"closing comparison: {done} of {options.visits} places")
                told = time.monotonic()

        return await developers.measure(run, code, (BASE, champion), options.visits, progress=progress)
    finally:
        if challenger is not None:
            await asyncio.to_thread(registry.set_alias, CHALLENGER, challenger)
        elif champion != BASE:
            await asyncio.to_thread(registry.delete_alias, CHALLENGER)


async def _until_served(run: developers.RunSettings, code: Code, versions: set[str]) -> None:
    deadline = time.monotonic() + SWAP_SECONDS
    while time.monotonic() < deadline:
        tried = await developers.measure(run, code, sorted(versions), 1)
        if not tried.dropped:
            return
        await asyncio.sleep(1.0)
    raise RuntimeError(f"serving: versions {sorted(versions)} are not both served after {SWAP_SECONDS:.0f} s; see var/stack/logs")


def _developers(
    options: argparse.Namespace, settings: Settings, *, first_visit: int = 0, pinning: bool = False
) -> developers.RunSettings:
    serving = settings.serving
    secret = (serving.admin_token if pinning else None) or serving.token
    token = secret.get_secret_value() if secret else ""
    return developers.RunSettings(
        address=developers.Address(
            api_base=f"http://{serving.host}:{serving.port}/v1",
            feedback_url=f"http://{serving.host}:{serving.feedback_port}/v1/continue/events",
            token=token,
            model=settings.model.name,
        ),
        users=options.users,
        seed=options.seed,
        rate=options.rate,
        concurrency=options.concurrency,
        first_visit=first_visit,
        examples=20_000,
    )


if __name__ == "__main__":
    sys.exit(main())
