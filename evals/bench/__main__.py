"""The benchmarks: python -m evals.bench [NAME...]

All but `trainer` and `join` need the stack (`make up`) and no A/B test under way; the schedules are paused meanwhile. Exit code 1
where a target is missed.
"""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from importlib import import_module

import httpx
from rich.console import Console

from evals.bench import figures
from evals.demo.loop import CYCLE, WATCH
from evals.demo.orchestration import Orchestration
from infra import settings as configuration
from infra.registry import CHALLENGER, Registry
from infra.settings import Settings

ALONE = ("trainer", "join")
"""Those that need no stack."""
BENCHES = ("serving", "feedback", "loop", "survival", "kills", *ALONE)
"""Modules of this package; imported when they are run, since some import torch."""


async def bench(settings: Settings, names: Sequence[str], console: Console) -> bool:
    """Run benchmarks one after another, those on the stack first; whether all targets are met."""
    met = True
    if on_the_stack := [name for name in names if name not in ALONE]:
        met = await beside_the_loop(settings, on_the_stack, console)
    for name in names:
        if name in ALONE:
            met &= await measured(name, settings, console)
    return met


async def measured(name: str, settings: Settings, console: Console) -> bool:
    """Run one; whether its targets are met."""
    return figures.write(name, await import_module(f"evals.bench.{name}").run(settings), console)


async def beside_the_loop(settings: Settings, names: Sequence[str], console: Console) -> bool:
    """Run benchmarks while nothing else of the loop runs; whether all targets are met.

    Raises:
        RuntimeError: an A/B test runs.
    """
    met = True
    async with Orchestration(settings.orchestration.api) as prefect:
        for deployment in (CYCLE, WATCH):
            await prefect.pause(deployment, True)
        try:
            while await prefect.busy():
                await asyncio.sleep(1.0)
            registry = Registry.connect(settings.registry)
            if test := registry.aliases().experiment:
                raise RuntimeError(f"A/B test {test.id} runs, which would be disturbed; wait for its verdict, then again")
            for name in names:
                met &= await measured(name, settings, console)
                # A cycle that was measured has opened a test, in whose way no cycle begins.
                registry.set_experiment(None)
                registry.delete_alias(CHALLENGER)
        finally:
            for deployment in (CYCLE, WATCH):
                await prefect.pause(deployment, False)
    return met


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m evals.bench", description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which (default all: {', '.join(BENCHES)})")
    names = parser.parse_args(arguments).names
    if unknown := [name for name in names if name not in BENCHES]:
        parser.error(f"no benchmark {', '.join(unknown)}; there are {', '.join(BENCHES)}")
    settings = configuration.load()
    try:
        return 0 if asyncio.run(bench(settings, names or BENCHES, Console())) else 1
    except httpx.ConnectError as error:
        sys.exit(f"bench: nothing answers at {error.request.url}; start the stack: `make up`")


if __name__ == "__main__":
    sys.exit(main())
