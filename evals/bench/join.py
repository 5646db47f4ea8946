"""The data path's benchmark.

Completions with their feedback, as serving ships them, are read, joined by the hour, put in their buckets, validated by Great
Expectations, rewarded and written as a batch, by the code of a cycle: once for so many completions, once on one core, once there
with two Dask workers, once without hindsight, once for twice as many over twice the hours, each in a process of its own. Settled
text and context lines become tokens of as many samples as a production's cycle trains on. Objects lie on the disk of this
machine; no network is measured.
"""

import os
import resource
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from distributed import Client, LocalCluster
from tokenizers import Tokenizer

from evals.bench.figures import Bench, Figure, Size, figure
from evals.bench.rigs.servers import in_new_process
from infra.model.fim import Renderer
from infra.settings import ROOT, Settings
from infra.settings.schema import Collect, Hindsight
from infra.storage.store import AlreadyExists, ObjectStore, sha256
from tasks.labels import apart, samples, users
from tasks.labels.accounting import WindowCounts, classify
from tasks.labels.context_lines import with_context_lines
from tasks.labels.partitions import Partition, plan_window
from tasks.labels.pipeline import groups_of, join_partition, merge_partitions
from tasks.labels.sampled import Sample
from tasks.labels.samples import SettledTokens
from tasks.labels.shares import weight_shares
from tasks.labels.window import Window
from tasks.rewards.reward import reward_samples
from tasks.validation.batch import batch_stats, bounds
from tasks.validation.suite import validate

T = TypeVar("T")
COMPLETIONS = Size(full=1_000_000, quick=20_000)
HOURS = Size(full=24, quick=8)
STEPS = ("plan", "join", "account", "validate", "batch")
BEGIN = 1_800_000_000.0 - 1_800_000_000.0 % 86_400
HOUR = 3600.0
SEGMENT_ROWS = 2_000
SHIPPED_AGAIN = 100  # one segment in so many is shipped again under another key
USERS = 1_000
PROMPT_TOKENS, TOKENS, TEXT = 120, 10, "ab" * 10
TYPED = 6
TRAINED = Size(full=32_768, quick=4_096)
"""Samples of which written text becomes tokens: collect.max_samples of infra/settings/production.toml, and its default."""
PROMPT_SIZES, MAX_TOKENS = (96, 24), 24
"""Tokens of a context line's prompt before and after the cursor, and of a written text."""
LINE_SECONDS, LINES = 15.0, 24
"""Seconds that a user takes for a line, and lines of the file that a request shows before the cursor."""
TARGET_SECONDS_A_MILLION = 90.0
TARGET_MEGABYTES = 4096.0
TARGET_CYCLE_MEGABYTES = 2048.0
"""Of a cycle that trains on TRAINED of the requests, in place of all."""
TARGET_TWICE = 2.2
TARGET_WORKERS = 1.7
TARGET_HINDSIGHT = 1.5


class FolderStore(ObjectStore):
    """A bucket on this machine's disk."""

    def __init__(self, root: Path) -> None:
        self.root, self.bucket = root, "bench"

    def put(self, key: str, body: bytes) -> str:
        path = self.root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)
        return sha256([body])

    def put_new(self, key: str, body: bytes) -> str:
        if self.exists(key):
            raise AlreadyExists(key)
        return self.put(key, body)

    def get(self, key: str) -> bytes:
        try:
            return (self.root / key).read_bytes()
        except FileNotFoundError as error:
            raise KeyError(key) from error

    def exists(self, key: str) -> bool:
        return (self.root / key).exists()

    def delete(self, key: str) -> None:
        (self.root / key).unlink(missing_ok=True)

    def keys(self, prefix: str) -> Iterator[str]:
        yield from sorted(key for key in self._below(prefix.rpartition("/")[0]) if key.startswith(prefix))

    def _below(self, folder: str) -> Iterator[str]:
        if (self.root / folder).is_dir():
            for entry in os.scandir(self.root / folder):
                name = f"{folder}/{entry.name}" if folder else entry.name
                if entry.is_dir():
                    yield from self._below(name)
                else:
                    yield name


