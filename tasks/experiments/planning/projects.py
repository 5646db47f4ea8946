"""Which projects have enough users and requests for a champion of their own (serving.projects.NAME.own_champion)."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from infra.settings import Settings
from tasks.experiments.counting.traffic import Traffic
from tasks.experiments.planning import few
from tasks.labels.measures import MOST_PROJECTS


@dataclass(frozen=True)
class ProjectSize:
    """A project's recent traffic, and what it is too little for."""

    project: str
    own_champion: bool
    """Whether the settings give it a champion of its own."""
    users: int
    """Users with a history, whether or not they take part in tests."""
    requests_per_day: float
    lacks: tuple[str, ...]
    """What it is too little for, each with the reason; empty: the project is large enough."""

    @property
    def large_enough(self) -> bool:
        """Whether its people alone can fill a cycle and decide an A/B test."""
        return not self.lacks

    def __str__(self) -> str:
        verdict = "large enough for a champion of its own" if self.large_enough else f"too small: {'; '.join(self.lacks)}"
        has = ", and has one" if self.own_champion and self.large_enough else ", but has one" if self.own_champion else ""
        return f"{self.project}: {self.users} users, {self.requests_per_day:.0f} requests a day: {verdict}{has}"


def sizes(traffic: Mapping[str, Traffic], settings: Settings, now: float) -> tuple[ProjectSize, ...]:
    """Return the size of each project, the one with the most requests first; `now` in Unix seconds."""
    found = [
        ProjectSize(
            name, name in settings.serving.own_champions, each.users, each.per_day, tuple(_lacks(name, each, settings, now))
        )
        for name, each in traffic.items()
    ]
    return tuple(sorted(found, key=lambda size: (-size.requests_per_day, size.project)))


def page(found: Sequence[ProjectSize]) -> str:
    """Return the sizes as text, a line each; empty where there is one project, which has no champion of its own."""
    if len(found) < 2 and not any(size.own_champion for size in found):
        return ""
    largest = ", the largest and those of the settings" if len(found) >= MOST_PROJECTS else ""
    return "\n".join([f"Projects{largest} (serving.projects.NAME.own_champion):", *(f"  {size}" for size in found)])


def _lacks(project: str, traffic: Traffic, settings: Settings, now: float) -> Iterator[str]:
    own = settings.serving.projects.get(project)
    if own and own.own_champion and not own.experiments:
        yield f"test: nobody takes part, since serving.projects.{project}.experiments = false"
    share = min(settings.collect.max_user_share, settings.collect.max_user_weight)
    if traffic.users < (least := math.ceil(1 / share)):
        name = "max_user_share" if share == settings.collect.max_user_share else "max_user_weight"
        yield f"cycle: it needs {least} users or more, since collect.{name} = {share:g}"
        return  # without them, the errors of a test mean nothing
    yield from (f"{each.what}: {each.reason}" for each in few.too_few(traffic, settings, now))
