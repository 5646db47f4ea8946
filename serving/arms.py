"""Who is served by what: two slots, the versions they hold, and the sticky split of an experiment."""

import hashlib
from dataclasses import dataclass, field

from infra.records import Arm, ExperimentRecord
from serving.engines import Engine


class NotHeld(LookupError):
    """No slot that is up holds what was asked for."""


@dataclass
class Slot:
    """One engine, and what is known of it now."""

    index: int
    engine: Engine
    version: str | None = None
    """What it holds; none while it does not answer."""
    pid: int | None = None
    in_flight: int = 0
    """Completions that this app has in it."""
    proven: tuple[int | None, str | None] = (None, None)
    """Process and version that answered the smoke prompt; anything else takes no traffic."""
    state: str = "down"
    """In words, for the status page."""

    @property
    def up(self) -> bool:
        return self.version is not None and self.proven == (self.pid, self.version)


@dataclass(frozen=True)
class Route:
    """Where one completion goes, and what it counts for."""

    slot: Slot
    version: str
    arm: Arm
    experiment: str
    pinned: bool = False


@dataclass
class Arms:
    """Pointers to slots. The follower moves them; requests read them."""

    slots: tuple[Slot, Slot]
    champion: int | None = None
    """Slot of the champion."""
    challenger: int | None = None
    """Slot of the challenger, none while there is none or it is not ready."""
    experiment: ExperimentRecord | None = None
    problems: dict[str, str] = field(default_factory=dict)
    """What the follower could not do, for the status page."""

    @property
    def ready(self) -> bool:
        return self._slot("champion") is not None

    def route(self, user: str, *, experiments: bool = True, version: str = "") -> list[Route]:
        """Where a user's completion goes first, and where else when that engine fails.

        A user pinned to a version gets it while a slot holds it; who takes no part in experiments gets the champion.
        An experiment counts only while both its arms serve the versions it compares: else a user of the arm that is away
        would be missing and one of the other arm would not.
        """
        champion, challenger = self._slot("champion"), self._slot("challenger")
        up = [slot for slot in self.slots if slot.up]
        wanted = [self._route(slot, self._role(slot), "", pinned=True) for slot in up if slot.version == version]
        running = self.experiment if experiments and not version else None
        if (
            running
            and champion
            and challenger
            and (champion.version, challenger.version) == (running.champion, running.challenger)
        ):
            arm: Arm = "challenger" if in_challenger(running, user) else "champion"
            wanted.append(self._route(challenger if arm == "challenger" else champion, arm, running.id))
        wanted += [self._route(slot, self._role(slot), "") for slot in ([champion] if champion else []) + up]
        first_of_slot: dict[int, Route] = {}
        for route in wanted:
            first_of_slot.setdefault(route.slot.index, route)
        return list(first_of_slot.values())

    def pinned(self, arm: str = "", version: str = "") -> Route:
        """Where a pinned completion goes.

        Raises:
            NotHeld: no slot that is up serves that arm or holds that version.
        """
        if arm not in ("", "champion", "challenger"):
            raise ValueError(f"X-Tabloop-Arm: {arm!r} is neither champion nor challenger")
        for slot in self.slots:
            in_arm = not arm or slot is self._slot(arm)
            if slot.up and in_arm and version in ("", slot.version):
                return self._route(slot, self._role(slot), "", pinned=True)
        held = ", ".join(f"slot {s.index}: {s.version or 'down'}" for s in self.slots)
        raise NotHeld(f"no slot serves {f'arm {arm}' if arm else ''}{f' version {version}' if version else ''} ({held})")

    def _role(self, slot: Slot) -> Arm:
        return "challenger" if slot.index == self.challenger else "champion"

    def _slot(self, arm: str) -> Slot | None:
        index = self.champion if arm == "champion" else self.challenger
        return self.slots[index] if index is not None and self.slots[index].up else None

    @staticmethod
    def _route(slot: Slot, arm: Arm, experiment: str, *, pinned: bool = False) -> Route:
        assert slot.version is not None
        return Route(slot, slot.version, arm, experiment, pinned)


def in_challenger(experiment: ExperimentRecord, user: str) -> bool:
    """Whether a user is on the challenger's arm: the same for as long as the experiment runs, on every replica."""
    digest = hashlib.sha256(f"{experiment.id}:{user}".encode()).digest()
    return int.from_bytes(digest[:8], "big") < experiment.share * 2**64
