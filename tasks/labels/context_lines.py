"""Context lines: code of the team that a request's prefix shows, as further positions to train on.

A request teaches one line, its settled text. The lines above the cursor are written already, and few of them were ever
requested. Some become positions of their own: the cursor in a line, and the rest of the line as its settled text. A line that an
earlier sample of the batch has is not taken again, nor is one that a paste or an agent wrote since the window began
(appeared.py). Pure, but for the reading of the requests; the same for any partitions.
"""

import hashlib
from collections.abc import Iterator, Sequence, Set
from itertools import pairwise
from typing import Any

import polars as pl
import pyarrow as pa

from infra.model.line_ends import first_line
from infra.storage.store import ObjectStore
from tasks.labels.appeared import Histories
from tasks.labels.attribution import latest
from tasks.labels.hindsight import CHARACTERS_A_TOKEN, DIRTY_CHARACTERS
from tasks.labels.normal_lines import normal_completions
from tasks.labels.partitions import Partition
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


def with_context_lines(
    store: ObjectStore, partitions: Sequence[Partition], samples: pl.DataFrame, most: int = LINES
) -> pl.DataFrame:
    """Return samples with the cursors of their context lines in their prefixes (`standing`), and the rests (`standing_text`).

    Args:
        samples: classified requests to train on (tasks/labels/accounting.py).
        most: maximum lines of a sample.
    """
    if not most:
        return without_context_lines(samples)
    seen: set[bytes] = set()
    histories = Histories()
    ids, standing, texts = list[str](), list[list[int]](), list[list[str]]()
    # The lines around a text that settled late were taken by the cycle that trained on its request.
    fresh = samples.filter(~pl.col("settled_late")) if "settled_late" in samples.columns else samples
    for partition in partitions if fresh.height else ():
        for id, project, user, file, prefix, suffix, written, wanted in _requests(store, partition, fresh):
            pasted = histories.pasted((project, user, file), prefix, suffix, written)
            if wanted:
                cursors = pick(prefix, most, seen, pasted)
                ids.append(id)
                standing.append(cursors)
                texts.append([rest_of_line(prefix, cursor) for cursor in cursors])
    found = pl.DataFrame(
        [
            pl.Series("id", ids, pl.String),
            pl.Series("standing", pa.array(standing, pa.large_list(pa.int64()))),
            pl.Series("standing_text", pa.array(texts, pa.large_list(pa.large_string()))),
        ]
    )
    return samples.join(found, on="id", how="left", maintain_order="left")


def without_context_lines(samples: pl.DataFrame) -> pl.DataFrame:
    none = pl.lit(None, pl.List(pl.Int64)).alias("standing")
    return samples.with_columns(none, standing_text=pl.lit(None, pl.List(pl.String)))


def pick(prefix: str, most: int, seen: set[bytes], pasted: Set[int] = frozenset()) -> list[int]:
    """Return cursors in lines of a prefix that no earlier call with the same `seen` has taken, and add them to `seen`.

    A line is known by itself and its neighbours. Which lines are taken, and where the cursor lies, depends on their text alone.
    Lines with a hash in `pasted`, without the blanks around them, are not taken.
    """
    above, *lines = prefix.rsplit("\n", NEAREST + 2)
    if len(lines) == NEAREST + 2:  # the first of these may be cut, and only stands above the others
        above, *lines = lines
    start = len(prefix) - sum(map(len, lines)) - len(lines) + 1
    found = []
    for line, below in pairwise(lines):
        if (stripped := line.strip()) and hash(stripped) not in pasted:
            found.append((_key(f"{above}\n{line}\n{below}"), start, line))
        above, start = line, start + len(line) + 1
    picked: list[int] = []
    for key, start, line in sorted(found):
        if len(picked) < most and key not in seen:
            seen.add(key)
            picked.append(start + _column(line, key))
    return sorted(picked)


def rest_of_line(prefix: str, cursor: int) -> str:
    """Return the text between a cursor and the end of its line."""
    return first_line(prefix[cursor:])


def places(prefix: str, suffix: str, cursors: Sequence[int]) -> Iterator[tuple[str, str, str]]:
    """Yield for each cursor the text before it, the rest of its line, and the text after that."""
    for cursor in cursors:
        rest = rest_of_line(prefix, cursor)
        yield prefix[:cursor], rest, prefix[cursor + len(rest) :] + suffix


def _key(lines: str) -> bytes:
    """Return what a line is known by, of it and its neighbours."""
    return hashlib.sha256(lines.encode(errors="replace")).digest()[:12]


def _column(line: str, key: bytes) -> int:
    """Return the cursor's column, before the last character that is not blank."""
    share, where = (int.from_bytes(part) / 2**16 for part in (key[:2], key[2:4]))
    indentation = len(line) - len(line.lstrip())
    return indentation + (0 if share < AT_INDENTATION else int(where * (len(line.rstrip()) - indentation)))


def _requests(store: ObjectStore, partition: Partition, samples: pl.DataFrame) -> Iterator[tuple[Any, ...]]:
    """Yield the requests of a partition, by time, then id, in the files of the samples, up to the last sample of each.

    Id, project, user, file, prefix, suffix, characters that may be written between two requests, and whether it is a sample.
    Requests that opted out or held a secret are left out.
    """
    completions = read_completions(store, partition, partition.owns, TOKEN_FIELDS)[0].select(*READ)
    completions = normal_completions(completions.join(samples, on=["project", "user"], how="semi"))
    # The texts are most of a request's bytes: they are sorted and joined by nothing, and taken a few at a time.
    served = latest(completions.drop(TEXTS).with_row_index("row"))
    ends = samples.group_by(FILE).agg(end=pl.col("time").max())
    wanted = samples.select("id", "time", wanted=pl.lit(True))
    requests = (
        served.join(ends, on=FILE)
        .filter(~pl.col("opted_out"), ~pl.col("redacted"), pl.col("time") <= pl.col("end"))
        .join(wanted, on=["id", "time"], how="left")
        .sort("time", "id")
    )
    written = CHARACTERS_A_TOKEN * pl.col("max_tokens") + DIRTY_CHARACTERS
    columns = pl.col("id", *FILE, *TEXTS), written, pl.col("wanted").fill_null(False)
    for some in requests.iter_slices(TAKEN):
        yield from pl.concat([some, completions.select(TEXTS)[some["row"]]], how="horizontal").select(*columns).iter_rows()
