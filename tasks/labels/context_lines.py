"""Context lines: code of the team that a request's prefix shows, as further positions to train on.

A request teaches one line, its settled text. The lines above the cursor are written already, and few of them were ever
requested. Some become positions of their own: the cursor in a line, and the rest of the line as its settled text. A line that an
earlier sample of the batch has is not taken again, nor is one that a paste or an agent wrote since the window began
(appeared.py). Pure, but for the reading of the requests; the same for any partitions.

`offers` reads the requests of a group of users, and groups may be read apart. `with_context_lines` picks from the offers of all.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence, Set
from functools import partial
from itertools import pairwise
from typing import Any

import polars as pl
import pyarrow as pa

from infra.model.line_ends import first_line
from infra.storage.store import ObjectStore
from tasks.labels.apart import ReadAll
from tasks.labels.appeared import Histories
from tasks.labels.attribution import latest
from tasks.labels.hindsight import CHARACTERS_A_TOKEN, DIRTY_CHARACTERS
from tasks.labels.normal_lines import normal_completions
from tasks.labels.partitions import AT_ONCE, Partition
from tasks.labels.read import TOKEN_FIELDS, read_completions

LINES = 3
"""Maximum context lines of a sample that are trained on."""
NEAREST = 40
"""Lines above the cursor that are looked at."""
AT_INDENTATION = 0.4
"""Share of the cursors before the first character of their line; the others are anywhere in it."""
FILE = ["project", "user", "file"]
"""Columns by which files, each with a history of its own, differ."""
TEXTS = ["prefix", "suffix"]
READ = ["id", "time", *FILE, *TEXTS, "text", "opted_out", "redacted", "max_tokens"]
"""Columns of the requests that are read."""
TAKEN = 1_000
"""Requests of which the texts are taken at a time."""
GROUPS = AT_ONCE
"""Groups of users. Each group reads every object, so that more of them cost more in all."""


def with_context_lines(
    store: ObjectStore,
    partitions: Sequence[Partition],
    samples: pl.DataFrame,
    most: int = LINES,
    read_all: ReadAll | None = None,
) -> pl.DataFrame:
    """Return samples with the cursors of their context lines in their prefixes, in the column `standing`.

    Args:
        samples: classified requests to train on (tasks/labels/accounting.py).
        most: maximum lines of a sample.
        read_all: reads the requests of GROUPS groups of users; by default all are read here.
    """
    # The lines around a text that settled late were taken by the cycle that trained on its request.
    fresh = samples.filter(~pl.col("settled_late")) if "settled_late" in samples.columns else samples
    if not most or fresh.is_empty():
        return without_context_lines(samples)
    find, groups = partial(offers, partitions=partitions, samples=fresh.select("id", "time", *FILE)), GROUPS if read_all else 1
    every = [(group, groups) for group in range(groups)]
    found = read_all(find, every) if read_all else [find(store, group) for group in every]
    seen: set[int] = set()
    ids, standing = list[str](), list[list[int]]()
    for id, keys, cursors in pl.concat(found).sort("time", "id").select("id", "keys", "cursors").iter_rows():
        ids.append(id)
        standing.append(pick(zip(keys, cursors, strict=True), most, seen))
    chosen = pl.DataFrame([pl.Series("id", ids, pl.String), pl.Series("standing", standing, pl.List(pl.Int64))])
    return samples.join(chosen, on="id", how="left", maintain_order="left")


def without_context_lines(samples: pl.DataFrame) -> pl.DataFrame:
    return samples.with_columns(standing=pl.lit(None, pl.List(pl.Int64)))


def offers(store: ObjectStore, group: tuple[int, int], partitions: Sequence[Partition], samples: pl.DataFrame) -> pl.DataFrame:
    """Return the lines that the prefixes of a group's samples offer: `id`, `time`, and the `keys` and `cursors` of its lines.

    Args:
        group: number of the group of users, and number of all groups. A file's history is its user's, so the groups need nothing
            of each other.
        partitions: of the window, by time.
        samples: `id`, `time` and FILE of all samples.
    """
    number, groups = group
    own = samples.filter(pl.col("user").hash() % groups == number)
    histories, ids, times, lines = Histories(), list[str](), list[float](), list[list[tuple[int, int]]]()
    for partition in partitions if own.height else ():
        for id, time, project, user, file, prefix, suffix, written, wanted in _requests(store, partition, own):
            pasted = histories.pasted((project, user, file), prefix, suffix, written)
            if wanted:
                ids.append(id)
                times.append(time)
                lines.append(offered(prefix, pasted))
    keys, cursors = ([[line[place] for line in each] for each in lines] for place in (0, 1))
    return pl.DataFrame(
        [
            pl.Series("id", ids, pl.String),
            pl.Series("time", times, pl.Float64),
            pl.Series("keys", pa.array(keys, pa.large_list(pa.uint64()))),
            pl.Series("cursors", pa.array(cursors, pa.large_list(pa.uint32()))),
        ]
    )


def offered(prefix: str, pasted: Set[int] = frozenset()) -> list[tuple[int, int]]:
    """Return the key and the cursor of each line of a prefix that may be taken, by key.

    A line is known by itself and its neighbours. Where the cursor lies depends on their text alone. Lines with a hash in
    `pasted`, without the blanks around them, are not offered.
    """
    above, *lines = prefix.rsplit("\n", NEAREST + 2)
    if len(lines) == NEAREST + 2:  # the first of these may be cut, and only stands above the others
        above, *lines = lines
    start, found = len(prefix) - sum(map(len, lines)) - len(lines) + 1, list[tuple[int, int]]()
    for line, below in pairwise(lines):
        if (stripped := line.strip()) and hash(stripped) not in pasted:
            key = _key(f"{above}\n{line}\n{below}")
            found.append((key, start + _column(line, key)))
        above, start = line, start + len(line) + 1
    return sorted(found)


def pick(lines: Iterable[tuple[int, int]], most: int, seen: set[int]) -> list[int]:
    """Return the cursors of lines, by key, that no earlier call with the same `seen` has taken, and add their keys to `seen`."""
    picked: list[int] = []
    for key, cursor in lines:
        if len(picked) < most and key not in seen:
            seen.add(key)
            picked.append(cursor)
    return sorted(picked)


def rest_of_line(prefix: str, cursor: int) -> str:
    """Return the text between a cursor and the end of its line."""
    return first_line(prefix[cursor:])


def places(prefix: str, suffix: str, cursors: Sequence[int]) -> Iterator[tuple[str, str, str]]:
    """Yield for each cursor the text before it, the rest of its line, and the text after that."""
    for cursor in cursors:
        rest = rest_of_line(prefix, cursor)
        yield prefix[:cursor], rest, prefix[cursor + len(rest) :] + suffix


def _key(lines: str) -> int:
    """Return what a line is known by, of it and its neighbours: 64 bits of a hash."""
    return int.from_bytes(hashlib.sha256(lines.encode(errors="replace")).digest()[:8])


def _column(line: str, key: int) -> int:
    """Return the cursor's column, before the last character that is not blank."""
    share, where = ((key >> bits) % 2**16 / 2**16 for bits in (48, 32))
    indentation = len(line) - len(line.lstrip())
    return indentation + (0 if share < AT_INDENTATION else int(where * (len(line.rstrip()) - indentation)))


