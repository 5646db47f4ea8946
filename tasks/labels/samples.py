"""The batch to train on: samples with their tokens, which are read from the event objects, one partition at a time.

`read_tokens` reads them, and turns context lines into tokens by the parent's tokenizer; partitions may be read apart. `tables`
joins them to the rewards.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from tempfile import TemporaryFile
from typing import Any, cast

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from infra.model.fim import Renderer
from infra.model.line_ends import normal
from infra.records import Sample
from infra.storage.events.tables import arrow_schema
from infra.storage.store import ObjectStore
from tasks.labels import context_lines
from tasks.labels.apart import ReadAll
from tasks.labels.attribution import unique
from tasks.labels.partitions import Partition, divided
from tasks.labels.read import InputChanged, read_chosen

SCHEMA = arrow_schema(Sample)
ROW_GROUP = 65_536
"""Rows of a Parquet row group."""
NEEDED = ("id", "time", "tokens", "standing")
"""Columns of a classified request that `read_tokens` needs: none holds text, since a Dask scheduler keeps them."""
TOKENS = ("id", "time", "completion_id", "prompt_token_ids", "token_ids", "logprobs", "line_token_ids")
LINES: Mapping[str, Any] = {"id": pl.String, "line_token_ids": pl.List(pl.Int64)}
OF_SERVED = ("shown_characters", "accepted_characters", "reward", "advantage")
"""Fields of the served text, which a context line does not have."""


@dataclass(frozen=True, eq=False)
class SettledTokens:
    """Turns settled text into tokens to train on."""

    renderer: Renderer
    most: int
    """Maximum tokens, the end token included: a completion has no more."""
    lines: int = 0
    """Maximum lines; 0: all."""

    def ids(self, text: str | None, whole: bool | None) -> list[int]:
        """Return the token ids of a settled text, with the end token where it ends; none for an unknown one.

        It ends where it is whole, and after the last line that is taken, if more lines follow.
        """
        if text is None:
            return []
        lines = normal(text).split("\n")
        taken = lines[: self.lines or len(lines)]
        ended = whole or len(taken) < len(lines)
        return [*self.renderer.encode("\n".join(taken)), *([self.renderer.end] if ended else [])][: self.most]


def read_tokens(
    store: ObjectStore,
    partitions: Sequence[Partition],
    chosen: pl.DataFrame,
    settled: SettledTokens | None = None,
    read_all: ReadAll | None = None,
) -> list[bytes]:
    """Return the tokens of samples and of their context lines, by partition and time, each as Parquet with the columns TOKENS.

    Args:
        chosen: the classified requests to train on (tasks/labels/accounting.py).
        settled: None: no written text is trained on, so there are no rows of context lines.
        read_all: reads the partitions; by default they are read here.

    Raises:
        InputChanged: a completion is no longer in its object.
    """
    work = partial(tokens_of, settled=settled)
    parts = list(divided(partitions, chosen.select(name for name in NEEDED if name in chosen.columns)))
    return list(read_all(work, parts) if read_all else (work(store, part) for part in parts))


def tokens_of(store: ObjectStore, part: tuple[Partition, pl.DataFrame], settled: SettledTokens | None) -> bytes:
    """Return the tokens of a partition's samples, by time, id and completion id.

    The context lines of a sample (tasks/labels/context_lines.py) are rows of their own behind it, with a completion id of their
    own: their prompt, and the rest of the line (`line_token_ids`).
    """
    partition, chosen = part
    served = unique(read_chosen(store, partition, chosen))
    tokens = served.select("id", "prompt_token_ids", "token_ids", "logprobs", "prefix", "suffix")
    rows = chosen.join(tokens, on="id")
    if rows.height != chosen.height:
        raise InputChanged(
            f"{rows.height} of {chosen.height} samples are where they were served: a user or project was erased in the meantime. "
            "Nothing was sealed; the next run collects again: `prefect deployment run cycle/cycle`"
        )
    made = rows.select(
        *("id", "time", "prompt_token_ids", pl.col("id").alias("completion_id")),
        *(pl.col(name).list.head("tokens") for name in ("token_ids", "logprobs")),
        pl.lit([], pl.List(pl.Int64)).alias("line_token_ids"),
    ).select(TOKENS)
    if settled and "standing" in rows.columns:
        made = pl.concat([made, _context_line_rows(made, rows, settled)])
    sink = pa.BufferOutputStream()
    ordered = made.sort("time", "id", "completion_id").to_arrow(compat_level=pl.CompatLevel.oldest())
    pq.write_table(ordered, sink, compression="zstd")
    return sink.getvalue().to_pybytes()


def _context_line_rows(made: pl.DataFrame, rows: pl.DataFrame, settled: SettledTokens) -> pl.DataFrame:
    """Return the rows of the context lines of the samples `made`."""
    lines = rows.select("id", "time", "standing", "prefix", "suffix").drop_nulls("standing")
    found = [
        (name, time, f"{name}/{number}", before, rest, after)
        for name, time, cursors, prefix, suffix in lines.iter_rows()
        for number, (before, rest, after) in enumerate(context_lines.places(prefix, suffix, cursors), 1)
    ]
    prompts = list(settled.renderer.render_all([(before, after) for *_, before, _, after in found]))
    tokens = pa.large_list(pa.int64())
    columns = [
        pl.Series("id", [name for name, *_ in found], pl.String),
        pl.Series("time", [time for _, time, *_ in found], pl.Float64),
        pl.Series("completion_id", [line for _, _, line, *_ in found], pl.String),
        pl.Series("prompt_token_ids", pa.array(prompts, tokens)),
        pl.Series("line_token_ids", pa.array([settled.ids(rest, True) for *_, rest, _ in found], tokens)),
    ]
    nothing = [pl.lit([], made.schema[name]).alias(name) for name in ("token_ids", "logprobs")]
    return pl.DataFrame(columns).with_columns(nothing).select(TOKENS)


def with_settled_tokens(chosen: pl.DataFrame, settled: SettledTokens | None, tokens: Iterable[bytes] = ()) -> pl.DataFrame:
    """Return classified requests with the written text to train on: `settled_token_ids`, and the number `standing_tokens`.

    Args:
        settled: None: no written text is trained on.
        tokens: of `read_tokens`, for the tokens of the context lines.
    """
    texts = chosen.select("settled", "settled_whole").iter_rows()
    ids = [settled.ids(text, whole) if settled else [] for text, whole in texts]
    lines = pl.concat([pl.DataFrame(schema=dict(LINES)), *(_frame(body, list(LINES)) for body in tokens)])
    counts = lines.group_by("id").agg(standing_tokens=pl.col("line_token_ids").list.len().sum().cast(pl.Int64))
    found = chosen.with_columns(pl.Series("settled_token_ids", ids, pl.List(pl.Int64)))
    return found.join(counts, on="id", how="left", maintain_order="left").with_columns(pl.col("standing_tokens").fill_null(0))


def tables(tokens: Iterable[bytes], batch: pl.DataFrame) -> Iterator[pa.Table]:
    """Yield rows of infra.records.Sample, by time, then id: the samples of a batch, each followed by its context lines.

    Fields that `batch` lacks have their defaults. A row whose written text is known to be none and that has no sampled tokens is
    left out: it has nothing to learn.

    Args:
        tokens: of `read_tokens`, by time.
        batch: classified requests with their rewards.
    """
    known = batch.select("id", *(name for name in SCHEMA.names if name in batch.columns and name not in TOKENS))
    line, of_tokens = pl.col("completion_id") != pl.col("id"), [name for name in TOKENS if name in SCHEMA.names]
    columns: dict[str, pl.Expr] = {name: pl.col(name) for name in (*known.columns, *of_tokens) if name in SCHEMA.names}
    columns["outcome"] = pl.when(line).then(pl.lit("standing")).otherwise(pl.col("outcome").cast(pl.String))
    columns |= {name: pl.when(~line).then(name) for name in ("kept_characters",) if name in columns}
    columns |= {name: pl.when(line).then(0).otherwise(name) for name in OF_SERVED if name in columns}
    if "settled_token_ids" in columns:
        columns["settled_token_ids"] = pl.when(line).then("line_token_ids").otherwise("settled_token_ids")
    columns |= {name: pl.lit(Sample.model_fields[name].default) for name in SCHEMA.names if name not in columns}
    for body in tokens:
        rows = _frame(body).join(known, on="id", maintain_order="left").select(columns[name].alias(name) for name in SCHEMA.names)
        if "settled_token_ids" in batch.columns:
            rows = rows.filter(pl.any_horizontal(pl.col("token_ids", "settled_token_ids").list.len() > 0))
        yield rows.to_arrow(compat_level=pl.CompatLevel.oldest()).cast(SCHEMA)


def _frame(body: bytes, columns: Sequence[str] | None = None) -> pl.DataFrame:
    return cast(pl.DataFrame, pl.from_arrow(pq.read_table(pa.BufferReader(body), columns=columns)))


def parquet(rows: Iterable[pa.Table]) -> bytes:
    """Return samples as Parquet: the same bytes for the same rows, however they are divided into tables."""
    pending = SCHEMA.empty_table()
    with TemporaryFile() as file:  # a buffer in memory would hold the bytes up to three times
        with pq.ParquetWriter(file, SCHEMA, compression="zstd") as writer:
            for table in rows:
                pending = pa.concat_tables([pending, table])
                while pending.num_rows >= ROW_GROUP:
                    writer.write_table(pending.slice(0, ROW_GROUP).combine_chunks())
                    pending = pending.slice(ROW_GROUP)
            writer.write_table(pending.combine_chunks())
        file.seek(0)
        return file.read()


def table(rows: Sequence[Sample]) -> pa.Table:
    return pa.Table.from_pylist([row.model_dump() for row in rows], SCHEMA)


def records(store: ObjectStore, partitions: Sequence[Partition], chosen: pl.DataFrame) -> list[Sample]:
    """Return the rows of `tables` without written text, as records; for few samples."""
    found = tables(read_tokens(store, partitions, chosen), chosen)
    return [Sample.model_validate(row) for table in found for row in table.to_pylist()]
