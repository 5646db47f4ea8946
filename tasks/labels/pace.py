"""When a window will hold enough samples for a cycle, at the rate so far. Pure."""

from infra.records.few import Few
from tasks.labels.window import WINDOW_SECONDS

DAY = 86_400.0
LEAST_SECONDS = DAY
"""Seconds of requests from which a rate is known: nights have none."""
ROOM = 0.8
"""Share of the samples of a full window that a cycle may ask for: traffic varies."""


def too_slow(samples: int, asked: int, seconds: float, now: float) -> Few | None:
    """Return when a window with too few samples will hold enough, and what to change if it never will.

    Args:
        samples: samples of the window, fewer than `asked` (collect.min_samples).
        seconds: from its first request until its last; None is returned below LEAST_SECONDS, when no rate is known.
    """
    if seconds < LEAST_SECONDS:
        return None
    per_day, days = samples / seconds * DAY, WINDOW_SECONDS / DAY
    reason = f"{per_day:.0f} samples a day, collect.min_samples asks for {asked} in the window of {days:g} days"
    most = int(per_day * days)
    if most >= asked:
        return Few(what="cycle", time=now, reason=reason, possible=now + (asked - samples) / per_day * DAY, change="")
    fitting = int(ROOM * most)
    change = f"Set collect.min_samples to at most {fitting}, or serve" if fitting else "Serve"
    change += " more developers or projects with one model; settled text makes samples of requests that no editor reports"
    return Few(what="cycle", time=now, reason=reason, possible=None, change=f"{change} (collect.hindsight.on)")
