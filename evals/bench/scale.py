"""The benchmark of size: what a look of the A/B gate costs over the days of a test.

Events of a month, as an app ships them every few seconds, lie on the disk of this machine. Looks at tests that began so many days
ago each run in a process of their own: the first, one 20 seconds later with a new segment, and the first of the next hour. No
network is measured: the requests to the store are counted instead.
"""

import resource
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import numpy as np
import polars as pl

from evals.bench.figures import Bench, Figure, Size, figure
from evals.bench.join import FolderStore, made_completions, made_feedback, put
from evals.bench.rigs.servers import in_new_process
from infra.assignment import assigned_arm
from infra.records import ExperimentRecord
from infra.registry.client import Aliases
from infra.settings import Settings
from infra.settings.schema import Collect, Experiment
from infra.storage.store import ObjectStore
from tasks.experiments.controller.look import ObservedTest, look
from tasks.experiments.planning.plan import make_plan

DAYS = Size(full=(2, 4, 8, 16, 32), quick=(1, 2, 4))
REQUESTS = Size(full=5_000, quick=1_200)
"""Requests a day."""
OBJECTS = Size(full=6_250, quick=480)
"""Objects a day, of both kinds: 200,000 in 32 days."""
USERS = 60
DAY, HOUR = 86_400.0, 3_600.0
END = 1_800_000_000.0 - 1_800_000_000.0 % DAY + 14.5 * HOUR
"""Time of the first look, in the middle of an hour."""
LATER_LOOKS = 3
"""Looks 20 seconds later, of which the one with the median CPU counts."""
PAGE = 1_000
"""Keys that a listing of S3 returns at most."""
TARGET_GETS, TARGET_SECONDS, TARGET_GROWTH = 500.0, 2.0, 1.1


