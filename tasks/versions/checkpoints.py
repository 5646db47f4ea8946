"""Checkpoints on this machine's disk: downloaded once, verified, and there as a whole or not at all."""

import os
import shutil
import tempfile
from pathlib import Path
from urllib.parse import urlsplit

from infra.registry import Registry
from infra.store import CHECKSUMS, ObjectStore

KEPT = 8
"""Downloads that stay, those used last: a cycle uses four at most (parent, champion, a reference, an optimizer's state)."""


def prefix_of(source: str, bucket: str) -> str:
    """The key prefix in a version's source URI.

    Raises:
        ValueError: the source is not in this store's bucket.
    """
    parts = urlsplit(source)
    if parts.scheme != "s3" or parts.netloc != bucket:
        raise ValueError(f"model version's source {source!r}: expected s3://{bucket}/checkpoints/NAME, which store.bucket names")
    return parts.path.strip("/")


def optimizer_prefix(checkpoint: str) -> str:
    """Where a checkpoint's optimizer state lies: apart from it, since what serves a version downloads the whole of its folder."""
    return f"optimizers/{checkpoint.rsplit('/', 1)[-1]}"


def fetch(store: ObjectStore, registry: Registry, version: str, folder: Path) -> Path:
    """The directory of a version's checkpoint, downloaded where it is not there yet.

    It is kept under its checksum: another registry's version of the same number is another checkpoint.
    """
    return _downloaded(store, prefix_of(registry.version(version).source, store.bucket), folder, f"version-{version}")


def fetch_optimizer(store: ObjectStore, registry: Registry, version: str, folder: Path) -> Path | None:
    """The directory of the optimizer's state at a version; none where none was kept."""
    prefix = optimizer_prefix(prefix_of(registry.version(version).source, store.bucket))
    return _downloaded(store, prefix, folder, f"optimizer-{version}") if store.exists(f"{prefix}/{CHECKSUMS}") else None


def _downloaded(store: ObjectStore, prefix: str, folder: Path, name: str) -> Path:
    target = folder / f"{name}-{store.directory_sha256(prefix)[:16]}"
    folder.mkdir(parents=True, exist_ok=True)
    if target.is_dir():
        os.utime(target)
        return target
    _make_room(folder)
    partial = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=folder))
    try:
        store.get_directory(prefix, partial)
        os.replace(partial, target)
    except OSError:
        if not target.is_dir():  # else another run was quicker
            raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return target


def _make_room(folder: Path) -> None:
    """Delete what was not used for longest, what a killed download left included."""
    used = sorted((path for path in folder.iterdir() if path.is_dir()), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in used[KEPT - 1 :]:
        shutil.rmtree(path, ignore_errors=True)
