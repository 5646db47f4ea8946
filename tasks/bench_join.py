"""The data path's benchmark: python -m tasks.bench_join

Completions with their feedback, as serving ships them, are read, joined, put in their buckets, validated by Great Expectations,
rewarded and written as a batch, by the code of a cycle. Objects lie on the disk of this machine; no network is measured. The
figures are written to var/bench/join.json.
"""

import argparse
import resource
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console

from evals.bench.figures import figure, write
from infra.settings import Settings
from infra.settings.schema import Collect
from infra.store import ObjectStore, sha256, to_parquet
from tasks.batch import batch, bounds
from tasks.buckets import account
from tasks.join import join
from tasks.lineage import Lineage
from tasks.reward import rewarded
from tasks.validate import validate
from tasks.weights import capped
from tasks.window import Window, read_completions, read_feedback

BEGIN = 1_800_000_000.0 - 1_800_000_000.0 % 86_400
HOUR = 3600.0
SEGMENT_ROWS = 2_000
USERS = 1_000
PROMPT_TOKENS, TOKENS = 120, 10
TARGET_SECONDS_A_MILLION = 90.0
TARGET_MEGABYTES = 4096.0


class FolderStore(ObjectStore):
    """A bucket on this machine's disk."""

    def __init__(self, root: Path) -> None:
        self.root, self.bucket = root, "bench"

    def put(self, key: str, body: bytes) -> str:
        path = self.root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)
        return sha256([body])

    def get(self, key: str) -> bytes:
        return (self.root / key).read_bytes()

    def exists(self, key: str) -> bool:
        return (self.root / key).exists()

    def keys(self, prefix: str) -> Iterator[str]:
        folder = self.root / prefix
        yield from sorted(str(p.relative_to(self.root)) for p in folder.rglob("*") if p.is_file())


def make(store: ObjectStore, completions: int, hours: int, seed: int = 0) -> None:
    """Write events: eight completions in ten are judged, one judged one in five is accepted, some accepts come late."""
    draw = np.random.default_rng(seed)
    per_hour = completions // hours
    code = ("def value(self, index: int) -> float:\n    return self.items[index] * self.scale\n\n" * 8).splitlines(keepends=True)
    for hour in range(hours):
        for at in range(0, per_hour, SEGMENT_ROWS):
            rows = min(SEGMENT_ROWS, per_hour - at)
            ids = [f"cmpl-{hour}-{at + i}" for i in range(rows)]
            times = np.sort(BEGIN + HOUR * (hour + (at + draw.random(rows) * rows) / per_hour))
            user = draw.integers(0, USERS, rows)
            prefix = [f"{''.join(code[: 4 + i % 8])}# {name}\n" for i, name in enumerate(ids)]
            folder = f"date={time.strftime('%Y-%m-%d', time.gmtime(times[0]))}/hour={time.strftime('%H', time.gmtime(times[0]))}"
            name = f"{at:08d}"
            put(store, f"events/completions/{folder}/{name}-c.parquet", completion_table(draw, ids, times, user, prefix))
            put(store, f"events/feedback/{folder}/{name}-f.parquet", feedback_table(draw, ids, times, user, prefix))