def _requests(store: ObjectStore, partition: Partition, samples: pl.DataFrame) -> Iterator[tuple[Any, ...]]:
    """Yield the requests of a partition, by time, then id, in the files of the samples, up to the last sample of each.

    Id, time, project, user, file, prefix, suffix, characters that may be written between two requests, and whether it is a
    sample. Requests that opted out or held a secret are left out.
    """
    completions = read_completions(store, partition, partition.owns, TOKEN_FIELDS)[0].select(*READ)
    completions = normal_completions(completions.join(samples, on=["project", "user"], how="semi"))
    # The texts are most of a request's bytes: they are sorted and joined by nothing, and taken a few at a time.
    served = latest(completions.drop(TEXTS).with_row_index("row"))
    ends = samples.group_by(FILE).agg(end=pl.col("time").max())
    of_samples = samples.select("id", "time", wanted=pl.lit(True))
    requests = (
        served.join(ends, on=FILE)
        .filter(~pl.col("opted_out"), ~pl.col("redacted"), pl.col("time") <= pl.col("end"))
        .join(of_samples, on=["id", "time"], how="left")
        .sort("time", "id")
    )
    written = CHARACTERS_A_TOKEN * pl.col("max_tokens") + DIRTY_CHARACTERS
    columns = pl.col("id", "time", *FILE, *TEXTS), written, pl.col("wanted").fill_null(False)
    for some in requests.iter_slices(TAKEN):
        yield from pl.concat([some, completions.select(TEXTS)[some["row"]]], how="horizontal").select(*columns).iter_rows()
