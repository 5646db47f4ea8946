"""The batch to train on: samples with their tokens, which are read from the event objects, one partition at a time.

Settled text and context lines are turned into tokens by the parent's tokenizer.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from tempfile import TemporaryFile

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from infra.model.fim import Renderer
from infra.model.line_ends import normal
from infra.records import Sample
from infra.storage.events.tables import arrow_schema
from infra.storage.store import ObjectStore
from tasks.labels import context_lines
from tasks.labels.attribution import unique
from tasks.labels.partitions import Partition, divided
from tasks.labels.read import InputChanged, read_chosen

SCHEMA = arrow_schema(Sample)
ROW_GROUP = 65_536
"""Rows of a Parquet row group."""


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


def with_settled_tokens(chosen: pl.DataFrame, settled: SettledTokens | None) -> pl.DataFrame:
    """Return classified requests with the written text to train on: `settled_token_ids`, and the number `standing_tokens`.

    Args:
        chosen: with the columns of tasks/labels/context_lines.py.
        settled: None: no written text is trained on.
    """
    rows = chosen.select("settled", "settled_whole", "standing_text").iter_rows()
    ids = [
        (settled.ids(text, whole), sum(len(settled.ids(rest, True)) for rest in rests or ())) if settled else ([], 0)
        for text, whole, rests in rows
    ]
    return chosen.with_columns(
        pl.Series("settled_token_ids", [written for written, _ in ids], pl.List(pl.Int64)),
        pl.Series("standing_tokens", [count for _, count in ids], pl.Int64),
    )


def tables(
    store: ObjectStore, partitions: Sequence[Partition], chosen: pl.DataFrame, settled: SettledTokens | None = None
) -> Iterator[pa.Table]:
    """Yield rows of infra.records.Sample, by time, then id, for the classified requests (tasks/labels/accounting.py) to train on.

    Fields that `chosen` lacks have their defaults: without `with_settled_tokens`, the rows have no settled text. The context
    lines of a sample (tasks/labels/context_lines.py) are rows of their own after it; without `settled` there are none.

    Raises:
        InputChanged: a completion is no longer in its object.
    """
    for partition, own in divided(partitions, chosen):
        yield _with_tokens(store, partition, own, settled)


def _with_tokens(store: ObjectStore, partition: Partition, chosen: pl.DataFrame, settled: SettledTokens | None) -> pa.Table:
    served = unique(read_chosen(store, partition, chosen))
    rows = chosen.join(served.select("id", "prompt_token_ids", "token_ids", "logprobs"), on="id", suffix="_served")
    if rows.height != chosen.height:
        raise InputChanged(
            f"{rows.height} of {chosen.height} samples are where they were served: a user or project was erased in the meantime. "
            "Nothing was sealed; the next run collects again: `prefect deployment run cycle/cycle`"
        )
    columns: dict[str, pl.Expr | pl.Series] = {name: pl.col(name) for name in SCHEMA.names if name in rows.columns}
    columns |= {
        "completion_id": pl.col("id"),
        "token_ids": pl.col("token_ids").list.head("tokens"),
        "logprobs": pl.col("logprobs_served").list.head("tokens"),
        "outcome": pl.col("outcome").cast(pl.String),
    }
    defaults = {name: pl.lit(Sample.model_fields[name].default) for name in SCHEMA.names if name not in columns}
    made = rows.select("time", "id", **(columns | defaults))
    if settled and "standing" in rows.columns:
        made = pl.concat([made, _context_line_rows(made, rows.select("id", "standing").drop_nulls(), served, settled)])
    ordered = made.sort("time", "id", "completion_id").select(SCHEMA.names)
    return ordered.to_arrow(compat_level=pl.CompatLevel.oldest()).cast(SCHEMA)


def _context_line_rows(made: pl.DataFrame, lines: pl.DataFrame, served: pl.DataFrame, settled: SettledTokens) -> pl.DataFrame:
    """A row for each context line of the samples `made`: its prompt, and the rest of the line as settled text."""
    found = [
        (name, f"{name}/{number}", before, rest, after)
        for name, cursors, prefix, suffix in lines.join(served.select("id", "prefix", "suffix"), on="id").iter_rows()
        for number, (before, rest, after) in enumerate(context_lines.places(prefix, suffix, cursors), 1)
    ]
    prompts = list(settled.renderer.render_all([(before, after) for *_, before, _, after in found]))
    tokens = pa.large_list(pa.int64())
    rows = pl.DataFrame(
        [
            pl.Series("id", [name for name, *_ in found], pl.String),
            pl.Series("line", [line for _, line, *_ in found], pl.String),
            pl.Series("prompt", pa.array(prompts, tokens)),
            pl.Series("written", pa.array([settled.ids(rest, True) for *_, rest, _ in found], tokens)),
        ]
    )
    nothing = {name: pl.lit([], made.schema[name]) for name in ("token_ids", "logprobs")}
    zero = {name: pl.lit(0, made.schema[name]) for name in ("shown_characters", "accepted_characters", "reward", "advantage")}
    copied = made.join(rows, on="id").with_columns(
        completion_id="line",
        prompt_token_ids="prompt",
        settled_token_ids="written",
        outcome=pl.lit("standing"),
        kept_characters=pl.lit(None, made.schema["kept_characters"]),
        **nothing,
        **zero,
    )
    return copied.select(made.columns)


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
    """Return the rows of `tables` as records; for few samples."""
    return [Sample.model_validate(row) for table in tables(store, partitions, chosen) for row in table.to_pylist()]