class CountingStore(FolderStore):
    """A bucket on this machine's disk that counts the requests which S3 would get."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.sent = Counter(gets=0, lists=0, bytes=0)  # also of copies

    def get(self, key: str) -> bytes:
        body = super().get(key)
        self.sent["gets"] += 1
        self.sent["bytes"] += len(body)
        return body

    def keys(self, prefix: str) -> Iterator[str]:
        found = list(super().keys(prefix))
        self.sent["lists"] += max(1, -(-len(found) // PAGE))
        yield from found


def make(store: ObjectStore, experiment: ExperimentRecord, span: tuple[float, float], requests: int, objects: int) -> None:
    """Write the events of a span of time: `requests` a day in `objects` objects a day."""
    seconds = 2 * DAY / objects
    begin, end = span
    while begin < end:
        until = min(begin + HOUR, end)
        draw = np.random.default_rng(round(begin))
        times = np.sort(begin + draw.random(max(round(requests * (until - begin) / DAY), 1)) * (until - begin))
        served = made_completions(draw, f"{begin:.0f}", times)
        served = served.with_columns(user=pl.format("u{}", pl.Series(draw.integers(0, USERS, len(times)))))
        arms = [assigned_arm(experiment, user, at) for user, at in served.select("user", "time").iter_rows()]
        served = served.with_columns(
            pl.Series("arm", arms),
            pl.Series("assigned_arm", arms),
            pl.lit(experiment.id).alias("experiment"),
            pl.lit(experiment.id).alias("assigned"),
            pl.Series("ttft_ms", draw.gamma(4, 10, len(times))),
            pl.Series("total_ms", draw.gamma(4, 60, len(times))),
            pl.Series("policy_version", ["1" if arm == "champion" else "2" for arm in arms]),
        )
        for kind, rows in (("completions", served), ("feedback", made_feedback(draw, served))):
            ship(store, kind, rows.filter(pl.col("time") < end), seconds)
        begin = until


def ship(store: ObjectStore, kind: str, rows: pl.DataFrame, seconds: float) -> None:
    """Write rows as an app does that closes a segment after so many seconds."""
    for (slot,), part in rows.with_columns(slot=pl.col("time") // seconds).partition_by("slot", as_dict=True).items():
        opened = datetime.fromtimestamp(float(slot) * seconds, UTC)  # type: ignore[arg-type]  # the column holds floats
        name = f"date={opened:%Y-%m-%d}/hour={opened:%H}/{opened:%Y%m%dT%H%M%S.%f}-{part['id'][0]}"
        put(store, f"events/{kind}/{name}.parquet", part.drop("slot"))


def experiment_of(days: float) -> ExperimentRecord:
    """Return a test that began so many days before END, of a size that it does not reach."""
    settings = Experiment(
        **{"design": "by_user", "planned_requests": round(REQUESTS.full * days) + 1_000, "max_seconds": 365 * DAY},
        **{"min_history_requests": 0, "shadow_requests": 0, "ramp": ()},
    )
    # Whether the made labels differ between the arms is no matter here, and no number of requests is enough for a verdict.
    unchecked = {"max_label_gap": 1.0, "max_request_gap": 9.0, "breach_alpha": 0.0, "min_requests": 10**8}
    plan = make_plan(settings, Collect()).model_copy(update=unchecked)
    return ExperimentRecord(id="bench", champion="1", challenger="2", share=0.5, started=END - days * DAY, plan=plan)


def measure(folder: Path, days: float, now: float) -> dict[str, float]:
    """Return what a look at a test of so many days costs: requests to the store, CPU seconds, and megabytes of memory."""
    store, experiment = CountingStore(folder), experiment_of(days)
    assert experiment.plan
    before, cpu = used_memory(), time.process_time()
    found = look(ObservedTest(store, experiment, experiment.plan, now, 6.0), Aliases("1", "2", experiment, None))
    cpu = time.process_time() - cpu
    assert found.verdict.verdict == "undecided", found.verdict.reason
    return {
        **store.sent,
        **{"cpu": cpu, "memory": used_memory() - before, "requests": sum(found.verdict.requests.values())},
    }


def used_memory() -> float:
    """Return the highest memory of this process, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def run(settings: Settings, bench: Bench) -> Iterator[Figure]:
    """Make events, and look at tests of more and more days."""
    sizes = DAYS.of(bench.quick)
    requests, objects = REQUESTS.of(bench.quick), OBJECTS.of(bench.quick)
    with (
        tempfile.TemporaryDirectory(prefix="tabloop-bench-") as folder,
        bench.part("looks", 1 + 3 * len(sizes), share=1.0) as part,
    ):
        root = Path(folder)
        for days, since in zip(sizes, (0.0, *sizes), strict=False):
            make(CountingStore(root), experiment_of(days), (END - days * DAY, END - since * DAY), requests, objects)
        part.advance()
        later = {}
        for days in sizes:
            shutil.rmtree(root / "counted", ignore_errors=True)
            later[days] = found = measured(root, days, requests, objects, part.advance)
            yield from of_test(days, found)
    for name in ("gets", "cpu", "bytes"):
        growth = [twice["later"][name] / max(once["later"][name], 1e-9) for once, twice in pairwise(later.values())]
        most = TARGET_GROWTH if name != "bytes" else None
        yield figure(f"scale.growth_{name}", float(np.exp(np.mean(np.log(growth)))), "times for twice the days", most=most)
        yield figure(f"scale.growth_{name}_last", growth[-1], "times from the last but one to the last size")


def measured(root: Path, days: float, requests: int, objects: int, advance: Callable[[], None]) -> dict[str, dict[str, float]]:
    """Return the costs of the first look at a test, of a later one, and of the first in the next hour."""
    store, found, last = CountingStore(root), {}, END
    written: list[str] = []
    for name, now in (("first", END), ("later", END + 20), ("hour", END + HOUR)):
        if now > last:
            before = set(store.keys("events/"))
            make(store, experiment_of(days), (last, now), requests, objects)
            written += set(store.keys("events/")) - before
        looks = [in_new_process(measure, root, days, now) for _ in range(LATER_LOOKS if name == "later" else 1)]
        found[name], last = sorted(looks, key=lambda costs: costs["cpu"])[len(looks) // 2], now
        advance()
    for key in written:
        store.delete(key)
    return found


def of_test(days: float, found: dict[str, dict[str, float]]) -> Iterator[Figure]:
    """Yield the figures of the looks at a test; those after the first have targets."""
    for look_name, costs in found.items():
        for name, value, unit in _units(costs):
            most = {"gets": TARGET_GETS, "cpu": TARGET_SECONDS}.get(name) if look_name == "later" else None
            yield figure(f"scale.{look_name}_{name}_{days}_days", value, unit, most=most)


def _units(costs: dict[str, float]) -> Iterator[tuple[str, float, str]]:
    units = {"gets": "GETs", "lists": "LISTs", "bytes": "MB", "cpu": "s of CPU", "memory": "MB more", "requests": ""}
    for name, unit in units.items():
        if name in costs:
            yield name, costs[name] / (1e6 if name == "bytes" else 1), unit
