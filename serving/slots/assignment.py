"""The assignment of the two slots: which serve champion and challenger now, and which version to load next.

Users are assigned to arms in infra/assignment.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from infra.registry.client import Aliases
from serving.engine.protocol import BASE_VERSION


@dataclass(frozen=True)
class Load:
    """A version to load into a slot."""

    slot: int
    version: str
    role: Literal["champion", "challenger", "holdout"]
    """holdout: an earlier version that the champion is compared with."""


@dataclass(frozen=True)
class SlotRoles:
    """The slots of champion and challenger now, and one load that brings them closer to the registry's aliases."""

    champion: int | None
    challenger: int | None
    load: Load | None


def assign_slots(aliases: Aliases, versions: Sequence[str | None], loadable: Sequence[bool], champion: int | None) -> SlotRoles:
    """Assign the slots from the registry's aliases. Only slots that are up get a role.

    During the probation of a promoted version the other slot holds the previous champion, as control; later it holds the
    anchor.

    If the registry names no champion, any slot that is up serves.

    Args:
        versions: each slot's verified version, None if the slot is not up.
        loadable: whether each slot answers and takes other weights.
        champion: the slot that serves the champion now.
    """
    up = [index for index in (0, 1) if versions[index] is not None]
    current = champion if champion in up else next(iter(up), None)
    if aliases.champion is None:
        return SlotRoles(current, None, None)
    holders = [index for index in up if versions[index] == aliases.champion]
    if not holders:
        # The champion's slot keeps serving the old version until the other slot holds the new one.
        targets = [index for index in (0, 1) if loadable[index] and index != current]
        if not targets and current is not None and versions[current] == BASE_VERSION and loadable[current]:
            targets = [current]
        return SlotRoles(current, None, Load(targets[0], aliases.champion, "champion") if targets else None)
    current = current if current in holders else holders[0]
    other = 1 - current
    if aliases.challenger is None or aliases.challenger == aliases.champion:
        return SlotRoles(current, None, _holdout(aliases, versions, loadable, other))
    if versions[other] == aliases.challenger:
        return SlotRoles(current, other, None)
    return SlotRoles(current, None, Load(other, aliases.challenger, "challenger") if loadable[other] else None)


def _holdout(aliases: Aliases, versions: Sequence[str | None], loadable: Sequence[bool], other: int) -> Load | None:
    """Return the load of the version that the champion is compared with. The previous champion is usually still loaded."""
    beside = aliases.beside
    if beside is None or beside.challenger != aliases.champion or versions[other] == beside.champion or not loadable[other]:
        return None
    return Load(other, beside.champion, "holdout")
