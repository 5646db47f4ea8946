"""Benchmarks: python -m evals.bench [NAME...]

All but `trainer`, `join`, `caps`, `experiments`, `gate`, `showing` and `recipes` need the stack (`make up`) without a running A/B
test, and pause the schedules meanwhile. Exit code 1 if a target is missed.
"""

import argparse
import asyncio
import os
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
from infra.stack.files import PRIVATE

WITHOUT_STACK = ("trainer", "join", "caps", "experiments", "gate", "showing", "recipes")
"""Benchmarks that need no stack."""
BENCHES = ("serving", "feedback", "hostile", "redaction", "loop", "evaluation", "survival", "kills", *WITHOUT_STACK)
"""Modules of this package, imported one by one since some import torch."""


async def run_benches(settings: Settings, names: Sequence[str], console: Console) -> bool:
    """Run benchmarks one after another, those on the stack first. Return whether all targets are met."""
    met = True
    if on_stack := [name for name in names if name not in WITHOUT_STACK]:
        met = await run_on_stack(settings, on_stack, console)
    for name in names:
        if name in WITHOUT_STACK:
            met &= await run_bench(name, settings, console)
    return met


async def run_bench(name: str, settings: Settings, console: Console) -> bool:
    """Run one benchmark and write its figures. Return whether its targets are met."""
    return figures.write(name, await import_module(f"evals.bench.{name}").run(settings), console)


async def run_on_stack(settings: Settings, names: Sequence[str], console: Console) -> bool:
    """Run benchmarks while the rest of the loop is idle. Return whether all targets are met.

    Raises:
        RuntimeError: an A/B test is running.
    """
    met = True
    async with Orchestration(settings.orchestration) as prefect:
        for deployment in (CYCLE, WATCH):
            await prefect.pause(deployment, True)
        try:
            while await prefect.busy_deployments():
                await asyncio.sleep(1.0)
            registry = Registry.connect(settings.registry)
            if experiment := registry.aliases().experiment:
                raise RuntimeError(f"A/B test {experiment.id} is running and would be disturbed; start again after its verdict")
            for name in names:
                met &= await run_bench(name, settings, console)
                # A measured cycle opens an A/B test, which would keep the next cycle from beginning.
                registry.set_experiment(None)
                registry.delete_alias(CHALLENGER)
        finally:
            for deployment in (CYCLE, WATCH):
                await prefect.pause(deployment, False)
    return met


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the named benchmarks. Return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m evals.bench", description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"benchmarks to run (default all: {', '.join(BENCHES)})")
    names = parser.parse_args(arguments).names
    if unknown := [name for name in names if name not in BENCHES]:
        parser.error(f"unknown benchmark {', '.join(unknown)}; choose from {', '.join(BENCHES)}")
    os.umask(PRIVATE)
    settings = configuration.load()
    try:
        return 0 if asyncio.run(run_benches(settings, names or BENCHES, Console())) else 1
    except httpx.ConnectError as error:
        sys.exit(f"bench: no answer from {error.request.url}; start the stack with `make up`")


if __name__ == "__main__":
    sys.exit(main())
