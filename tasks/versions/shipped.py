"""What engines fetch of a version: its copy in the precision that they load, and what changed from its parent.

Neither is needed to serve the version: without them engines fetch the checkpoint itself.
"""

import logging
import shutil
from dataclasses import dataclass
from pathlib import Path

from infra.settings.schema import Serving
from infra.storage.deltas import served, stored
from infra.storage.store import CHECKSUMS, Corrupt, Incomplete, ObjectStore

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ParentCopy:
    """The checkpoint that a candidate was trained from."""

    prefix: str
    """Its key prefix in the object store."""
    folder: Path
    """The same on this machine's disk."""


def ship(store: ObjectStore, serving: Serving, prefix: str, checkpoint: Path, parent: ParentCopy | None) -> None:
    """Write what engines fetch of a checkpoint that is in the store; may be repeated.

    Args:
        prefix: of the checkpoint in the store.
        checkpoint: the same on this machine's disk.
        parent: none: its checkpoint is gone, so that there is nothing to compare with.
    """
    if not served.is_wanted(serving.engine_arguments, checkpoint):
        ship_delta(store, serving, prefix, checkpoint, parent)
        return
    copy, copy_prefix = checkpoint.with_name(f"{checkpoint.name}-{served.FOLDER}"), served.prefix_of(prefix)
    shutil.rmtree(copy, ignore_errors=True)
    copy.mkdir()
    try:
        served.write_copy(checkpoint, copy)
        if not store.exists(f"{copy_prefix}/{CHECKSUMS}"):
            store.put_directory(copy_prefix, copy)
        ship_delta(store, serving, copy_prefix, copy, parent)
    finally:
        shutil.rmtree(copy, ignore_errors=True)


def ship_delta(store: ObjectStore, serving: Serving, prefix: str, folder: Path, parent: ParentCopy | None) -> None:
    """Write what changed from the parent."""
    if parent is None or not serving.most_deltas:
        return
    try:
        delta = stored.publish(store, prefix, folder, parent.prefix, parent.folder)
    except (Incomplete, Corrupt) as error:
        log.warning("%s gets no delta, so engines fetch the full copy: %s", prefix, error)
        return
    if delta is None:
        log.info("%s gets no delta: more than %.0f %% of its bytes changed", prefix, 100 * stored.MOST_SHARE)
    else:
        log.info("%s: a delta of %.1f %% of the full copy", prefix, 100 * delta.bytes / delta.full_bytes)
