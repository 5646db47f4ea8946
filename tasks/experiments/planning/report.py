"""The report of `tabloop plan`: what a team's tests can find, the next test, and what the traffic is too little for."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from infra.records import Plan
from infra.records.few import Few
from infra.settings import Settings
from infra.storage import few as log
from infra.storage.store import ObjectStore
from tasks.experiments.counting.traffic import Traffic, by_project, recent
from tasks.experiments.planning import few, projects
from tasks.experiments.planning.plan import make_plan
from tasks.experiments.planning.planner import Proposal, Prospect, page, propose, prospects
from tasks.experiments.planning.projects import ProjectSize
from tasks.labels.pipeline import JoinAll


class NothingToPlan(ValueError):
    """There is no recent traffic to plan from."""


@dataclass(frozen=True, eq=False)
class Outlook:
    """What a team can find out from its recent traffic, the next test, and what is too little for either."""

    prospects: tuple[Prospect, Prospect]
    traffic: Traffic
    plan: Plan
    proposal: Proposal
    too_little: Sequence[Few]
    projects: Sequence[ProjectSize] = ()
    """Every project, where the common loop's traffic is planned from."""

    def __str__(self) -> str:
        planned = page(self.prospects, self.traffic, self.plan, self.proposal)
        return "\n".join(filter(None, (planned, few.page(self.too_little), projects.page(self.projects))))

    def values(self) -> dict[str, object]:
        """Return it as JSON values; a gain that no test detects is null."""
        found = [asdict(prospect) for prospect in self.prospects]
        for prospect in found:
            prospect["smallest"] = {name: gain if math.isfinite(gain) else None for name, gain in prospect["smallest"].items()}
        return {
            "users": self.traffic.users,
            "requests_per_day": self.traffic.per_day,
            "share_of_users": self.traffic.share,
            "acceptance": self.traffic.mean("accepted", "shown"),
            "prospects": found,
            "next": {"reason": self.proposal.reason, "experiment": self.proposal.settings.model_dump(mode="json")},
            "too_little": [each.model_dump(mode="json") for each in self.too_little],
            "projects": [asdict(size) | {"large_enough": size.large_enough} for size in self.projects],
        }


def outlook(store: ObjectStore, settings: Settings, now: float, days: float) -> Outlook:
    """Return what the team can find out from the traffic of the last `days`, the next test, and what is too little for either.

    The traffic is that of the store's loop; of the common one with the size of every project.

    Raises:
        NothingToPlan: a test would count none of the requests.
    """
    plan = make_plan(settings.experiment, settings.collect)
    traffic = recent(store, settings, plan, now, days)
    if not traffic.sums["judged"].sum():
        more = "try `tabloop plan --days 28`" if days < 28 else "`tabloop status` shows whether requests and events arrive"
        raise NothingToPlan(
            f"no request of the last {days:g} days that a test would count: of people who take part (serving.terms.experiments, "
            f"serving.projects), with an answer; {more}"
        )
    proposal = propose(traffic, settings.experiment, settings.collect)
    sizes = () if store.scope.project else projects.sizes(by_project(store, settings, plan, now, days), settings, now)
    return Outlook(prospects(traffic, plan), traffic, plan, proposal, few.too_few(traffic, settings, now), sizes)


def record(store: ObjectStore, settings: Settings, now: float, join_all: JoinAll | None = None) -> tuple[Few, ...]:
    """Write what the traffic of the last week is too little for, once a day, and return it; `join_all` as in read_requests."""
    traffic = recent(store, settings, make_plan(settings.experiment, settings.collect), now, join_all=join_all)
    return tuple(log.write(store, each) for each in few.too_few(traffic, settings, now))
