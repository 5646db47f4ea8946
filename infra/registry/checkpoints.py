"""Download checkpoints to this machine's disk, each once, verified and atomically."""

import os
import shutil
import tempfile
from pathlib import Path
from urllib.parse import urlsplit

from infra.model import adapters
from infra.registry.client import Registry
from infra.storage.store import CHECKSUMS, ObjectStore

KEPT = 8
"""Downloads to keep, the last used: a cycle uses six at most (parent, champion, a reference, an optimizer's state, two bases)."""


def prefix_of(source: str, bucket: str) -> str:
    """Return the key prefix in a version's source URI. Raises ValueError if the source is not in this store's bucket."""
    parts = urlsplit(source)
    if parts.scheme != "s3" or parts.netloc != bucket:
        raise ValueError(f"model version's source {source!r}: expected s3://{bucket}/checkpoints/NAME, which store.bucket names")
    return parts.path.strip("/")


def optimizer_prefix(checkpoint: str) -> str:
    """Return the prefix of a checkpoint's optimizer state: not in its folder, which serving downloads completely."""
    return f"optimizers/{checkpoint.rsplit('/', 1)[-1]}"


def fetch(store: ObjectStore, registry: Registry, version: str, folder: Path) -> Path:
    """Return the directory of a version's whole checkpoint; download it if necessary.

    Its name holds its checksum: another registry's version of the same number is another checkpoint. A version that is stored
    as an adapter is merged with its base, and its adapter lies in adapters.FOLDER.

    Raises:
        UnsuitableAdapter: the adapter is damaged, or does not belong to its base.
    """
    return fetch_stored(store, prefix_of(registry.version(version).source, store.bucket), folder, f"version-{version}")


def write_whole(store: ObjectStore, registry: Registry, version: str, folder: Path, out: Path) -> None:
    """Write a version's whole checkpoint to a new directory, in float32 where it is stored as an adapter.

    Args:
        folder: folder of the downloads, as of `fetch`.

    Raises:
        As `fetch`.
    """
    from infra.model.stored_tensors import written  # imports torch

    found = fetch(store, registry, version, folder)
    with written(out) as partial:
        shutil.copytree(found, partial, dirs_exist_ok=True, ignore=shutil.ignore_patterns(adapters.FOLDER, CHECKSUMS))


def fetch_base(store: ObjectStore, adapter: Path, folder: Path) -> Path:
    """Return the directory of the checkpoint that an adapter belongs to; download it if necessary.

    Raises:
        UnsuitableAdapter: the adapter does not name it.
    """
    base = adapters.base_version(adapter)
    return fetch_stored(store, prefix_of(base.source, store.bucket), folder, f"version-{base.version}")


def fetch_optimizer(store: ObjectStore, registry: Registry, version: str, folder: Path) -> Path | None:
    """Return the directory of a version's optimizer state; None if it has none."""
    prefix = optimizer_prefix(prefix_of(registry.version(version).source, store.bucket))
    return fetch_stored(store, prefix, folder, f"optimizer-{version}") if store.exists(f"{prefix}/{CHECKSUMS}") else None


def fetch_stored(store: ObjectStore, prefix: str, folder: Path, name: str) -> Path:
    """Return the directory of a checkpoint or of an optimizer's state, by the prefix of its keys; download it if necessary.

    Args:
        name: beginning of the directory's name.

    Raises:
        UnsuitableAdapter: as `fetch`.
    """
    target = folder / f"{name}-{store.directory_sha256(prefix)[:16]}"
    folder.mkdir(parents=True, exist_ok=True)
    if target.is_dir():
        os.utime(target)
        return target
    _make_room(folder)
    partial = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=folder))
    try:
        store.get_directory(prefix, partial)
        if adapters.is_adapter(partial):
            _complete(store, partial, folder)
        os.replace(partial, target)
    except OSError:
        if not target.is_dir():  # else another run was quicker
            raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return target


def _complete(store: ObjectStore, partial: Path, folder: Path) -> None:
    """Turn a download of an adapter into the whole checkpoint."""
    from infra.model.adapter_files import complete  # imports torch

    base, adapter = fetch_base(store, partial, folder), partial.with_name(f"{partial.name}-adapter")
    os.replace(partial, adapter)
    partial.mkdir(mode=0o700)
    try:
        complete(base, adapter, partial)
    finally:
        shutil.rmtree(adapter, ignore_errors=True)


def _make_room(folder: Path) -> None:
    """Delete the least recently used downloads, also those that a killed download left."""
    used = sorted((path for path in folder.iterdir() if path.is_dir()), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in used[KEPT - 1 :]:
        shutil.rmtree(path, ignore_errors=True)