def make(store: ObjectStore, per_hour: int, hours: range) -> int:
    """Write events and return the number of requests, including those shipped again."""
    served = 0
    for hour in hours:
        draw = np.random.default_rng(hour)
        for at in range(0, per_hour, SEGMENT_ROWS):
            rows = min(SEGMENT_ROWS, per_hour - at)
            times = np.sort(BEGIN + HOUR * (hour + (at + draw.random(rows) * rows) / per_hour))
            completions = made_completions(draw, f"{hour}-{at}", times)
            feedback = made_feedback(draw, completions)
            folder = time.strftime("date=%Y-%m-%d/hour=%H", time.gmtime(BEGIN + HOUR * hour))
            again = (hour * per_hour + at) // SEGMENT_ROWS % SHIPPED_AGAIN == 0
            for name in [f"{at:08d}", f"{at:08d}-again"][: 1 + again]:
                put(store, f"events/completions/{folder}/{name}-c.parquet", completions)
                put(store, f"events/feedback/{folder}/{name}-f.parquet", feedback)
                served += rows
    return served


def put(store: ObjectStore, key: str, rows: pl.DataFrame) -> None:
    """Write rows as serving writes a segment."""
    sink = pa.BufferOutputStream()
    pq.write_table(rows.to_arrow(compat_level=pl.CompatLevel.oldest()), sink, compression="zstd")
    store.put(key, sink.getvalue().to_pybytes())


def made_completions(draw: np.random.Generator, name: str, times: np.ndarray) -> pl.DataFrame:
    """Return rows of infra.records.Completion; some users send more requests than others."""
    rows = len(times)
    user = np.minimum(draw.exponential(USERS / 4, rows), USERS - 1).astype(int)
    ids = [f"cmpl-{name}-{i}" for i in range(rows)]
    lists = {
        "prompt_token_ids": draw.integers(0, 4096, (rows, PROMPT_TOKENS)),
        "token_ids": draw.integers(0, 4096, (rows, TOKENS)),
        "logprobs": -draw.exponential(0.5, (rows, TOKENS)),
        "token_ends": np.tile(np.arange(1, TOKENS + 1) * 2, (rows, 1)),
    }
    constant = {
        **{"client": "continue", "suffix": "\n    return self.scale\n", "text": TEXT, "finish_reason": "length"},
        **{"policy_version": "1", "arm": "champion", "experiment": "", "temperature": 0.8, "top_p": 1.0, "max_tokens": 24},
        **dict.fromkeys(("opted_out", "redacted", "mixed", "withheld", "pinned", "exploring"), False),
        **{"ttft_ms": 5.0, "total_ms": 5.0},
    }
    return pl.DataFrame(
        {
            "id": ids,
            "time": times,
            "project": [f"p{u % 5}" for u in user],
            "user": [f"u{u:031d}" for u in user],
            "prefix": [written(u, time) for u, time in zip(user, times, strict=True)],
            **{name: pl.Series(values).arr.to_list() for name, values in lists.items()},
        }
    ).with_columns(**{name: pl.lit(value) for name, value in constant.items()})


def written(user: int, time: float) -> str:
    """Return the end of the file that a user has written up to a time, in which a line follows the other."""
    last, typed = divmod(time - BEGIN, LINE_SECONDS)
    lines = [f"    value_{n} = self.items_{user}[{n}] * self.scale\n" for n in range(int(last) - LINES, int(last))]
    return f"{''.join(lines)}    value_{int(last)} = self.items_{user}"[: int(len(lines[-1]) * LINES + 4 + 2 * typed)]


