"""The loop's benchmarks: python -m evals.bench

Needs the stack (`make up`) and no A/B test under way. Developers type, one cycle runs through its deployment while they are slow,
and var/bench/loop.json says how long each step took, and how long it was from the last label to the first completion by the new
version.
"""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from evals import developers
from evals.demo.loop import CYCLE, WATCH, Traffic
from evals.demo.orchestration import Orchestration
from infra import settings as configuration
from infra.registry import Registry
from infra.settings import Settings

OUT = Path("var/bench/loop.json")
CYCLE_TARGET_SECONDS = 120.0
FRESH_TARGET_SECONDS = 150.0
SWAP_SECONDS = 60.0

Figure = dict[str, object]


def figure(name: str, value: float, unit: str, target: float | None = None) -> Figure:
    """One figure; without a target it is met by being measured."""
    return {"name": name, "value": round(value, 3), "unit": unit, "target": target, "met": target is None or value <= target}


async def bench(settings: Settings, labels: int, users: int) -> list[Figure]:
    """Type until there are enough labels, run a cycle, wait for its version in live answers.

    Raises:
        RuntimeError: an A/B test runs, the cycle made no version, or it was not served.
    """
    traffic, stop = Traffic(0.0), asyncio.Event()
    address = developers.Address(
        api_base=f"http://{settings.serving.host}:{settings.serving.port}/v1",
        feedback_url=f"http://{settings.serving.host}:{settings.serving.feedback_port}/v1/continue/events",
        token=settings.serving.token.get_secret_value() if settings.serving.token else "",
        model=settings.model.name,
    )
    run = developers.Run(address=address, users=users, concurrency=8, seed=int(time.time()))
    code = developers.code_from()
    async with Orchestration(settings.orchestration.api) as prefect:
        for deployment in (CYCLE, WATCH):
            await prefect.pause(deployment, True)
        while await prefect.busy():
            await asyncio.sleep(1.0)
        if test := Registry.connect(settings.registry).aliases().experiment:
            for deployment in (CYCLE, WATCH):
                await prefect.pause(deployment, False)
            raise RuntimeError(f"A/B test {test.id} runs, so that no cycle would begin; wait for its verdict, then again")
        typing = asyncio.create_task(developers.run(run, code, stop=stop, progress=traffic, rate=traffic.rate))
        try:
            began = time.monotonic()
            while traffic.tally.total.answered < labels:
                await asyncio.sleep(0.5)
            served = traffic.tally.total.requests / (time.monotonic() - began)
            known = set(traffic.tally.by_version())
            started, traffic.quiet = time.monotonic(), True
            identifier = await prefect.start(CYCLE)
            while not (found := await prefect.run(identifier)).ended:
                await asyncio.sleep(0.5)
            ended, traffic.quiet = time.monotonic(), False
            steps = await prefect.tasks(identifier)
            if "register" not in {name for name, _ in steps}:
                raise RuntimeError(f"the cycle made no version: {found.state}: {found.message}; see the run in Prefect")
            while traffic.tally.by_version().keys() <= known:
                if time.monotonic() > ended + SWAP_SECONDS:
                    raise RuntimeError(f"serving: no answer by the new version within {SWAP_SECONDS:.0f} s; `make status`")
                await asyncio.sleep(0.2)
            fresh = time.monotonic() - started
        finally:
            stop.set()
            await typing
            for deployment in (CYCLE, WATCH):
                await prefect.pause(deployment, False)
    figures = [figure(f"cycle.{name}", seconds, "s") for name, seconds in steps]
    figures.append(figure("cycle.total", ended - started, "s", CYCLE_TARGET_SECONDS))
    figures.append(figure("cycle.outside_its_steps", ended - started - sum(seconds for _, seconds in steps), "s"))
    figures.append(figure("last_label_to_first_new_completion", fresh, "s", FRESH_TARGET_SECONDS))
    figures.append(figure("requests_per_second_while_typing", served, "1/s"))
    return figures


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and write. Exit code 1 where a target is missed."""
    parser = argparse.ArgumentParser(prog="python -m evals.bench", description=__doc__.split("\n")[0])
    parser.add_argument("--labels", type=int, default=1000, help="labels before the cycle (default %(default)s)")
    parser.add_argument("--users", type=int, default=120, help="developers (default %(default)s)")
    options = parser.parse_args(arguments)
    figures = asyncio.run(bench(configuration.load(), options.labels, options.users))
    out = configuration.ROOT / OUT
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(figures, indent=2) + "\n")
    table = Table("figure", "value", "unit", "target", "met")
    for row in figures:
        table.add_row(*(str(row[key]) for key in ("name", "value", "unit", "target", "met")))
    Console().print(table)
    return 0 if all(row["met"] for row in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
