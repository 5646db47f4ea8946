"""The benchmark of a large window: collect, validation and batch of up to ten million requests.

Where a window holds more than `collect.most_requests`, a cycle reads the requests of a sample of its users and counts the others.
Completions with their feedback, as in the bench `join`, lie on the disk of this machine; each window is read in a process of its
own, with the batch of a production's cycle.
"""

import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path

from evals.bench.figures import Bench, Figure, Size, figure
from evals.bench.join import STEPS, TRAINED, FolderStore, Reading, make, measure
from evals.bench.rigs.servers import in_new_process
from infra.settings import Settings
from infra.settings.schema import Collect

HOURS = Size(full=(15, 30, 60, 120), quick=(2, 4))
PER_HOUR = Size(full=83_334, quick=15_000)
"""Requests an hour: ten million in 120 hours."""
MOST = Size(full=Collect().most_requests, quick=20_000)
TARGET_MEGABYTES = 2048.0
TARGET_GROWTH = 2.2
"""Of the time, for twice the requests."""


def run(settings: Settings, bench: Bench) -> Iterator[Figure]:
    """Make the events of more and more hours, and read the window that they are."""
    sizes = HOURS.of(bench.quick)
    per_hour, most, trained = (size.of(bench.quick) for size in (PER_HOUR, MOST, TRAINED))
    found, served = {}, 0
    with (
        tempfile.TemporaryDirectory(prefix="tabloop-bench-") as folder,
        ProcessPoolExecutor(2, mp_context=get_context("spawn")) as makers,
        bench.part("windows", 2 * len(sizes), share=1.0) as part,
    ):
        for hours, since in zip(sizes, (0, *sizes), strict=False):
            served += sum(makers.map(partial(made, Path(folder), per_hour), range(since, hours)))
            part.advance()
            found[hours] = costs = in_new_process(measure, Path(folder), hours, served, Reading(chosen=trained, most=most))
            part.advance()
            yield from of_window(hours * per_hour, costs)
    growth = [twice["total"] / once["total"] for once, twice in pairwise(found.values())]
    yield figure("window.growth", growth[-1], "times the time for twice the requests, at the end", most=TARGET_GROWTH)


def made(folder: Path, per_hour: int, hour: int) -> int:
    """Write the events of an hour; return its requests, with those shipped again."""
    return make(FolderStore(folder), per_hour, range(hour, hour + 1))


def of_window(requests: int, costs: dict[str, float]) -> Iterator[Figure]:
    """Yield the figures of a window."""
    name = f"window.{requests}"
    yield figure(f"{name}.total", costs["total"], "s")
    yield figure(f"{name}.cpu", costs["cpu"], "s")
    yield from (figure(f"{name}.{step}", costs[step], "s") for step in STEPS)
    yield figure(f"{name}.memory", costs["memory"], "MB", most=TARGET_MEGABYTES)
    yield figure(f"{name}.read", costs["read"], f"requests, of a share of {costs['share']:g} of the users")
    yield figure(f"{name}.samples", costs["samples"], "")