def made_feedback(draw: np.random.Generator, completions: pl.DataFrame) -> pl.DataFrame:
    """Return rows of infra.records.Feedback for eight completions in ten.

    Of these, one in five is accepted, one accept in ten follows a rejection, and one in ten has a later event. One in five was
    typed into, one in twenty is named by its id, one in fifty is from the editor's cache, one in a hundred matches no completion.
    """
    chance = {name: draw.random(completions.height) for name in ("judged", "accepted", "late", "kept", "typed", "named", "odd")}
    chosen = completions.select("id", "time", "project", "user", "client", "prefix", "suffix").with_columns(**chance)
    chosen = chosen.filter(pl.col("judged") < 0.8)
    typed, odd = pl.col("typed") < 0.2, pl.col("odd")
    accepted, late = pl.col("accepted") < 0.2, pl.col("late") < 0.1
    shown = chosen.with_columns(
        client_id=pl.lit("k-") + pl.col("id"),
        completion_id=pl.when(pl.col("named") < 0.05).then("id").otherwise(pl.lit("")),
        prefix=pl.col("prefix") + pl.when(typed).then(pl.lit(TEXT[:TYPED])).otherwise(pl.lit("")),
        shown=pl.when(odd > 0.99).then(pl.lit("made up")).when(typed).then(pl.lit(TEXT[TYPED:])).otherwise(pl.lit(TEXT[:-4])),
        cache_hit=odd < 0.02,
    )
    kinds = [
        ("accepted", accepted, 2.0),
        ("rejected", ~accepted, 10.0),
        ("rejected", accepted & late, 1.0),
        ("retained", accepted & (pl.col("kept") < 0.1), 60.0),
    ]
    events = pl.concat(
        shown.filter(which).with_columns(
            outcome=pl.lit(outcome), time=pl.col("time") + wait, retained=pl.lit(TEXT if outcome == "retained" else "")
        )
        for outcome, which, wait in kinds
    ).drop(*chance)
    return events.with_columns(
        id=pl.lit("f-") + pl.col("id") + pl.lit("-") + pl.int_range(pl.len()).cast(pl.String),
        made_at=pl.lit(None, pl.Float64),
        accepted_characters=pl.lit(None, pl.Int64),
        elapsed_ms=pl.lit(800.0),
    )


@dataclass(frozen=True)
class Reading:
    """How a window is read."""

    hindsight: bool = True
    trained: int = 0  # samples of which written text becomes tokens; 0: this is not measured
    chosen: int | None = None  # samples of the batch; None: all that there are
    most: int | None = None  # requests from which on a sample of the users is read (collect.most_requests); None: all are read
    scheduler: str = ""  # address of a Dask scheduler whose workers read the partitions; empty: this process and those beside it
    cores: Set[int] = frozenset()  # on which this process runs; empty: all


