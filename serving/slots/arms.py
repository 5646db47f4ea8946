"""The routing of requests: two slots, the versions they hold, and the sticky split of an experiment's users."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from infra.assignment import assigned_arm, divides
from infra.model.showing import Estimate
from infra.records import Arm, ExperimentRecord
from serving.slots.client import SlotEngine


class NotServed(LookupError):
    """No slot that is up serves the requested arm or version."""


@dataclass
class Slot:
    """An engine and its last known state."""

    index: int
    engine: SlotEngine
    version: str | None = None
    """Version that the engine holds; None while it does not answer."""
    pid: int | None = None
    source: str = ""
    """Source of the version that the engine loaded; empty if that is not known."""
    estimate: Estimate | None = None
    """The version's estimate of kept text; None: all is shown."""
    in_flight: int = 0
    """Number of completions that this app has running in the engine."""
    verified: tuple[int | None, str | None] = (None, None)
    """Process and version that passed the smoke test; the slot takes traffic only while they match `pid` and `version`."""
    closed: bool = False
    """Whether another version is about to be loaded: the slot takes no traffic meanwhile."""
    state: str = "down"
    """Description for the status page."""

    @property
    def up(self) -> bool:
        """Whether the slot takes traffic."""
        return self.version is not None and not self.closed and self.verified == (self.pid, self.version)


@dataclass(frozen=True)
class Route:
    """The slot and version of one completion, and the arm and experiment that it counts for."""

    slot: Slot
    version: str
    arm: Arm
    experiment: str
    """Empty if the answering version is not the assigned arm's."""
    pinned: bool = False
    estimate: Estimate | None = None
    """The estimate that decides how much is shown; None: all is shown."""
    assigned: str = ""
    """Experiment that assigns the request, independent of the version that answers it; empty if none does."""
    assigned_arm: Arm | Literal[""] = ""
    """Arm that it assigns."""
    sampled_as: Arm = "champion"
    """The arm whose sampling settings apply. The version that a champion is compared with is sampled with the champion's
    settings."""


@dataclass
class Arms:
    """The slots of champion and challenger. The follower sets them; requests read them."""

    slots: tuple[Slot, Slot]
    champion: int | None = None
    """Index of the champion's slot."""
    challenger: int | None = None
    """Index of the challenger's slot; None if there is no challenger or its slot is not ready."""
    experiment: ExperimentRecord | None = None
    """The running test."""
    beside: ExperimentRecord | None = None
    """The comparison of the champion with an earlier version while no test runs: its probation, or the anchor."""
    problems: dict[str, str] = field(default_factory=dict)
    """The follower's current failures by role or part, for the status page."""
    _met: str = ""
    """Id of the experiment whose two versions were up at once since this app started."""

    @property
    def ready(self) -> bool:
        """Whether a slot serves the champion."""
        return self._slot("champion") is not None

    @property
    def champion_version(self) -> str | None:
        """The version in the champion's slot; None while that is not up."""
        slot = self._slot("champion")
        return slot.version if slot else None

    def route(self, user: str, now: float, *, experiments: bool = True, version: str = "") -> list[Route]:
        """Return the routes for a user's completion at a time, best first; the others replace an engine that fails.

        A user pinned to a version gets it if a slot holds it; a user without experiments gets the champion. An experiment
        begins once both arms serve the versions it compares: otherwise users of the missing arm would drop out of the
        comparison and users of the other arm would not. From then on it assigns every request, even while an engine is down and
        the other version answers: these requests count against a version that crashes. Each version is shown by its own
        estimate, as after a promotion: otherwise an estimate would reach users untested.

        Users are named by keyed hash. `now`, in Unix seconds, is the event's time too.
        """
        up = [slot for slot in self.slots if slot.up]
        routes = [self._route(slot, self._role(slot), "", pinned=True) for slot in up if slot.version == version]
        if (running := self.experiment or self.beside) and experiments and not version and divides(running, now):
            return self._divided(running, up, assigned_arm(running, user, now))
        return _one_of_each_slot(routes + self._others(up))

    def assignment(self, user: str, now: float) -> tuple[str, Arm | Literal[""]]:
        """Return the experiment that assigns a user's completion at a time, and the arm, also while no slot is up; empty if none
        does."""
        running = self.experiment or self.beside
        if running is None or running.id != self._met or not divides(running, now):
            return "", ""
        return running.id, assigned_arm(running, user, now)

    def _divided(self, running: ExperimentRecord, up: Sequence[Slot], arm: Arm) -> list[Route]:
        """Return the routes of a request of an experiment."""
        slots = {version: slot for slot in up if (version := slot.version) in (running.champion, running.challenger)}
        if len(slots) == 2:
            self._met = running.id
        if self._met != running.id:
            return _one_of_each_slot(self._others(up))
        routes = []
        if slot := slots.get(running.challenger if arm == "challenger" else running.champion):
            route = self._route(slot, arm, running.id)
            routes.append(replace(route, sampled_as="champion") if running.stage.name in ("watch", "anchor") else route)
        return [replace(route, assigned=running.id, assigned_arm=arm) for route in _one_of_each_slot(routes + self._others(up))]

    def _others(self, up: Sequence[Slot]) -> list[Route]:
        """Return the routes of a request without an experiment: the champion's slot, then any slot that is up."""
        champion = self._slot("champion")
        return [self._route(slot, self._role(slot), "") for slot in [*([champion] if champion else []), *up]]

    def shadow(self, now: float) -> tuple[ExperimentRecord, Slot] | None:
        """Return the test whose challenger answers copies now, and its slot; None without such a test, or before a slot holds its
        version.

        A slot that fails later is still returned: copies fail with it.
        """
        running, champion = self.experiment, self._slot("champion")
        if running is None or running.stage_at(now).name != "shadow" or not champion or champion.version != running.champion:
            return None
        slot = self.slots[1 - champion.index]
        if slot.up and slot.version == running.challenger:
            self._met = running.id
        return (running, slot) if self._met == running.id else None

    def pinned(self, arm: str = "", version: str = "") -> Route:
        """Return the route of a completion pinned to an arm or a version.

        Raises:
            ValueError: the arm has another name.
            NotServed: no slot that is up serves that arm or holds that version.
        """
        if arm not in ("", "champion", "challenger"):
            raise ValueError(f"X-Tabloop-Arm: {arm!r} is neither champion nor challenger")
        for slot in self.slots:
            in_arm = not arm or slot is self._slot(arm)
            if slot.up and in_arm and version in ("", slot.version):
                return self._route(slot, self._role(slot), "", pinned=True)
        versions = ", ".join(f"slot {s.index}: {s.version or 'down'}" for s in self.slots)
        raise NotServed(f"no slot serves {f'arm {arm}' if arm else ''}{f' version {version}' if version else ''} ({versions})")

    def _role(self, slot: Slot) -> Arm:
        return "challenger" if slot.index == self.challenger else "champion"

    def _slot(self, arm: str) -> Slot | None:
        index = self.champion if arm == "champion" else self.challenger
        return self.slots[index] if index is not None and self.slots[index].up else None

    @staticmethod
    def _route(slot: Slot, arm: Arm, experiment: str, *, pinned: bool = False) -> Route:
        assert slot.version is not None
        return Route(slot, slot.version, arm, experiment, pinned, slot.estimate, sampled_as=arm)


def _one_of_each_slot(routes: Sequence[Route]) -> list[Route]:
    """Return the first route of each slot."""
    first: dict[int, Route] = {}
    for route in routes:
        first.setdefault(route.slot.index, route)
    return list(first.values())
