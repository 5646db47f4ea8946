"""Read and write the objects that hold events: segments as serving shipped them, and containers of many segments.

A container is one Parquet object with the rows of an hour's small segments one after another, and in its metadata each segment's
key, checksum, rows and time of its last row. `read` returns the segments of a container, so manifests name the keys and checksums
that were shipped, compacted or not.

    FOLDER/SEGMENT.parquet                          as shipped
    FOLDER/compact-DIGEST-FIRST--LAST.parquet       DIGEST of the names of its segments, the first and the last of these names
"""

import hashlib
import json
import math
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from infra.records import ObjectReference
from infra.storage.parquet import packed
from infra.storage.store import sha256

CONTAINER = re.compile(r"^(?P<folder>.+)/compact-(?P<digest>[0-9a-f]{32})-(?P<first>.+)--(?P<last>.+)\.parquet$")
PARTS = b"tabloop.segments"


@dataclass(frozen=True)
class Segment:
    """The events that were shipped as one object."""

    key: str
    sha256: str
    """Checksum of the object as it was shipped, or as it was rewritten when an erased subject's rows were removed."""
    table: pa.Table
    last: float
    """Time of its last row."""

    @property
    def reference(self) -> ObjectReference:
        """The reference for a manifest."""
        return ObjectReference(key=self.key, sha256=self.sha256, rows=self.table.num_rows, last=self.last)


class NotTheSame(ValueError):
    """A container that is read back differs from the segments packed into it."""


def is_container(key: str) -> bool:
    return CONTAINER.match(key) is not None


def read(key: str, body: bytes, columns: Collection[str] | None = None, left_out: Collection[str] = ()) -> list[Segment]:
    """Return the segments of an object, one unless it is a container; with these columns only, if given, or without some."""
    return unpack(key, body, columns, left_out) if is_container(key) else [segment(key, body, columns, left_out)]


def segment(key: str, body: bytes, columns: Collection[str] | None = None, left_out: Collection[str] = ()) -> Segment:
    """Return an object that is one segment. Its `last` is 0 unless `columns` includes the time."""
    table = _table(body, columns, left_out)
    return Segment(key, hashlib.sha256(body).hexdigest(), table, last_time(table))


def _table(body: bytes, columns: Collection[str] | None, left_out: Collection[str]) -> pa.Table:
    # pq.read_table takes twice the time, since it reads an object as a data set.
    file = pq.ParquetFile(pa.BufferReader(body))
    names = [name for name in file.schema_arrow.names if name not in left_out and (columns is None or name in columns)]
    return file.read(names, use_threads=False)


def last_time(table: pa.Table) -> float:
    """Return the latest time in a table; 0 without one. Invalid rows may hold any value."""
    times = table["time"] if "time" in table.column_names else pa.array([])
    if times.type == pa.float64() and not times.null_count:
        values = times.to_numpy()
        return float(np.max(values[np.isfinite(values)], initial=0.0))
    return max((float(t) for t in times.to_pylist() if isinstance(t, int | float) and math.isfinite(t)), default=0.0)


def container_key(keys: Sequence[str]) -> str:
    """Return the key of the container of these segments, all of one folder: the same key for the same segments."""
    folders = {key.rsplit("/", 1)[0] for key in keys}
    assert len(folders) == 1, f"segments of one folder belong together, got {sorted(folders)}"
    names = sorted(name_of(key) for key in keys)
    return f"{folders.pop()}/compact-{digest(names)}-{names[0]}--{names[-1]}.parquet"


def name_of(key: str) -> str:
    """Return a segment's name: its key without the folder and the extension."""
    return key.rsplit("/", 1)[-1].removesuffix(".parquet")


def digest(names: Iterable[str]) -> str:
    """Return the checksum of a set of names."""
    return sha256(f"{name}\n".encode() for name in sorted(names))[:32]


def all_known(container: str, known: Iterable[str]) -> bool:
    """Return whether all segments of a container are among these keys, by the container's name alone; False if unknown."""
    match = CONTAINER.match(container)
    assert match, container
    names = [name_of(key) for key in known if key.rsplit("/", 1)[0] == match["folder"]]
    return digest(name for name in names if match["first"] <= name <= match["last"]) == match["digest"]


def may_hold(container: str, key: str) -> bool:
    """Return whether a container may hold a segment of its folder, by the container's name alone."""
    match = CONTAINER.match(container)
    assert match, container
    return match["first"] <= name_of(key) <= match["last"]


def pack(segments: Sequence[Segment]) -> bytes:
    """Return the bytes of a container of these segments: the same bytes for the same segments. Raises NotTheSame if reading the
    bytes returns other rows."""
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
    body = packed(whole)
    for before, after in zip(ordered, unpack(container_key([s.key for s in ordered]), body), strict=True):
        if (before.key, before.sha256, before.last, _rows(before)) != (after.key, after.sha256, after.last, _rows(after)):
            raise NotTheSame(f"{before.key}: the segment read back from its container differs; it stays an object of its own")
    return body


def _rows(part: Segment) -> str:
    """All rows as text, in which NaN equals NaN."""
    return json.dumps(part.table.to_pylist(), default=str)


def unpack(key: str, body: bytes, columns: Collection[str] | None = None, left_out: Collection[str] = ()) -> list[Segment]:
    """Return the segments of a container."""
    whole = _table(body, columns, left_out)
    parts, at = [], 0
    for part in json.loads(whole.schema.metadata[PARTS]):
        table = (
            whole.slice(at, part["rows"])
            .select([name for name in part["columns"] if name in whole.column_names])
            .replace_schema_metadata(None)
        )
        parts.append(Segment(part["key"], part["sha256"], table, part["last"]))
        at += part["rows"]
    assert at == whole.num_rows, f"{key}: {whole.num_rows} rows, its segments have {at}"
    return parts


def without(part: Segment, column: str, names: frozenset[str]) -> Segment:
    """Return a segment without the rows whose column holds one of these names; the segment itself if there are none."""
    if column not in part.table.column_names:
        return part
    retained = [value not in names for value in part.table[column].to_pylist()]
    if all(retained):
        return part
    table = part.table.filter(pa.array(retained, pa.bool_()))
    return replace(part, table=table, sha256=hashlib.sha256(packed(table)).hexdigest())