def measure(folder: Path, hours: int, served: int, how: Reading) -> dict[str, float]:
    """Return the seconds of each step over the events of `make`, their total, and the memory."""
    if how.cores:
        os.sched_setaffinity(0, how.cores)
    sizes = {"max_samples": how.chosen or served, "min_samples": 1, "max_new_users": USERS, "most_requests": how.most or served}
    collect = Collect(**sizes, hindsight=Hindsight(on=how.hindsight))
    seconds: dict[str, float] = {}
    last, cpu = time.monotonic(), _cpu()

    def done(name: str) -> None:
        nonlocal last
        seconds[name], last = time.monotonic() - last, time.monotonic()

    store = FolderStore(folder)
    settings = Settings(collect=collect)
    now = BEGIN + HOUR * hours + settings.collect.join_seconds
    window = Window(since=BEGIN - 1, until=now, oldest=BEGIN - HOUR, known={})
    sample = Sample(collect.most_requests)
    plan = plan_window(store, window, now, collect.join_seconds, hindsight=collect.hindsight, sample=sample)
    done("plan")
    read_all = partial(read_with, how.scheduler, partial(FolderStore, folder), plan.partitions)
    joined_parts = list(read_all(partial(join_partition, groups=groups_of(plan.partitions)), plan.partitions))
    done("join")
    orphans = sum(part.orphans for part in joined_parts)
    labelled, duplicates = merge_partitions(joined_parts)
    register = users.admit(labelled.select("user", "credential", "time"), users.NOBODY, settings.collect.max_new_users)
    labelled = users.with_admission(labelled, register)
    counts = WindowCounts(plan.requests, duplicates, unsampled=plan.unsampled, share=plan.share)
    accounting = classify(labelled, {"1": 0}, plan.partitions[-1].end, settings.collect, counts)
    del labelled  # a cycle keeps only the accounting
    assert sum(accounting.buckets.values()) == accounting.requests == served, (accounting.buckets, served)
    done("account")
    batch = accounting.samples
    validate(batch, batch_stats(accounting, 0.0), bounds(batch, [], settings.collect)).check(max_quarantined=0.0)
    done("validate")
    batch = with_context_lines(store, plan.partitions, batch, read_all=read_all)
    few = batch.head(how.trained)
    served_tokens = samples.read_tokens(store, plan.partitions, batch, read_all=read_all)
    batch = samples.with_settled_tokens(batch, None, served_tokens)
    batch = reward_samples(batch, settings.reward, weight_shares(settings.collect)).samples
    store.put("cycles/bench/samples.parquet", samples.parquet(samples.tables(served_tokens, batch)))
    del served_tokens
    done("batch")
    figures = {
        **{"cpu": _cpu() - cpu, "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024},
        **{"partitions": len(plan.partitions), "samples": batch.height, "settled": batch["settled"].count()},
        **{"share": plan.share, "read": plan.requests - plan.unsampled},
        **{"orphans": orphans, "duplicates": duplicates, "total": sum(seconds.values())},
    }
    if how.trained:
        written = settled_tokens(settings.collect)
        tokens = samples.read_tokens(store, plan.partitions, few, written, read_all)
        few = samples.with_settled_tokens(few, written, tokens)
        few = reward_samples(few, settings.reward, weight_shares(settings.collect)).samples
        body = samples.parquet(samples.tables(tokens, few))
        done("tokens")
        figures |= {"trained": few["id"].n_unique(), "rows": pq.read_metadata(pa.BufferReader(body)).num_rows}
    return seconds | figures


def read_with(
    scheduler: str, connect: Callable[[], ObjectStore], window: Sequence[Partition], work: Callable[..., T], parts: Sequence[Any]
) -> list[T]:
    """Read parts of a window as a cycle does (apart.ReadAll): by the workers of a scheduler, or beside this process."""
    there = partial(apart.with_store, connect, work)
    if scheduler:
        with Client(scheduler, set_as_default=False) as client:
            return cast(list[T], client.gather(client.map(there, parts, pure=False)))
    with apart.executor(window) as executor:
        return list(executor.map(there, parts))


@contextmanager
def two_workers() -> Iterator[str]:
    """Run a Dask scheduler and two workers, each on a core of its own; yield the scheduler's address."""
    options = {"n_workers": 2, "threads_per_worker": 1, "host": "127.0.0.1", "dashboard_address": None}
    with LocalCluster(**options) as cluster, Client(cluster, set_as_default=False) as client:
        for core, worker in enumerate(client.scheduler_info()["workers"]):
            client.run(os.sched_setaffinity, 0, {core}, workers=[worker])
        yield cluster.scheduler_address


def _cpu() -> float:
    """Return the seconds of CPU of this process and of those that it started."""
    return time.process_time() + sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])


def settled_tokens(collect: Collect) -> SettledTokens:
    """Return what turns written text into tokens of the base, with prompts of the local stack's size."""
    tokenizer = Tokenizer.from_file(str(ROOT / "infra" / "base_model" / "tokenizer.json"))
    return SettledTokens(Renderer(tokenizer, "spm", *PROMPT_SIZES), MAX_TOKENS, collect.hindsight.lines)


