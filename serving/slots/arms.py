"""The routing of requests: two slots, the versions they hold, and the sticky split of an experiment's users."""

from dataclasses import dataclass, field

from infra.assignment import assigned_arm
from infra.records import Arm, ExperimentRecord
from infra.showing import Estimate
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
    estimate: Estimate | None = None
    """The version's estimate of what is kept; none if it has none: all is shown then."""
    in_flight: int = 0
    """Number of completions that this app has running in the engine."""
    verified: tuple[int | None, str | None] = (None, None)
    """Process and version that passed the smoke test; the slot takes traffic only while they match `pid` and `version`."""
    state: str = "down"
    """Description for the status page."""

    @property
    def up(self) -> bool:
        """Whether the slot takes traffic."""
        return self.version is not None and self.verified == (self.pid, self.version)


@dataclass(frozen=True)
class Route:
    """The slot and version of one completion, and the arm and experiment that it counts for."""

    slot: Slot
    version: str
    arm: Arm
    experiment: str
    pinned: bool = False
    estimate: Estimate | None = None
    """The estimate that decides what is shown; none: all is shown."""


@dataclass
class Arms:
    """The slots of champion and challenger. The follower sets them; requests read them."""

    slots: tuple[Slot, Slot]
    champion: int | None = None
    """Index of the champion's slot."""
    challenger: int | None = None
    """Index of the challenger's slot; None if there is no challenger or its slot is not ready."""
    experiment: ExperimentRecord | None = None
    problems: dict[str, str] = field(default_factory=dict)
    """The follower's current failures by role or part, for the status page."""

    @property
    def ready(self) -> bool:
        """Whether a slot serves the champion."""
        return self._slot("champion") is not None

    def route(self, user: str, now: float, *, experiments: bool = True, version: str = "") -> list[Route]:
        """Return the routes for a user's completion at a time, best first; the others replace an engine that fails.

        A user pinned to a version gets it if a slot holds it; a user without experiments gets the champion. An experiment counts
        only while both arms serve the versions it compares: otherwise users of the missing arm would drop out of the comparison
        and users of the other arm would not. In an experiment the estimates decide what is shown only if both versions have one:
        otherwise it would compare showing with showing everything, and not the versions.
        """
        champion, challenger = self._slot("champion"), self._slot("challenger")
        up = [slot for slot in self.slots if slot.up]
        routes = [self._route(slot, self._role(slot), "", pinned=True) for slot in up if slot.version == version]
        running = self.experiment if experiments and not version else None
        if (
            running
            and champion
            and challenger
            and (champion.version, challenger.version) == (running.champion, running.challenger)
        ):
            arm = assigned_arm(running, user, now)
            alike = champion.estimate is not None and challenger.estimate is not None
            routes.append(self._route(challenger if arm == "challenger" else champion, arm, running.id, estimated=alike))
        routes += [self._route(slot, self._role(slot), "") for slot in ([champion] if champion else []) + up]
        first_of_slot: dict[int, Route] = {}
        for route in routes:
            first_of_slot.setdefault(route.slot.index, route)
        return list(first_of_slot.values())

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
    def _route(slot: Slot, arm: Arm, experiment: str, *, pinned: bool = False, estimated: bool = True) -> Route:
        assert slot.version is not None
        return Route(slot, slot.version, arm, experiment, pinned, slot.estimate if estimated else None)
