"""What the status routes show, of the common loop and of each project with a champion of its own, and to whom."""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from serving.access import Access, Credential
from serving.access.callers import PROJECT, PROJECT_RULE
from serving.gateway.drain import Drain
from serving.gateway.errors import BadRequest
from serving.metrics import Metrics
from serving.recording.shipping import Shipper
from serving.recording.spool import Spool
from serving.slots.arms import Arms
from serving.status.data import Links, StatusData

MOST_NAMED = 30
"""Most projects that a page or an error lists beside those of the settings: a token may make up any number of names."""


@dataclass(frozen=True)
class Loop:
    """The common loop, or that of a project with a champion of its own."""

    arms: Arms
    data: StatusData

    @property
    def project(self) -> str:
        """Empty: the common loop."""
        return self.data.project

    async def refresh(self) -> None:
        """Read what the loop's page shows (StatusData.refresh)."""
        await self.data.refresh(self.arms.experiment)


@dataclass(frozen=True)
class StatusSources:
    """The parts of the app whose state the routes show."""

    access: Access
    arms: Arms
    spool: Spool
    shipper: Shipper
    metrics: Metrics
    data: StatusData
    links: Links
    drain: Drain
    clock: Callable[[], float] = time.time
    own_arms: Mapping[str, Arms] = field(default_factory=dict)
    """The arms of projects with a champion of their own."""

    @property
    def common(self) -> Loop:
        return Loop(self.arms, self.data)

    def own(self, credential: Credential) -> list[str]:
        """Return the projects with a champion of their own that a token may name."""
        return sorted(project for project in self.own_arms if credential.may_name(project))

    def loops(self, credential: Credential) -> list[Loop]:
        """Return the loops that a token may see, the common one first."""
        return [self.common, *(self._of(project) for project in self.own(credential))]

    def loop(self, project: str, credential: Credential) -> Loop:
        """Return a project's loop; the common one where no project is given.

        Raises:
            Denied: 403 if the token may not name the project.
            BadRequest: the project has no champion of its own.
        """
        if not project:
            return self.common
        self.check_name(project, credential)
        if project not in self.own_arms:
            names = " or ".join(self.own(credential)) or "none, since no project has a champion of its own"
            raise BadRequest(f"project: expected {names}, got {project!r}; no project stands for the common loop", "project", 404)
        return self._of(project)

    def page_loop(self, project: str, credential: Credential) -> Loop:
        """Return the loop of the page of a project: its own, else the common one, whose figures by project are then its.

        The raised errors are those of `loop`; BadRequest for a project that the app does not know at all.
        """
        if project in self.own_arms or not project:
            return self.loop(project, credential)
        self.check_name(project, credential)
        known = self.projects(credential)
        if project not in known and "cycles" not in self.data.problems:  # not read, they may name it
            listed, more = self.listed(known)
            names = " or ".join([*listed, *([f"one of {more} more"] if more else [])]) or "none, since no project was seen yet"
            raise BadRequest(f"project: expected {names}, got {project!r}; no project stands for the common loop", "project", 404)
        return self.common

    def projects(self, credential: Credential) -> list[str]:
        """Return the projects that the app knows and a token may name: of the settings, of cycles, and of latest requests."""
        served = {served.project for cycle in self.data.cycles for served in cycle.manifest.served}
        known = served | set(self.metrics.seen_projects()) | self._set
        return sorted(project for project in known if project and credential.may_name(project))

    @property
    def _set(self) -> set[str]:
        """The projects of the settings."""
        return set(self.access.projects) | set(self.own_arms)

    def listed(self, projects: Iterable[str]) -> tuple[list[str], int]:
        """Return the names to list, sorted, and how many are left out.

        The projects of the settings are all listed, of the others the MOST_NAMED with the most of the latest requests.
        """
        seen, of_settings = self.metrics.seen_projects(), self._set
        own, others = [name for name in projects if name in of_settings], [name for name in projects if name not in of_settings]
        others.sort(key=lambda name: (-seen[name], name))
        return sorted([*own, *others[:MOST_NAMED]]), len(others[MOST_NAMED:])

    def check_name(self, project: str, credential: Credential) -> None:
        """Raise BadRequest if a name is no project's, and Denied if the token may not name it."""
        if not PROJECT.fullmatch(project):
            raise BadRequest(f"project: expected {PROJECT_RULE}, got {project[:64]!r}", "project")
        credential.require_project(project, "project")

    async def measure(self) -> None:
        """Measure the spool now: while the object store is unavailable, the shipper measures it less and less often."""
        await asyncio.to_thread(self.spool.measure)

    @property
    def ready(self) -> bool:
        """Whether the app serves completions."""
        return self.arms.ready and not self.drain.began

    def status(self, loop: Loop, credential: Credential) -> dict[str, Any]:
        """Return what GET /admin/status answers about a loop."""
        arms, spool, roles = loop.arms, self.spool, roles_of(loop.arms)
        slots = [
            {
                "slot": slot.index,
                "url": slot.engine.url,
                "role": roles.get(slot.index, "idle"),
                "version": slot.version,
                "up": slot.up,
                "state": slot.state,
                "in_flight": slot.in_flight,
            }
            for slot in arms.slots
        ]
        own = {} if loop.project else {project: self.own_arms[project] for project in self.own(credential)}
        return {
            "ready": self.ready,
            **_versions(arms),
            "experiment": arms.experiment.model_dump() if arms.experiment else None,
            "projects": {project: _versions(each) for project, each in own.items()},
            "slots": slots,
            "problems": arms.problems | _own_problems(own) | self.access.problems,
            "spool": {
                "bytes": spool.bytes,
                "segments": spool.segments,
                "oldest_seconds": spool.oldest,
                "set_aside": spool.set_aside,
            },
            "shipped": self.shipper.shipped,
            "store_error": self.shipper.error,
        }

    def _of(self, project: str) -> Loop:
        return Loop(self.own_arms[project], self.data.of(project))


def roles_of(arms: Arms) -> dict[int | None, str]:
    """Return the role of each slot that has one, by its index."""
    return {arms.champion: "champion", arms.challenger: "challenger"}


def _versions(arms: Arms) -> dict[str, str | None]:
    """Return the versions that serve as champion and challenger."""
    slots = {role: arms.slots[index].version for index, role in roles_of(arms).items() if index is not None}
    return {role: slots.get(role) for role in ("champion", "challenger")}


def _own_problems(own: Mapping[str, Arms]) -> dict[str, str]:
    """Return the problems of the projects' loops; the registry's are the common loop's too."""
    found = {f"{project}: {part}": text for project, arms in own.items() for part, text in arms.problems.items()}
    return {part: text for part, text in found.items() if not part.endswith(": registry")}
