"""Tables and records as the bytes of a Parquet object."""

import io
from collections.abc import Sequence
from typing import TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from infra.records import Record

R = TypeVar("R", bound=Record)

FEW_ROWS = 50
"""Rows up to which Snappy compresses: Zstandard makes them little smaller, and its setup in each column takes twice the time."""


def packed(table: pa.Table) -> bytes:
    """Return a table as Parquet; equal tables give equal bytes."""
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="snappy" if table.num_rows <= FEW_ROWS else "zstd")
    return sink.getvalue()


def to_parquet(rows: Sequence[Record]) -> bytes:
    """Return records of one type as Parquet; equal rows give equal bytes."""
    return packed(pa.Table.from_pylist([row.model_dump(mode="json") for row in rows]))


def from_parquet(body: bytes, record: type[R]) -> list[R]:
    """Return the records in Parquet bytes, each validated."""
    # Polars, since a process that ends while Arrow starts its threads is aborted; here, since serving only writes.
    import polars as pl

    return [record.model_validate(row) for row in pl.read_parquet(io.BytesIO(body)).to_dicts()]
