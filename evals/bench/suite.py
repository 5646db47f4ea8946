"""The benchmarks of `tabloop bench [--quick] [NAME...]`.

All but `fleet`, `shape`, `trainer`, `join`, `caps`, `experiments`, `gate`, `showing` and `recipes` need the stack (`tabloop up`)
without a running A/B test, and pause the schedules meanwhile. Each figure is printed at once. One that fails is named, and
the others run.
"""

import asyncio
import os
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from importlib import import_module

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from evals.bench import figures
from evals.bench.figures import Bench, Figure, Size
from evals.bench.fleet.parts import lacking as fleet_lacks
from evals.demo.loop import CYCLE, WATCH
from evals.demo.orchestration import Orchestration
from evals.progress import Progress, duration
from infra.registry.client import CHALLENGER, Registry
from infra.settings import Settings
from infra.stack.files import PRIVATE

MINUTES: Mapping[str, Size[float]] = {
    "loop": Size(2, 1.1),
    "survival": Size(10, 1.2),
    "kills": Size(10, 1.4),
    "serving": Size(20, 1.0),
    "feedback": Size(3, 0.3),
    "hostile": Size(8, 0.7),
    "redaction": Size(3, 0.5),
    "evaluation": Size(4, 0.3),
    "trainer": Size(10, 0.5),
    "join": Size(5, 0.6),
    "caps": Size(5, 0.1),
    "experiments": Size(120, 0.3),
    "gate": Size(15, 1.5),
    "showing": Size(6, 0.5),
    "recipes": Size(300, 0.5),
}
"""Benchmarks in their order, with their rough time on two cores: what the time left is counted by.

Those with cycles come first: the requests of the others would make their cycles larger.
"""
ON_DEMAND: Mapping[str, Size[float]] = {"fleet": Size(6, 4), "shape": Size(8, 3)}
"""Benchmarks that run only if they are named: `fleet` needs programs that no pinned list has, `shape` some 20 GB of memory."""
KNOWN = {**MINUTES, **ON_DEMAND}
WITHOUT_STACK = ("fleet", "shape", "trainer", "join", "caps", "experiments", "gate", "showing", "recipes")
"""Benchmarks that need no stack."""
MODULES: Mapping[str, str] = {
    "survival": "evals.bench.faults.survival",
    "kills": "evals.bench.faults.kills",
    "caps": "evals.bench.experiments.caps",
    "experiments": "evals.bench.experiments.tests",
    "shape": "evals.bench.shape.loop",
    "gate": "evals.studies.gate",
    "showing": "evals.studies.showing.bench",
    "recipes": "evals.studies.recipes.bench",
}
"""Modules of the benchmarks that are not evals.bench.NAME. Each has `run(settings, bench)`, which yields figures."""


def module_of(name: str) -> str:
    """Return the module of a benchmark."""
    return MODULES.get(name, f"evals.bench.{name}")


@dataclass(frozen=True)
class Ended:
    """A benchmark that ended."""

    name: str
    figures: Sequence[Figure]
    seconds: float
    failure: str = ""
    """Why it did not come to its end; empty if it did."""

    @property
    def missed(self) -> list[str]:
        """The figures whose target is missed."""
        return [one.name for one in self.figures if not one.met]


async def run_benches(settings: Settings, names: Sequence[str], quick: bool, progress: Progress) -> list[Ended]:
    """Run benchmarks one after another, those on the stack first."""
    ended = []
    if on_stack := [name for name in names if name not in WITHOUT_STACK]:
        ended += await run_on_stack(settings, on_stack, quick, progress)
    for name in names:
        if name in WITHOUT_STACK:
            ended.append(await run_bench(settings, Bench(name, quick, progress, KNOWN[name].of(quick))))
    return ended