def run(settings: Settings, bench: Bench) -> Iterator[Figure]:
    """Make completions, join them with and without hindsight, then twice as many.

    Each time in a process of its own, whose memory is measured.
    """
    completions, trained, hours = COMPLETIONS.of(bench.quick), TRAINED.of(bench.quick), HOURS.of(bench.quick)
    per_hour = completions // hours
    with tempfile.TemporaryDirectory(prefix="tabloop-bench-") as folder, bench.part("steps", 9, share=1.0) as part:
        store = FolderStore(Path(folder))

        def joined(end: int, how: Reading) -> dict[str, float]:
            found = in_new_process(measure, Path(folder), end, served, how)
            part.advance()
            return found

        served = make(store, per_hour, range(hours))
        part.advance()
        once = joined(hours, Reading(trained=trained))
        yield from of_one_run(once, completions, per_hour * hours)
        cycle = joined(hours, Reading(chosen=trained))
        yield figure("join.cycle_total", cycle["total"], f"s for a batch of {trained}", most=_most_seconds(completions))
        yield figure("join.cycle_cpu", cycle["cpu"], "s")
        yield figure("join.cycle_memory", cycle["memory"], "MB", most=TARGET_CYCLE_MEGABYTES)
        core = joined(hours, Reading(chosen=trained, cores={0}))
        with two_workers() as scheduler:
            workers = joined(hours, Reading(chosen=trained, scheduler=scheduler, cores={0}))
        yield from (figure(f"join.core_{step}", core[step], "s on one core") for step in STEPS)
        yield from (figure(f"join.workers_{step}", workers[step], "s by two Dask workers of a core each") for step in STEPS)
        least = TARGET_WORKERS if completions >= COMPLETIONS.full else None
        yield figure("join.workers", core["total"] / workers["total"], "times as fast as on one core", least=least)
        without = joined(hours, Reading(hindsight=False))
        yield figure("join.without_hindsight", without["total"], "s")
        yield figure("join.hindsight", once["total"] / without["total"], "times the time without", most=TARGET_HINDSIGHT)
        yield figure("join.hindsight_cpu", once["cpu"] / without["cpu"], "times the CPU without")
        served += make(store, per_hour, range(hours, 2 * hours))
        part.advance()
        twice = joined(2 * hours, Reading())
    yield figure("join.twice", twice["total"] / once["total"], "times the time", most=TARGET_TWICE)
    yield figure("join.twice_cpu", twice["cpu"] / once["cpu"], "times the CPU", most=TARGET_TWICE)
    yield figure("join.twice_memory", twice["memory"], "MB", most=TARGET_MEGABYTES)
    yield figure("join.twice_partitions", twice["partitions"], "")


def of_one_run(once: Mapping[str, float], completions: int, made: int) -> Iterator[Figure]:
    """Yield the figures of the run with all steps."""
    yield from (figure(f"join.{step}", once[step], "s") for step in STEPS)
    yield figure("join.tokens", once["tokens"], f"s for {int(once['trained'])} samples")
    yield figure("join.total", once["total"], "s", most=_most_seconds(completions))
    yield figure("join.cpu", once["cpu"], "s")
    yield figure("join.settled", once["settled"] / once["samples"], "of the samples")
    yield figure("join.memory", once["memory"], "MB", most=TARGET_MEGABYTES)
    yield figure("join.completions", made, "")
    yield from (figure(f"join.{name}", once[name], "") for name in ("partitions", "samples", "rows", "orphans", "duplicates"))


def _most_seconds(completions: int) -> float | None:
    # Of fewer completions the time of the validation, which hardly depends on them, is too large a part.
    return TARGET_SECONDS_A_MILLION * completions / 1_000_000 if completions >= COMPLETIONS.full else None
