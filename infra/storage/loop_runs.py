"""The newest runs of the loop's flows in the object store, loop/FLOW.json, and what they say about the loop.

Each run rewrites its object. The serving app, which holds no credential of Prefect, sees by them whether the loop goes on.
"""

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import get_args

from infra.records import LoopFlow, LoopRun
from infra.records.loop import FAILED
from infra.storage.scope import COMMON, Scope
from infra.storage.store import ObjectStore

PREFIX = "loop/"
EVERY_SECONDS: Mapping[LoopFlow, float] = {"experiment": 20.0, "cycle": 60.0}
"""Intervals of the schedules (prefect.yaml) without which nothing is learnt or watched."""
LATE_SECONDS: Mapping[LoopFlow, float] = {"experiment": 60.0, "cycle": 180.0}
"""Longest time without a run while the schedule is on."""
LONG_LOOK_SECONDS = 300.0
"""Longest run of the flow `experiment`."""
WAITING_SECONDS = 60.0
"""Longest time for which an event waits in the spool while the object store answers."""
SLOW_SECONDS = 2.0
"""An answer of Prefect's server after this time is slow."""
OF_EACH_LOOP = ("watch", "cycle")
"""Signs that a project's loop has of its own; schedules, spool and Prefect's server are the same for all loops."""


@dataclass(frozen=True)
class Sign:
    """A sign of the loop's health, for a line of `tabloop status` and of the status page."""

    name: str
    """watch, cycle, schedules, spool or prefect."""
    text: str
    ok: bool
    """Whether it is as it should be. A pause that a person asked for is."""


def key(flow: LoopFlow, scope: Scope = COMMON) -> str:
    """Return the key of the newest run of a loop's flow."""
    return f"{scope.prefix}{PREFIX}{flow}.json"


def write(store: ObjectStore, run: LoopRun) -> None:
    """Write a flow's newest run."""
    store.put_json(key(run.flow, store.scope), run)


def newest(store: ObjectStore, flow: LoopFlow) -> LoopRun | None:
    """Return a flow's newest run, or None before the first."""
    return store.find(key(flow, store.scope), LoopRun)


def read(store: ObjectStore) -> dict[str, LoopRun]:
    """Return the newest run of each flow, by its name; a flow that never ran is absent."""
    found = {flow: newest(store, flow) for flow in get_args(LoopFlow)}
    return {flow: run for flow, run in found.items() if run is not None}


def signs(
    runs: Mapping[str, LoopRun],
    now: float,
    backlog: float | None = None,
    schedules: Mapping[str, bool] | None = None,
    common: Mapping[str, LoopRun] | None = None,
) -> list[Sign]:
    """Return what the newest runs say about a loop: watch, cycle, schedules, spool.

    Args:
        runs: of `read`.
        now: Unix seconds.
        backlog: age in seconds of the oldest event in the spool; None: no line about it.
        schedules: whether each deployment's schedule is on, as Prefect says now; None: as the last run of the watch noted it.
        common: where the runs are of a project's loop, those of the common loop, whose schedules start them.
    """
    turns = common or {}
    watch = (runs if common is None else common).get("experiment")
    on = dict(schedules if schedules is not None else watch.schedules if watch else {})
    found = [
        _watch(runs.get("experiment"), now, on, turns.get("experiment")),
        _cycle(runs.get("cycle"), now, on, turns.get("cycle")),
    ]
    if on:
        off = [name for name in EVERY_SECONDS if not on.get(name, True)]
        found.append(Sign("schedules", f"off: {', '.join(off)}" if off else "on", "experiment" not in off))
    if backlog is not None:
        late = backlog > WAITING_SECONDS
        text = f"the oldest event waits for {span(backlog)}" if backlog else "empty"
        found.append(Sign("spool", text + ("; the object store does not take it" if late else ""), not late))
    return found