async def run_bench(settings: Settings, bench: Bench) -> Ended:
    """Run one benchmark, report its figures and write them; one that fails reports its error and writes none."""
    began, found = time.monotonic(), list[Figure]()
    try:
        module = import_module(module_of(bench.name))  # one by one, since some import torch
        with bench.progress.part(bench.name, work=bench.minutes):
            async with aclosing(module.run(settings, bench)) as running:
                async for one in running:
                    found += figures.reported([one], bench.progress, quick=bench.quick)
    except Exception as error:  # of any benchmark: it is reported, and the others run
        bench.progress.say(f"{bench.name} failed\n{traceback.format_exc()}")
        return Ended(bench.name, found, time.monotonic() - began, f"{type(error).__name__}: {error}")
    figures.write(bench.name, found, bench.progress, quick=bench.quick, folder=bench.folder)
    return Ended(bench.name, found, time.monotonic() - began)


async def run_on_stack(settings: Settings, names: Sequence[str], quick: bool, progress: Progress) -> list[Ended]:
    """Run benchmarks while the rest of the loop is idle.

    Raises:
        RuntimeError: an A/B test is running.
    """
    ended = []
    async with Orchestration(settings.orchestration) as prefect:
        for deployment in (CYCLE, WATCH):
            await prefect.pause(deployment, True)
        try:
            await _until_idle(prefect)
            registry = Registry.connect(settings.registry)
            if experiment := registry.aliases().experiment:
                raise RuntimeError(f"A/B test {experiment.id} is running and would be disturbed; start again after its verdict")
            for name in names:
                await _until_idle(prefect)  # a benchmark that failed may have left a run
                ended.append(await run_bench(settings, Bench(name, quick, progress, MINUTES[name].of(quick))))
                # A measured cycle opens an A/B test, which would keep the next cycle from beginning.
                registry.set_experiment(None)
                registry.delete_alias(CHALLENGER)
        finally:
            for deployment in (CYCLE, WATCH):
                await prefect.pause(deployment, False)
    return ended


async def _until_idle(prefect: Orchestration) -> None:
    while await prefect.busy_deployments():
        await asyncio.sleep(1.0)


def summary(ended: Sequence[Ended], quick: bool) -> Table:
    """Return what ran, how long it took, which targets are missed and what failed."""
    table = Table("benchmark", "figures", "time", "targets missed", title="Quick run" if quick else None, title_justify="left")
    for one in ended:
        missed = ", ".join(one.missed) or ("" if one.failure else "none")
        failed = f"failed: {escape(one.failure)}" if one.failure else ""
        table.add_row(one.name, str(len(one.figures)), duration(one.seconds), "; ".join(filter(None, (missed, failed))))
    return table


class CannotRun(ValueError):
    """A benchmark is unknown, or lacks what it needs on this machine."""


def chosen(names: Sequence[str]) -> list[str]:
    """Return the benchmarks to run: the given ones, by default all but those on demand.

    Raises:
        CannotRun: a name is unknown, or `fleet` lacks programs.
    """
    if unknown := [name for name in names if name not in KNOWN]:
        raise CannotRun(f"unknown benchmark {', '.join(unknown)}; choose from {', '.join(KNOWN)}")
    if "fleet" in names and (lacks := fleet_lacks()):
        raise CannotRun(f"fleet needs Debian packages that are not installed: {', '.join(lacks)}")
    return list(names) or list(MINUTES)


def run(settings: Settings, names: Sequence[str], *, quick: bool) -> bool:
    """Run the named benchmarks and print a summary; return whether all came to their end and met their targets.

    Raises:
        CannotRun: see `chosen`.
        RuntimeError: an A/B test is running.
    """
    names, console = chosen(names), Console()
    os.umask(PRIVATE)
    with Progress(console, work=sum(KNOWN[name].of(quick) for name in names)) as progress:
        ended = asyncio.run(run_benches(settings, names, quick, progress))
    console.print(summary(ended, quick))
    return not any(one.missed or one.failure for one in ended)
