"""How far the chances can be trusted by which the champion showed its completions in the closing comparison."""

import time
from collections.abc import Callable, Set

from evals.developers import PairedRun
from infra.storage.events.read import event_keys, fetch
from infra.storage.store import ObjectStore
from tasks.showing.reliability import Reliability, reliability

CHAMPION = 1
"""Place of the champion among the pins of a paired run."""
SHIP_SECONDS = 30.0
"""Longest wait for the last events to reach the object store."""


def calibration(
    store: ObjectStore, since: float, paired: PairedRun, clock: Callable[[], float] = time.time
) -> Reliability | None:
    """Return the reliability of the champion's chances at the places of a paired run; None without an estimate.

    A shown completion is kept if all of it is what the place's file goes on with.

    Args:
        since: when the run began, in Unix seconds.
        clock: Unix seconds.
    """
    kept = {
        pair.ids[CHAMPION]: outcome.kept >= len(outcome.shown.rstrip())
        for pair in paired.pairs
        if (outcome := pair.outcomes[CHAMPION]).shown.strip()
    }
    chances = recorded_chances(store, since, kept.keys(), clock)
    if not chances:
        return None
    return reliability(list(chances.values()), [float(kept[name]) for name in chances])


def recorded_chances(
    store: ObjectStore, since: float, wanted: Set[str], clock: Callable[[], float] = time.time, wait: float = SHIP_SECONDS
) -> dict[str, float]:
    """Return the chances by which some completions were shown, by id, once all of them have reached the object store.

    Those that an audit showed whole are left out, and those that no estimate decided on.
    """
    deadline, found = time.monotonic() + wait, dict[str, float | None]()
    while True:
        for _, part in fetch(store, event_keys(store, "completions", since, clock()), ("id", "chance", "audited")):
            rows = part.table.select(["id", "chance", "audited"]).to_pylist() if "chance" in part.table.column_names else []
            found |= {row["id"]: None if row["audited"] else row["chance"] for row in rows if row["id"] in wanted}
        if len(found) == len(wanted) or time.monotonic() > deadline:
            return {name: chance for name, chance in found.items() if chance is not None}
        time.sleep(1.0)
