"""The batch that the trainer sees: samples with their tokens, which are read where they were served, a partition at a time."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from tempfile import TemporaryFile

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from infra.events.tables import arrow_schema
from infra.records import Sample
from infra.store import ObjectStore
from tasks.labels.attribution import unique
from tasks.labels.partitions import InputChanged, Partition, read_completions

SCHEMA = arrow_schema(Sample)
ROW_GROUP = 65_536
"""Rows that are written at a time."""


def tables(store: ObjectStore, partitions: Sequence[Partition], chosen: pl.DataFrame) -> Iterator[pa.Table]:
    """Rows of infra.records.Sample, by time, then id, for placed requests (tasks/labels/accounting.py) with a label.

    Raises:
        InputChanged: what was served is not there any more.
    """
    for partition in partitions:
        mine = chosen.filter(partition.owns(chosen["time"].to_numpy()))
        if not mine.is_empty():
            yield _with_tokens(store, partition, mine)


def _with_tokens(store: ObjectStore, partition: Partition, mine: pl.DataFrame) -> pa.Table:
    recent = partition.completions.filter(pl.col("last") >= mine["time"].min())
    read, _ = read_completions(store, replace(partition, completions=recent), partition.owns)
    served = unique(read.join(mine, on=["id", "time"], how="semi"))
    found = mine.join(served.select("id", "prompt_token_ids", "token_ids", "logprobs"), on="id", suffix="_served")
    if found.height != mine.height:
        raise InputChanged(
            f"{found.height} of {mine.height} samples are where they were served; somebody was forgotten meanwhile. Nothing was "
            "sealed, the next run collects anew: `prefect deployment run cycle/cycle`"
        )
    columns = {name: pl.col(name) for name in SCHEMA.names if name in found.columns} | {
        "completion_id": pl.col("id"),
        "token_ids": pl.col("token_ids").list.head("tokens"),
        "logprobs": pl.col("logprobs_served").list.head("tokens"),
        "outcome": pl.col("outcome").cast(pl.String),
    }
    defaults = {name: pl.lit(Sample.model_fields[name].default) for name in SCHEMA.names if name not in columns}
    ordered = found.sort("time", "id").select(**(columns | defaults)).select(SCHEMA.names)
    return ordered.to_arrow(compat_level=pl.CompatLevel.oldest()).cast(SCHEMA)


def parquet(rows: Iterable[pa.Table]) -> bytes:
    """Samples as Parquet: the same bytes for the same rows, however they come."""
    held = SCHEMA.empty_table()
    with TemporaryFile() as file:  # not in memory, where it would be held twice while it grows and once more as bytes
        with pq.ParquetWriter(file, SCHEMA, compression="zstd") as writer:
            for table in rows:
                held = pa.concat_tables([held, table])
                while held.num_rows >= ROW_GROUP:
                    writer.write_table(held.slice(0, ROW_GROUP).combine_chunks())
                    held = held.slice(ROW_GROUP)
            writer.write_table(held.combine_chunks())
        file.seek(0)
        return file.read()


def records(store: ObjectStore, partitions: Sequence[Partition], chosen: pl.DataFrame) -> list[Sample]:
    """The same rows one by one, where there are few."""
    return [Sample.model_validate(row) for table in tables(store, partitions, chosen) for row in table.to_pylist()]
