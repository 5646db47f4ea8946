"""Remove feedback with text whose completion is opted out.

The app that served a completion remembers the opt-out (serving/recording/opt_outs.py). Another replica, or one without its file,
keeps the text of an event that does not repeat the header. Such an event that names its completion is found here; one that names
only a position is not, since the completion's own record has no position. Counted hours that were made from it are made again.
"""

import math

from infra.redaction.events import FEEDBACK_TEXTS
from infra.storage import counted
from infra.storage.events import segments
from infra.storage.events.read import column, is_shipped, parts_of
from infra.storage.store import ObjectStore
from tasks.labels.counted import EVERYTHING
from tasks.labels.window import segments_after
from tasks.upkeep.forget import remove_brought_back, remove_rows

COMPLETIONS, FEEDBACK = "events/completions/", "events/feedback/"


def clean(store: ObjectStore, *, dry_run: bool) -> dict[str, int]:
    """Remove these events, or count them where `dry_run`; return their number by object."""
    opted_out = _opted_out(store)
    found: dict[str, int] = {}
    for key in list(filter(is_shipped, store.keys(FEEDBACK))) if opted_out else ():
        try:
            parts = parts_of(store, key, store.get(key))
        except KeyError:  # compaction has removed it since the listing, and its container is among the others
            continue
        named = frozenset(name for part in parts for name in _with_text(part) if name in opted_out)
        if named:
            for made in counted.made_from(store, [part.key for part in parts]) if not dry_run else ():
                counted.remove(store, made)
            found[key] = remove_rows(store, key, parts, [("completion_id", named)], dry_run=dry_run)
    if not dry_run:
        remove_brought_back(store, list(found))
    return found


def _opted_out(store: ObjectStore) -> frozenset[str]:
    """Return the ids of the completions that are opted out."""
    names: set[str] = set()
    shipped = list(filter(is_shipped, store.keys(COMPLETIONS)))
    for _, part in segments_after(store, shipped, EVERYTHING, -math.inf, ("id", "opted_out")):
        rows = zip(column(part.table, "id"), column(part.table, "opted_out"), strict=True)
        names.update(str(name) for name, opted_out in rows if opted_out is True)
    return frozenset(names)


def _with_text(part: segments.Segment) -> list[str]:
    """Return the completions that events with text name."""
    texts = zip(*(column(part.table, name) for name in FEEDBACK_TEXTS), strict=True)
    return [str(name) for name, row in zip(column(part.table, "completion_id"), texts, strict=True) if name and any(row)]
