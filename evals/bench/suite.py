"""The benchmarks of `tabloop bench [--quick] [NAME...]`, which suite.toml lists.

Those on the stack need `tabloop up --settings demo` without a running A/B test, and pause the schedules meanwhile. Each figure is
printed at once. One that fails is named, and the others run.
"""

import asyncio
import os
import signal
import time
import tomllib
import traceback
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from evals.bench import figures
from evals.bench.figures import Bench, Figure, Size, in_thread
from evals.bench.fleet.parts import lacking as fleet_lacks
from evals.bench.loop import end_test
from evals.demo.loop import CYCLE, WATCH
from evals.demo.orchestration import Orchestration
from evals.progress import Progress, duration
from infra.registry.client import Registry
from infra.settings import Settings
from infra.stack.files import PRIVATE


@dataclass(frozen=True)
class Entry:
    """A benchmark of suite.toml, which describes the fields."""

    minutes: Size[float]
    module: str
    stack: bool = False
    demand: bool = False


ROWS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
KNOWN = {name: Entry(**row | {"minutes": Size(*row["minutes"])}) for name, row in ROWS.items()}


@dataclass(frozen=True)
class Ended:
    """A benchmark that ended."""

    name: str
    figures: Sequence[Figure]
    seconds: float
    failure: str = ""  # why it did not come to its end; empty if it did

    @property
    def missed(self) -> list[str]:
        """The figures whose target is missed."""
        return [one.name for one in self.figures if not one.met]


async def run_benches(settings: Settings, names: Sequence[str], quick: bool, progress: Progress) -> list[Ended]:
    """Run benchmarks one after another, those on the stack first."""
    benches = [Bench(name, quick, progress, KNOWN[name].minutes.of(quick)) for name in names]
    on_stack, others = ([one for one in benches if KNOWN[one.name].stack is stack] for stack in (True, False))
    ended = await run_on_stack(settings, on_stack, progress) if on_stack else []
    return ended + [await run_bench(settings, bench) for bench in others]


async def run_bench(settings: Settings, bench: Bench) -> Ended:
    """Run one benchmark, report its figures and write them; one that fails reports its error and writes none.

    Figures of a generator are computed in a thread, those of an asynchronous one in the event loop.
    """
    began, found = time.monotonic(), list[Figure]()
    try:
        running = import_module(KNOWN[bench.name].module).run(settings, bench)  # one by one, since some import torch
        with bench.progress.part(bench.name, work=bench.minutes):
            async with aclosing(in_thread(running) if isinstance(running, Iterator) else running) as yielded:
                async for one in yielded:
                    found += figures.reported([one], bench.progress, quick=bench.quick)
    except Exception as error:  # of any benchmark: it is reported, and the others run
        bench.progress.say(f"{bench.name} failed\n{traceback.format_exc()}")
        return Ended(bench.name, found, time.monotonic() - began, f"{type(error).__name__}: {error}")
    figures.write(bench.name, found, bench.progress, quick=bench.quick, folder=bench.folder)
    return Ended(bench.name, found, time.monotonic() - began)


async def run_on_stack(settings: Settings, benches: Sequence[Bench], progress: Progress) -> list[Ended]:
    """Run benchmarks while the rest of the loop is idle. Raises RuntimeError where an A/B test is running."""
    ended = []
    async with Orchestration(settings.orchestration) as prefect:
        for deployment in (CYCLE, WATCH):
            await prefect.pause(deployment, True)
        try:
            await _until_idle(prefect, progress)
            registry = Registry.connect(settings.registry)
            if experiment := registry.aliases().experiment:
                raise RuntimeError(f"A/B test {experiment.id} is running and would be disturbed; start again after its verdict")
            for bench in benches:
                await _until_idle(prefect, progress)  # a benchmark that failed may have left a run
                ended.append(await run_bench(settings, bench))
                end_test(registry)
        finally:
            for deployment in (CYCLE, WATCH):
                await prefect.pause(deployment, False)
    return ended


async def _until_idle(prefect: Orchestration, progress: Progress) -> None:
    """Wait until no flow runs, and report which one is waited for: a cycle that trains may take minutes."""
    waited_for: list[str] = []
    while busy := await prefect.busy_deployments():
        if busy != waited_for:
            progress.say(f"waiting for the end of {', '.join(busy)}; `tabloop status` shows how far it is")
            waited_for = busy
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

    Raises CannotRun where a name is unknown, or `fleet` lacks programs.
    """
    if unknown := [name for name in names if name not in KNOWN]:
        raise CannotRun(f"unknown benchmark {', '.join(unknown)}; choose from {', '.join(KNOWN)}")
    if "fleet" in names and (lacks := fleet_lacks()):
        raise CannotRun(f"fleet needs Debian packages that are not installed: {', '.join(lacks)}")
    return list(names) or [name for name, entry in KNOWN.items() if not entry.demand]


def run(settings: Settings, names: Sequence[str], *, quick: bool) -> bool:
    """Run the named benchmarks and print a summary; return whether all came to their end and met their targets.

    Raises CannotRun as `chosen` does, and RuntimeError where an A/B test is running.
    """
    names, console = chosen(names), Console()
    os.umask(PRIVATE)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # one that is terminated ends its servers, as at Ctrl-C
    with Progress(console, work=sum(KNOWN[name].minutes.of(quick) for name in names)) as progress:
        ended = asyncio.run(run_benches(settings, names, quick, progress))
    console.print(summary(ended, quick))
    return not any(one.missed or one.failure for one in ended)