def put(store: ObjectStore, key: str, table: pa.Table) -> None:
    """Write a table as serving writes a segment."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    store.put(key, sink.getvalue().to_pybytes())


def completion_table(
    draw: np.random.Generator, ids: list[str], times: np.ndarray, user: np.ndarray, prefix: list[str]
) -> pa.Table:
    """Rows of infra.records.Completion."""
    rows = len(ids)

    def lists(values: np.ndarray, length: int) -> pa.Array:
        return pa.ListArray.from_arrays(
            pa.array(np.arange(0, rows * length + 1, length, dtype=np.int32)), pa.array(values.ravel())
        )

    return pa.table(
        {
            "id": ids,
            "time": times,
            "project": [f"p{u % 5}" for u in user],
            "user": [f"u{u:031d}" for u in user],
            "client": ["continue"] * rows,
            "opted_out": [False] * rows,
            "redacted": [False] * rows,
            "prefix": prefix,
            "suffix": ["\n"] * rows,
            "prompt_token_ids": lists(draw.integers(0, 4096, (rows, PROMPT_TOKENS)), PROMPT_TOKENS),
            "token_ids": lists(draw.integers(0, 4096, (rows, TOKENS)), TOKENS),
            "logprobs": lists(-draw.exponential(0.5, (rows, TOKENS)), TOKENS),
            "token_ends": lists(np.tile(np.arange(1, TOKENS + 1) * 2, (rows, 1)), TOKENS),
            "text": ["ab" * TOKENS] * rows,
            "finish_reason": ["length"] * rows,
            "policy_version": ["1"] * rows,
            "mixed": [False] * rows,
            "withheld": [False] * rows,
            "pinned": [False] * rows,
            "arm": ["champion"] * rows,
            "experiment": [""] * rows,
            "temperature": [0.8] * rows,
            "top_p": [1.0] * rows,
            "max_tokens": [24] * rows,
            "ttft_ms": [5.0] * rows,
            "total_ms": [9.0] * rows,
        }
    )


def feedback_table(draw: np.random.Generator, ids: list[str], times: np.ndarray, user: np.ndarray, prefix: list[str]) -> pa.Table:
    """Rows of infra.records.Feedback: a reject after ten seconds, or an accept, which one time in ten comes after a reject."""
    chosen = np.flatnonzero(draw.random(len(ids)) < 0.8)
    accepted = draw.random(len(chosen)) < 0.2
    late = accepted & (draw.random(len(chosen)) < 0.1)
    events = [(i, "accepted" if a else "rejected", 2.0 if a else 10.0) for i, a in zip(chosen, accepted, strict=True)]
    events += [(i, "rejected", 1.0) for i in chosen[late]]
    rows = len(events)
    at = [i for i, _, _ in events]
    return pa.table(
        {
            "id": [f"f-{ids[i]}-{n}" for n, i in enumerate(at)],
            "time": [float(times[i]) + wait for i, _, wait in events],
            "made_at": pa.nulls(rows, pa.float64()),
            "project": [f"p{user[i] % 5}" for i in at],
            "user": [f"u{user[i]:031d}" for i in at],
            "client": ["continue"] * rows,
            "client_id": [f"k-{ids[i]}" for i in at],
            "completion_id": [""] * rows,
            "outcome": [outcome for _, outcome, _ in events],
            "prefix": [prefix[i] for i in at],
            "suffix": ["\n"] * rows,
            "shown": ["ab" * (TOKENS - 2)] * rows,
            "accepted_characters": pa.nulls(rows, pa.int64()),
            "elapsed_ms": [800.0] * rows,
            "cache_hit": [False] * rows,
        }
    )


def measured(store: ObjectStore, completions: int, hours: int, settings: Settings) -> dict[str, float]:
    """Seconds of each step over what `make` wrote."""
    seconds: dict[str, float] = {}
    last = time.monotonic()

    def done(name: str) -> None:
        nonlocal last
        seconds[name], last = time.monotonic() - last, time.monotonic()

    now = BEGIN + HOUR * hours + settings.collect.join_seconds
    found = Window(since=BEGIN - 1, until=now, oldest=BEGIN - HOUR, known={})
    served = read_completions(store, found, now)
    told = read_feedback(store, found, found.since, now)
    done("read")
    joined = join([c for _, c in served.rows], [f for _, f in told.rows], settings.collect.join_seconds)
    done("join")
    accounts = account(
        joined,
        parent="1",
        lineage=Lineage({"1": ""}, {}),
        until=found.until,
        settings=settings.collect,
        malformed=served.malformed,
    )
    assert sum(accounts.buckets.values()) == accounts.requests == completions, accounts.buckets
    done("account")
    samples = accounts.samples
    validate(samples, batch(accounts, 0.0), bounds(samples, [], settings.collect)).check(0.0)
    done("validate")
    body = to_parquet(capped(rewarded(samples, settings.reward), settings.collect.max_user_weight))
    store.put("cycles/bench/samples.parquet", body)
    done("batch")
    seconds["samples"] = float(len(samples))
    return seconds


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and write. Exit code 1 where a target is missed."""
    parser = argparse.ArgumentParser(prog="python -m tasks.bench_join", description=__doc__.split("\n")[0])
    parser.add_argument(
        "--completions", type=int, default=100_000, help="completions (default %(default)s; a million takes 21 GB)"
    )
    parser.add_argument("--hours", type=int, default=24, help="hours that they are spread over (default %(default)s)")
    options = parser.parse_args(arguments)
    count = options.completions // options.hours * options.hours
    settings = Settings(collect=Collect(max_samples=count, min_samples=1))
    with tempfile.TemporaryDirectory(prefix="tabloop-bench-") as folder:
        store = FolderStore(Path(folder))
        make(store, count, options.hours)
        cpu = time.process_time()
        seconds = measured(store, count, options.hours, settings)
        cpu = time.process_time() - cpu
    samples = seconds.pop("samples")
    found = [
        *(figure(f"join.{name}", value, "s") for name, value in seconds.items()),
        figure("join.total", sum(seconds.values()), "s", most=TARGET_SECONDS_A_MILLION * count / 1_000_000),
        figure("join.cpu", cpu, "s"),
        figure("join.memory", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, "MB", most=TARGET_MEGABYTES),
        figure("join.completions", count, ""),
        figure("join.samples", samples, ""),
    ]
    return 0 if write("join", found, Console()) else 1


if __name__ == "__main__":
    sys.exit(main())
