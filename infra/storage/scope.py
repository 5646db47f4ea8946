"""The part of the bucket that one loop reads and writes: the common loop, or that of a project with a champion of its own.

Both share events, checkpoints, experiments, decisions and looks, whose keys name a version or a cycle. A project's cycles have
the project in their ids, and its log of moves, requests for moves and notes lie under projects/PROJECT/.
"""

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from infra.settings import Settings

if TYPE_CHECKING:
    from infra.storage.store import ObjectStore

S = TypeVar("S", bound="ObjectStore")


@dataclass(frozen=True)
class Scope:
    """A loop, by the projects whose events are its own."""

    project: str = ""
    """The project with a champion of its own; empty: the common loop."""
    apart: frozenset[str] = frozenset()
    """Projects with a champion of their own, whose events the common loop does not read."""

    @property
    def prefix(self) -> str:
        """Prefix of the keys of the loop's moves, requests for moves and notes; empty for the common loop."""
        return f"projects/{self.project}/" if self.project else ""

    @property
    def is_whole(self) -> bool:
        """Whether the events of every project are the loop's."""
        return not self.project and not self.apart

    def holds(self, project: str) -> bool:
        """Return whether the events of a project are the loop's."""
        return project == self.project if self.project else project not in self.apart

    def view(self, store: S) -> S:
        """Return a client of the same bucket that reads and writes as this loop does."""
        viewed = copy.copy(store)
        viewed.scope = self
        return viewed


COMMON = Scope()
"""The common loop where no project has one of its own: it reads all events."""


class NoOwnChampion(ValueError):
    """A project is named that has no champion of its own by the settings."""


def scope_of(settings: Settings, project: str = "") -> Scope:
    """Return the scope of a project's loop, or of the common loop.

    Raises:
        NoOwnChampion: the settings give the project no champion of its own.
    """
    own = settings.serving.own_champions
    if project and project not in own:
        names = " or ".join(sorted(own)) or "none, since no project has a champion of its own"
        raise NoOwnChampion(
            f"project = {project!r}, expected {names}; set own_champion = true in [serving.projects.{project}] of the "
            "settings, and run `tabloop restart`"
        )
    return Scope(project) if project else Scope(apart=own)


def scopes_of(settings: Settings) -> tuple[Scope, ...]:
    """Return the scopes of all loops, the common one first."""
    return (scope_of(settings), *(scope_of(settings, project) for project in sorted(settings.serving.own_champions)))
