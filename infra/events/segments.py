"""The objects that events lie in: segments as serving shipped them, and containers that hold many of them.

A container is one Parquet object with the rows of an hour's small segments one after another, and in its metadata each
segment's key, checksum, rows and time of its last row. Whoever reads a container is given back the segments: manifests go on
naming the keys and checksums that were shipped, and what a cycle has read is known by them, compacted or not.

    FOLDER/SEGMENT.parquet                          as shipped
    FOLDER/compact-DIGEST-FIRST--LAST.parquet       DIGEST is of the names of all its segments, which lie from FIRST to LAST
"""

import hashlib
import io
import json
import math
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from infra.records import ObjectReference
from infra.store import sha256

CONTAINER = re.compile(r"^(?P<folder>.+)/compact-(?P<digest>[0-9a-f]{32})-(?P<first>.+)--(?P<last>.+)\.parquet$")
PARTS = b"tabloop.segments"


@dataclass(frozen=True)
class Segment:
    """What was shipped as one object."""

    key: str
    sha256: str
    """Of the object as it was shipped, or as it was left when somebody's rows were taken out."""
    table: pa.Table
    last: float
    """Time of its last row."""

    @property
    def reference(self) -> ObjectReference:
        """As a manifest names it."""
        return ObjectReference(key=self.key, sha256=self.sha256, rows=self.table.num_rows, last=self.last)


class NotTheSame(ValueError):
    """A container does not give back what was put into it."""


def is_container(key: str) -> bool:
    """Whether the object holds segments."""
    return CONTAINER.match(key) is not None


def read(key: str, body: bytes, columns: Collection[str] | None = None) -> list[Segment]:
    """The segments of an object, one where it is none's container; of their columns only these, where they are named."""
    return unpack(key, body, columns) if is_container(key) else [segment(key, body, columns)]


def segment(key: str, body: bytes, columns: Collection[str] | None = None) -> Segment:
    """An object as it was shipped. The time of its last row is told where `columns` has the time."""
    table = _table(body, columns)
    return Segment(key, hashlib.sha256(body).hexdigest(), table, last_time(table))


def _table(body: bytes, columns: Collection[str] | None = None) -> pa.Table:
    # Half the time of pq.read_table, which takes an object for a data set.
    file = pq.ParquetFile(pa.BufferReader(body))
    return file.read([name for name in file.schema_arrow.names if columns is None or name in columns], use_threads=False)


def last_time(table: pa.Table) -> float:
    """The latest time in a table; 0 where none is told. Rows that are no events may hold anything."""
    times = table["time"] if "time" in table.column_names else pa.array([])
    if times.type == pa.float64() and not times.null_count:
        values = times.to_numpy()
        return float(np.max(values[np.isfinite(values)], initial=0.0))
    return max((float(t) for t in times.to_pylist() if isinstance(t, int | float) and math.isfinite(t)), default=0.0)


def container_key(keys: Sequence[str]) -> str:
    """Key of the container of these segments, which all lie in one folder: the same for the same ones."""
    folders = {key.rsplit("/", 1)[0] for key in keys}
    assert len(folders) == 1, f"segments of one folder belong together, got {sorted(folders)}"
    names = sorted(name_of(key) for key in keys)
    return f"{folders.pop()}/compact-{digest(names)}-{names[0]}--{names[-1]}.parquet"


def name_of(key: str) -> str:
    """A segment's name: its key without the folder and the ending."""
    return key.rsplit("/", 1)[-1].removesuffix(".parquet")


def digest(names: Iterable[str]) -> str:
    """Checksum of names."""
    return sha256(f"{name}\n".encode() for name in sorted(names))[:32]


def all_known(container: str, known: Iterable[str]) -> bool:
    """Whether all segments of a container are among these keys, told by its name alone; False where that cannot be told."""
    match = CONTAINER.match(container)
    assert match, container
    names = [name_of(key) for key in known if key.rsplit("/", 1)[0] == match["folder"]]
    return digest(name for name in names if match["first"] <= name <= match["last"]) == match["digest"]


def pack(segments: Sequence[Segment]) -> bytes:
    """Segments as the bytes of a container: the same for the same ones.

    Raises:
        NotTheSame: reading the bytes gives other rows back.
    """
    ordered = sorted(segments, key=lambda s: s.key)
    parts = [
        {
            "key": s.key,
            "sha256": s.sha256,
            "rows": s.table.num_rows,
            "last": s.last,
            # An older segment may lack columns: they must not come back as nulls.
            "columns": s.table.column_names,
        }
        for s in ordered
    ]
    whole = pa.concat_tables([s.table for s in ordered], promote_options="permissive").replace_schema_metadata(
        {PARTS: json.dumps(parts).encode()}
    )
    sink = io.BytesIO()
    pq.write_table(whole, sink, compression="zstd")
    body = sink.getvalue()
    for before, after in zip(ordered, unpack(container_key([s.key for s in ordered]), body), strict=True):
        if (before.key, before.sha256, before.last, _rows(before)) != (after.key, after.sha256, after.last, _rows(after)):
            raise NotTheSame(f"{before.key}: packed and read back it is not the same; it is left as it is")
    return body


def _rows(found: Segment) -> str:
    """All rows as text: NaN is equal to NaN."""
    return json.dumps(found.table.to_pylist(), default=str)


def unpack(key: str, body: bytes, columns: Collection[str] | None = None) -> list[Segment]:
    """The segments of a container."""
    whole = _table(body, columns)
    found, at = [], 0
    for part in json.loads(whole.schema.metadata[PARTS]):
        table = (
            whole.slice(at, part["rows"])
            .select([name for name in part["columns"] if name in whole.column_names])
            .replace_schema_metadata(None)
        )
        found.append(Segment(part["key"], part["sha256"], table, part["last"]))
        at += part["rows"]
    assert at == whole.num_rows, f"{key}: {whole.num_rows} rows, its segments have {at}"
    return found


def without(found: Segment, column: str, names: frozenset[str]) -> Segment:
    """A segment without the rows that name one of these; itself where there are none."""
    if column not in found.table.column_names:
        return found
    kept = [value not in names for value in found.table[column].to_pylist()]
    if all(kept):
        return found
    table = found.table.filter(pa.array(kept, pa.bool_()))
    return replace(found, table=table, sha256=hashlib.sha256(alone(table)).hexdigest())


def alone(table: pa.Table) -> bytes:
    """A segment as an object of its own."""
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd")
    return sink.getvalue()
