"""The moves of versions in words, from the object store alone."""

from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice

from infra import moves as log
from infra.records import Change, Move
from infra.store import ObjectStore

KINDS = {"by_hand": "by hand", "roll_back": "roll back"}


def history(store: ObjectStore, count: int) -> Iterator[str]:
    """Yield a line for each of the last moves, oldest first.

    Args:
        store: the object store.
        count: most moves to show.
    """
    yield from map(line, reversed(list(islice(log.backwards(store), count))))


def line(move: Move) -> str:
    """Return a move as a line."""
    changes = ", ".join(map(_change, move.changes))
    asked = f"{KINDS.get(move.kind, move.kind)}, by {move.by}"
    return f"{move.number:>5}  {when(move.time)}  {asked}: {changes}: {move.reason}"


def when(seconds: float) -> str:
    """Return a time in words."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _change(change: Change) -> str:
    return f"version {change.version} {change.before.replace('_', ' ')} -> {change.after.replace('_', ' ')}"
