"""Whether a team's traffic can fill a cycle and a test within their bounds, when it will, and what to change instead."""

import math
from collections.abc import Callable, Mapping, Sequence

from infra.pages.experiment_view import duration
from infra.records import Plan
from infra.records.experiments import Design
from infra.records.few import Few
from infra.settings import Settings
from infra.settings.schema import Experiment
from infra.storage import few
from tasks.experiments.counting.traffic import DAY, Traffic
from tasks.experiments.planning import planner
from tasks.experiments.planning.plan import make_plan
from tasks.experiments.planning.planner import Errors
from tasks.labels.pace import too_slow
from tasks.labels.window import WINDOW_SECONDS

MOST_DAYS = 730.0
"""Days beyond which no test is worth waiting for."""


def too_few(traffic: Traffic, settings: Settings, now: float) -> tuple[Few, ...]:
    """Return what this traffic is too little for: a cycle, a test, both or neither."""
    return tuple(filter(None, (_cycle(traffic, settings, now), _test(traffic, settings, now))))


def _cycle(traffic: Traffic, settings: Settings, now: float) -> Few | None:
    """Return why no cycle begins, even if each request became a sample."""
    most, asked = (traffic.per_day + traffic.outside_tests) / traffic.share * WINDOW_SECONDS / DAY, settings.collect.min_samples
    return too_slow(round(most), asked, WINDOW_SECONDS, now) if most < asked else None


def _test(traffic: Traffic, settings: Settings, now: float) -> Few | None:
    """Return why no test of the longest duration finds the gain that is asked for, or in the mode without inferiority proves
    anything, and how long one would take."""
    plan, gain = make_plan(settings.experiment, settings.collect), settings.experiment.gain
    longest = settings.experiment.max_seconds / DAY or planner.MAX_DAYS
    counted, errors, lacks = planner.possible_designs(traffic, settings.experiment, plan)
    if not errors:
        return _found(
            now, f"An A/B test cannot end with a verdict, since there are too few users or labels ({lacks[-1]})", None, ""
        )

    if plan.mode == "non_inferiority":
        return None if planner.all_set(settings.experiment) else _unproven(counted, plan, errors, settings.experiment, now)

    def finds(days: float) -> float:
        """Return the smallest gain that is found in so many days."""
        gains = []
        for design, each in errors.items():
            margins = planner.widened_margins(counted[design], plan, each.covariance(days))
            gains.append(planner.smallest(counted[design], plan, each, days, margins))
        return min(gains)

    found = finds(longest)
    if found <= gain:
        return None
    days = _enough(finds, gain, longest)
    least = f"the smallest that it finds is +{found:.0%}" if math.isfinite(found) else "it finds none"
    asked = f"experiment.gain asks for a test that finds +{gain:.0%}, and {longest:g} days are the longest"
    of_gain = f"Set experiment.gain to {math.ceil(found * 100) / 100:g}, or " if found <= planner.HOPELESS else "Else "
    return _found(now, f"{asked}: with {traffic.per_day:.0f} requests a day {least}", days, of_gain)


def _unproven(
    counted: Mapping[Design, Traffic], plan: Plan, errors: Mapping[Design, Errors], settings: Experiment, now: float
) -> Few | None:
    """Return why no test in the mode without inferiority proves that accepts stay, and how long one would take."""

    def shows(days: float) -> float:
        """Return the smallest loss of accepts that a test of so many days can exclude."""
        return min(planner.shown_accepts(counted[design], plan, each.covariance(days)) for design, each in errors.items())

    longest = planner.possible_days(settings)[-1]
    if (found := shows(longest)) <= planner.MOST_MARGIN:
        return None
    days = _enough(shows, planner.MOST_MARGIN, longest)
    length = f"{longest:g} days" if longest >= 1 else duration(longest * DAY)
    longer = f"Set experiment.max_seconds to {math.ceil(days) * DAY:.0f}, or let" if days else "Let"
    return Few(
        what="test",
        time=now,
        reason=f"In {length}, the longest test without inferiority, one can show only that accepts fall by less than {found:.0%}",
        possible=None if days is None else now + days * DAY,
        change=f"{longer} more developers take part (serving.terms.experiments)",
    )


def _enough(finds: Callable[[float], float], gain: float, longest: float) -> float | None:
    """Return the days of a test that finds the gain; None above MOST_DAYS."""
    low, high = longest, longest
    while finds(high) > gain:
        low, high = high, 2 * high
        if low > MOST_DAYS:
            return None
    for _ in range(6):
        middle = (low + high) / 2
        low, high = (low, middle) if finds(middle) <= gain else (middle, high)
    return high


def _found(now: float, reason: str, days: float | None, first: str) -> Few:
    change = (
        f'{first}let more developers take part (serving.terms.experiments), or set experiment.mode = "non_inferiority": '
        "shadow, ramp and watch then keep harm away, and no gain is shown"
    )
    possible = None if days is None else now + days * DAY
    return Few(what="test", time=now, reason=reason, possible=possible, change=change[0].upper() + change[1:])


def page(found: Sequence[Few]) -> str:
    """Return the findings as text, a line each."""
    return "\n".join(f"Too few for a {each.what}: {few.in_words(each)}." for each in found)
