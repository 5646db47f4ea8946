"""The arms of every loop: the common one, and that of each project with a champion of its own.

The slots of all loops may be the same engine, which holds their versions as adapters. A project without an engine that holds its
version is served by the common champion, outside of the common tests: its people judge no version but its own.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from infra.records import ExperimentRecord
from serving.engine.protocol import BASE_VERSION
from serving.slots.arms import Arms, Route, Slot


@dataclass(frozen=True)
class LoopArms:
    """The arms that serve a caller, by the caller's project."""

    common: Arms
    own: Mapping[str, Arms] = field(default_factory=dict)
    """By project."""

    def of(self, project: str) -> Arms:
        """Return the arms of a project's loop, whether or not they serve."""
        return self.own.get(project, self.common)

    def serving(self, project: str) -> Arms:
        """Return the arms that serve a project now: its own while they hold a version of the registry, else the common ones."""
        own = self.own.get(project)
        version = own.champion_version if own else None
        return self.common if own is None or version in (None, BASE_VERSION) else own

    def route(self, project: str, user: str, now: float, *, experiments: bool, version: str) -> list[Route]:
        """Return the routes of a completion of a project's user, best first (Arms.route).

        Where the project has a loop of its own, the common champion comes last, unless the caller is pinned to a version that
        a common slot serves; its answer counts for the arm that the project's test assigned, also while none of the project's
        slots is up.
        """
        own = self.own.get(project)
        if own is None:
            return self.common.route(user, now, experiments=experiments, version=version)
        routes = [each for each in own.route(user, now, experiments=experiments, version=version) if each.version != BASE_VERSION]
        test, arm = own.assignment(user, now) if experiments and not version else ("", "")
        if not test and self.serving(project) is self.common:
            routes = []
        common = self.common.route(user, now, experiments=False, version=version)
        found = routes + [replace(route, assigned=test, assigned_arm=arm) for route in common]
        return sorted(found, key=lambda route: not route.pinned)

    def pinned(self, project: str, arm: str, version: str) -> Route:
        """Return the route of a completion pinned to an arm of the project's loop, or to a version. Raises as Arms.pinned."""
        return self.serving(project).pinned(arm, version)

    def shadow(self, project: str, now: float) -> tuple[ExperimentRecord, Slot] | None:
        """Return the project's test whose challenger answers copies now, and its slot (Arms.shadow)."""
        return self.of(project).shadow(now)