def prefect(runs: Mapping[str, LoopRun], now: float) -> Sign:
    """Return how Prefect's server does, as the watch's last run noted it: it starts that run, and answers its question."""
    run = runs.get("experiment")
    if run is None:
        return Sign("prefect", "has never started the watch: `tabloop status` asks it", False)
    under_way = not run.ended and now - run.began <= LONG_LOOK_SECONDS
    ago = now - (run.ended or run.began)
    if ago > LATE_SECONDS["experiment"] and not under_way:
        if run.schedules.get("experiment") is False:
            return Sign("prefect", f"not asked for {span(ago)}, since the watch's schedule is off", True)
        return Sign("prefect", f"has started no watch for {span(ago)}: `tabloop status` asks it", False)
    if run.prefect_seconds is None:
        return Sign("prefect", f"gave the watch no answer {span(ago)} ago", False)
    return Sign("prefect", f"answered in {run.prefect_seconds:.2f} s, {span(ago)} ago", run.prefect_seconds < SLOW_SECONDS)


def _watch(run: LoopRun | None, now: float, on: Mapping[str, bool], turn: LoopRun | None) -> Sign:
    if run is None:
        return Sign("watch", "never ran; no A/B test can end", False)
    if not run.ended and now - run.began <= LONG_LOOK_SECONDS:
        return Sign("watch", f"runs since {span(now - run.began)}", True)
    ended, text = run.ended or run.began, f"{run.state or 'not ended'}{_because(run)}"
    late = _idle(run, turn, now, LONG_LOOK_SECONDS) > LATE_SECONDS["experiment"]
    why = _expected("experiment", on) if late else ""
    return Sign("watch", f"last run {span(now - ended)} ago: {text}{why}", not late and run.state not in FAILED)


def _cycle(run: LoopRun | None, now: float, on: Mapping[str, bool], turn: LoopRun | None) -> Sign:
    resting = on.get("cycle") is False
    if run is None:
        return Sign("cycle", "none yet" + ("; its schedule is off: `tabloop loop resume`" if resting else ""), True)
    if not run.ended:
        return Sign("cycle", f"runs since {span(now - run.began)}", True)
    late = not resting and _idle(run, turn, now) > LATE_SECONDS["cycle"]
    why = _expected("cycle", on) if late or resting else ""
    text = f"last run {span(now - run.ended)} ago: {run.state}{_because(run)}{why}"
    return Sign("cycle", text, not late and run.state not in FAILED)


def _idle(run: LoopRun, turn: LoopRun | None, now: float, longest: float = math.inf) -> float:
    """Return for how many seconds a flow should have run again.

    A run of a project's loop is a turn of a run of the common one, in which other loops may train for hours after it.

    Args:
        turn: the newest run of the common loop; None where the run is its own.
        longest: seconds after which a run that has not ended counts as killed.
    """
    ended = run.ended or run.began
    if turn and not turn.ended and now - turn.began <= longest:
        return 0.0
    if turn and turn.ended and ended >= turn.began:
        return now - max(ended, turn.ended)
    return now - ended


def _because(run: LoopRun) -> str:
    first = run.message.strip().partition("\n")[0][:160]
    return f": {first}" if first else ""


def _expected(flow: LoopFlow, on: Mapping[str, bool]) -> str:
    """Return why a flow does not run, or when it should have."""
    if on.get(flow) is False:
        return "; its schedule is off" + (": `tabloop loop resume`" if flow == "cycle" else " in Prefect")
    return f"; expected every {EVERY_SECONDS[flow]:.0f} s: `tabloop status` shows Prefect and its worker"


def backlog(spool: Path, now: float) -> float:
    """Return the age in seconds of the oldest event of a spool that is not shipped; 0 without one."""
    opened = []
    for segment in (found for found in spool.glob("*/*.jsonl") if found.parent.name != "bad"):
        with suppress(ValueError):  # another file than a segment
            stamp = segment.name.rpartition("-")[0]
            opened.append(datetime.strptime(stamp, "%Y%m%dT%H%M%S.%f").replace(tzinfo=UTC).timestamp())
    return max(0.0, now - min(opened)) if opened else 0.0


def span(seconds: float) -> str:
    """Return a time in words, in its largest unit."""
    for size, name in ((86_400, "days"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {name}"
    return f"{max(seconds, 0):.0f} s"
