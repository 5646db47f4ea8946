"""Convert event objects to frames, checked by column; only rows that look wrong go through their record's validator."""

from collections.abc import Mapping, Sequence
from functools import cache
from types import NoneType
from typing import Any, Literal, cast, get_args, get_origin

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import ValidationError

from infra.records import Record

ALIGNED = ("token_ids", "logprobs", "token_ends")
"""Lists of a completion that are as long as each other."""
PLAIN: Mapping[Any, type[pl.DataType]] = {str: pl.String, float: pl.Float64, int: pl.Int64, bool: pl.Boolean}
ARROW = {pl.String: pa.string(), pl.Float64: pa.float64(), pl.Int64: pa.int64(), pl.Boolean: pa.bool_()}


@cache
def schema(record: type[Record]) -> Mapping[str, pl.DataType]:
    """Return a record's columns."""
    return {name: _column(field.annotation) for name, field in record.model_fields.items()}


def _column(annotation: Any) -> pl.DataType:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return pl.Enum(arguments)
    if origin is tuple:
        return pl.List(_column(arguments[0]))
    if any(get_origin(a) is Literal for a in arguments):  # a union of literals
        return pl.Enum([value for a in arguments for value in get_args(a)])
    return PLAIN[next((a for a in arguments if a is not NoneType), annotation)]()


def _inner(kind: pl.List) -> pl.DataType:
    return cast(pl.DataType, kind.inner)  # an instance, as _column makes it; polars allows a class too


@cache
def nullable(record: type[Record]) -> frozenset[str]:
    """Return the columns that may be null."""
    return frozenset(name for name, field in record.model_fields.items() if NoneType in get_args(field.annotation))


def arrow_schema(record: type[Record]) -> pa.Schema:
    """Return a record's columns as Parquet has them."""

    def column(kind: pl.DataType) -> pa.DataType:
        return pa.list_(column(_inner(kind))) if isinstance(kind, pl.List) else ARROW.get(type(kind), pa.string())

    return pa.schema([(name, column(kind)) for name, kind in schema(record).items()])


def checked(table: pa.Table, record: type[Record], left_out: Sequence[str] = ()) -> tuple[pl.DataFrame, list[dict[str, Any]]]:
    """Return the valid rows as a frame and the others unchanged; the columns `left_out` are neither read nor checked."""
    columns = {name: kind for name, kind in schema(record).items() if name not in left_out}
    present = frozenset(table.column_names)
    table = table.drop_columns([name for name in left_out if name in present])
    if not table.num_rows or not _looks_right(table, record, columns):
        return _by_validator(table, record, columns, left_out)
    frame = pl.DataFrame(pl.from_arrow(table.select([name for name in columns if name in present])))
    has = frame.schema
    frame = frame.with_columns(
        pl.col(name).cast(kind, strict=False) if name in has else pl.lit(record.model_fields[name].default, kind).alias(name)
        for name, kind in columns.items()
        if has.get(name) != kind
    ).select(*columns)
    # A value outside a column's enumeration is null after the cast.
    wrong = [pl.col(name).is_null() for name in columns if name not in nullable(record)]
    lengths = [pl.col(name).list.len() for name in ALIGNED if name in columns]
    wrong += [lengths[0] != length for length in lengths[1:]]
    bad = frame.select(wrong=pl.any_horizontal(wrong).fill_null(True))["wrong"]
    if not bad.any():
        return frame, []
    valid, broken = _by_validator(table.filter(bad.to_arrow()), record, columns, left_out)
    return pl.concat([frame.filter(~bad), valid]), broken


def _looks_right(table: pa.Table, record: type[Record], columns: Mapping[str, pl.DataType]) -> bool:
    """Whether the columns are the record's, in types that mean the same."""
    missing = columns.keys() - set(table.column_names)
    return (
        set(table.column_names) <= columns.keys()
        and not any(record.model_fields[name].is_required() for name in missing)
        and all(_fits(field.type, columns[field.name]) for field in table.schema)
        and not any(
            pc.list_flatten(table[field.name]).null_count
            for field in table.schema
            if isinstance(columns[field.name], pl.List) and not pa.types.is_null(field.type)
        )
    )


def _fits(actual: pa.DataType, expected: pl.DataType) -> bool:
    kinds = pa.types
    if kinds.is_null(actual):
        return True
    if isinstance(expected, pl.List):
        return (kinds.is_list(actual) or kinds.is_large_list(actual)) and _fits(actual.value_type, _inner(expected))
    if isinstance(expected, pl.Float64):
        return actual in (pa.float64(), pa.float32()) or kinds.is_signed_integer(actual)
    if isinstance(expected, pl.Int64):
        return kinds.is_signed_integer(actual)
    if isinstance(expected, pl.Boolean):
        return kinds.is_boolean(actual)
    return kinds.is_string(actual) or kinds.is_large_string(actual)


def _by_validator(
    table: pa.Table, record: type[Record], columns: Mapping[str, pl.DataType], left_out: Sequence[str]
) -> tuple[pl.DataFrame, list[dict[str, Any]]]:
    valid, broken = [], []
    for row in table.to_pylist():
        try:
            valid.append(record.model_validate({**row, **dict.fromkeys(left_out, ())}).model_dump())
        except ValidationError:
            broken.append(row)
    return pl.DataFrame(valid, schema=schema(record)).select(*columns), broken
