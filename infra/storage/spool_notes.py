"""Notes of spools in the object store, spools/SPOOL.json, one for each spool that is not known to be empty.

A replica rewrites its note while it runs and removes it at an end that left nothing. So a note that nobody rewrites is the spool
of a replica that is gone: killed, or scaled away while the store did not answer.
"""

from collections.abc import Mapping

from infra.records import SpoolNote
from infra.storage.store import ObjectStore

PREFIX, SUFFIX = "spools/", ".json"
EVERY_SECONDS = 60.0
"""Interval at which a replica rewrites its note."""
GONE_SECONDS = 300.0
"""A note that is older than the newest one by this is that of a replica that is gone."""


def key(spool: str) -> str:
    return f"{PREFIX}{spool}{SUFFIX}"


def write(store: ObjectStore, spool: str, note: SpoolNote) -> None:
    store.put_json(key(spool), note)


def remove(store: ObjectStore, spool: str) -> None:
    """Remove the note of a spool that is empty."""
    store.delete(key(spool))


def left(store: ObjectStore) -> Mapping[str, SpoolNote]:
    """Return the notes of replicas that are gone, by the name of their spool.

    Ages are differences of the store's own times, so that no clock of a replica matters. Only old notes are read.
    """
    written = dict(store.written(PREFIX))
    newest = max(written.values(), default=0.0)
    old = [each for each, time in written.items() if newest - time > GONE_SECONDS]
    notes = {each.removeprefix(PREFIX).removesuffix(SUFFIX): store.find(each, SpoolNote) for each in old}
    return {spool: note for spool, note in notes.items() if note}  # one that has gone meanwhile is shipped
