"""Deltas in the object store: written at registration, fetched by serving.

    checkpoints/NAME/...                 the checkpoint, whole, with checksums.json
    checkpoints/NAME/served/...          the same as engines load it, whole, if that differs (served.py)
    checkpoints/NAME[/served]/delta/     the changes from the version that it was trained from: parts 00000, 00001, ... and,
                                         written last, index.json

A delta lies below its checkpoint and goes with it. Each index names the checksums of its parent's and of its own files, so
deltas make a chain. The result of a chain is compared with the checkpoint's own checksums; a chain that is broken anywhere falls
back to the full copy.
"""

import json
import logging
import shutil
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from infra.records import VersionDelta
from infra.records.base import ObjectReference
from infra.storage.deltas import folders, served
from infra.storage.store import CHECKSUMS, Corrupt, ObjectStore, sha256

log = logging.getLogger(__name__)
INDEX = "index.json"
MOST_SHARE = 0.6
"""Largest size of a chain, as a share of the full copy; beyond it the full copy is simpler and as fast."""
PART_BYTES = 32 << 20
BROKEN = (ValueError, KeyError, TypeError, OSError, struct.error)
"""Errors of a broken chain. A store that does not answer raises RuntimeError: the full copy would not come either."""
How = Literal["full", "delta", "fallback"]
"""How a version came: full: no chain from a version on the disk, or one that is too long; fallback: a chain that was broken."""


class ChainBroken(ValueError):
    """A delta is not of the versions that it should be."""


@dataclass(frozen=True)
class HeldVersion:
    """A version on this machine's disk."""

    path: Path
    sha256: str
    """SHA-256 of its checksums.json; empty if it was fetched by an earlier release."""


@dataclass(frozen=True)
class Fetched:
    """How a version came to this machine's disk."""

    how: How
    bytes: int
    """Bytes that travelled."""
    sha256: str
    """SHA-256 of its checksums.json."""


def publish(store: ObjectStore, prefix: str, folder: Path, parent: str, parent_folder: Path) -> VersionDelta | None:
    """Write the changes from the parent; return the delta, or None if it is not smaller than MOST_SHARE of the full copy.

    Args:
        prefix: of the full copy, which is in the store already.
        folder: the same on this disk.
        parent: prefix of the parent's checkpoint.
        parent_folder: the same on this disk, in any precision.
    """
    if written := store.find(_key(prefix, INDEX), VersionDelta):
        return written
    checksums = store.checksums(prefix)
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    parts: list[ObjectReference] = []
    total = 0
    for frames, body in _parts(folders.encode(parent_folder, folder)):
        total += len(body)
        if total > MOST_SHARE * size:
            for part in parts:
                store.delete(part.key)
            return None
        key = _key(prefix, f"{len(parts):05}")
        parts.append(ObjectReference(key=key, sha256=store.put(key, body), rows=frames))
    delta = VersionDelta(
        parent=parent,
        parent_sha256=store.directory_sha256(served_prefix(store, parent)),
        sha256=sha256([checksums]),
        files=json.loads(checksums),
        parts=tuple(parts),
        bytes=total,
        full_bytes=size,
    )
    store.put_json(_key(prefix, INDEX), delta)
    return delta


def fetch(store: ObjectStore, checkpoint: str, target: Path, held: Mapping[str, HeldVersion], most: int) -> Fetched:
    """Put a version, as engines load it, into an empty folder: by deltas from a held one if there is a chain, else whole.

    Args:
        checkpoint: prefix of the version's checkpoint.
        held: versions on this disk by the prefix of their checkpoints.
        most: longest chain; 0: always the full copy.

    Raises:
        Incomplete: the checkpoint's checksums are missing.
        Corrupt: a file of the full copy does not match its checksum.
        Unreachable: the store does not answer.
    """
    prefix = served_prefix(store, checkpoint)
    checksums = store.checksums(prefix)
    how: How = "full"
    if held and most:
        try:
            if (chain := _chain(store, prefix, sha256([checksums]), held, most)) is not None:
                _apply(store, chain, target)
                return Fetched("delta", sum(delta.bytes for delta in chain[1]), sha256([checksums]))
        except BROKEN as error:
            log.warning(
                "%s: its chain of deltas is broken, so the full copy is fetched: %s: %s", checkpoint, type(error).__name__, error
            )
            how = "fallback"
            shutil.rmtree(target)
            target.mkdir()
    store.get_directory(prefix, target)
    return Fetched(how, sum(file.stat().st_size for file in target.rglob("*") if file.is_file()), sha256([checksums]))


