"""The report of `tabloop plan`: what a team's tests can find, the next test, and what the traffic is too little for."""

from infra.records.few import Few
from infra.settings import Settings
from infra.storage import few as log
from infra.storage.store import ObjectStore
from tasks.experiments.counting.traffic import recent
from tasks.experiments.planning import few
from tasks.experiments.planning.plan import make_plan
from tasks.experiments.planning.planner import page, propose, prospects


class NothingToPlan(ValueError):
    """There is no recent traffic to plan from."""


def report(store: ObjectStore, settings: Settings, now: float, days: float) -> str:
    """Return what the team can find out from the traffic of the last `days`, the next test, and what is too little for either.

    Raises:
        NothingToPlan: a test would count none of the requests.
    """
    plan = make_plan(settings.experiment, settings.collect)
    traffic = recent(store, settings, plan, now, days)
    if not traffic.sums["judged"].sum():
        raise NothingToPlan(f"no request of the last {days:g} days that a test would count; try `tabloop plan --days 28`")
    proposal = propose(traffic, settings.experiment, settings.collect)
    found = few.too_few(traffic, settings, now)
    return "\n".join(filter(None, (page(prospects(traffic, plan), traffic, plan, proposal), few.page(found))))


def record(store: ObjectStore, settings: Settings, now: float) -> tuple[Few, ...]:
    """Write what the traffic of the last week is too little for, once a day, and return it."""
    traffic = recent(store, settings, make_plan(settings.experiment, settings.collect), now)
    return tuple(log.write(store, each) for each in few.too_few(traffic, settings, now))