def served_prefix(store: ObjectStore, checkpoint: str) -> str:
    """Return the prefix of the folder that engines load: the checkpoint's copy for them if it has one, else the checkpoint."""
    copy = served.prefix_of(checkpoint)
    return copy if store.exists(f"{copy}/{CHECKSUMS}") else checkpoint


Chain = tuple[Path, list[VersionDelta]]
"""The folder of a held version, and deltas from it in the order in which they are applied."""


def _chain(store: ObjectStore, prefix: str, checksum: str, held: Mapping[str, HeldVersion], most: int) -> Chain | None:
    """Return the chain to a version; None if there is none from a held version, or none within the bounds. Raises ChainBroken
    if an index, or a held version, is of other files than the chain says."""
    deltas: list[VersionDelta] = []
    while len(deltas) < most and (delta := store.find(_key(prefix, INDEX), VersionDelta)):
        if delta.sha256 != checksum:
            raise ChainBroken(f"{prefix}: the delta is of files with the checksum {delta.sha256[:16]}, expected {checksum[:16]}")
        deltas.insert(0, delta)
        if sum(one.bytes for one in deltas) > MOST_SHARE * deltas[-1].full_bytes:
            return None
        if copy := held.get(delta.parent):
            if copy.sha256 and copy.sha256 != delta.parent_sha256:
                raise ChainBroken(
                    f"{copy.path} has the checksum {copy.sha256[:16]}, the delta's parent {delta.parent_sha256[:16]}"
                )
            return copy.path, deltas
        prefix, checksum = served_prefix(store, delta.parent), delta.parent_sha256
    return None


def _apply(store: ObjectStore, chain: Chain, target: Path) -> None:
    """Make the last version of a chain, and each before it in a folder that does not stay. Raises ChainBroken if a version's
    files do not match their checksums."""
    between: list[Path] = []
    try:
        folder, deltas = chain
        for number, delta in enumerate(deltas, 1):
            made = target if number == len(deltas) else target.with_name(f"{target.name}.{number}")
            if made != target:
                shutil.rmtree(made, ignore_errors=True)
                made.mkdir()
                between.append(made)
            if (files := folders.apply(folder, _frames(store, delta), made)) != delta.files:
                wrong = sorted(name for name in files.keys() | delta.files.keys() if files.get(name) != delta.files.get(name))
                raise ChainBroken(f"{', '.join(wrong)}: other bytes than the version's")
            folder = made
    finally:
        for made in between:
            shutil.rmtree(made, ignore_errors=True)


def _frames(store: ObjectStore, delta: VersionDelta) -> Iterator[folders.Frame]:
    for part in delta.parts:
        body = store.get(part.key)
        if (digest := sha256([body])) != part.sha256:
            raise Corrupt(f"{store.uri(part.key)}: SHA-256 {digest}, expected {part.sha256}")
        yield from folders.unpack(body)


def _parts(frames: Iterator[folders.Frame]) -> Iterator[tuple[int, bytes]]:
    """Yield frames as bytes of about PART_BYTES, with their number."""
    packed: list[bytes] = []
    size = 0
    for frame in frames:
        packed.append(folders.pack(frame))
        size += len(packed[-1])
        if size >= PART_BYTES:
            yield len(packed), b"".join(packed)
            packed, size = [], 0
    if packed:
        yield len(packed), b"".join(packed)


def _key(prefix: str, name: str) -> str:
    return f"{prefix}/delta/{name}"
