"""The plan of the two slots, from the registry's aliases and the versions that the slots hold."""

import pytest

from infra.registry.client import Aliases
from serving.slots.assignment import Load, SlotRoles, assign_slots

UP = (True, True)


def aliases_of(champion: str | None, challenger: str | None = None) -> Aliases:
    return Aliases(champion, challenger, None, None)


@pytest.mark.parametrize(
    ("aliases", "versions", "loadable", "champion", "expected"),
    [
        pytest.param(aliases_of("1"), (None, None), (False, False), None, SlotRoles(None, None, None), id="all down"),
        pytest.param(aliases_of(None), ("0", "0"), UP, None, SlotRoles(0, None, None), id="empty registry"),
        pytest.param(aliases_of("1"), ("0", "0"), UP, None, SlotRoles(0, None, Load(1, "1", "champion")), id="first champion"),
        pytest.param(aliases_of("1"), ("0", "1"), UP, 0, SlotRoles(1, None, None), id="champion moves to the slot that holds it"),
        pytest.param(aliases_of("1", "2"), ("0", "1"), UP, 1, SlotRoles(1, None, Load(0, "2", "challenger")), id="challenger"),
        pytest.param(aliases_of("1", "2"), ("2", "1"), UP, 1, SlotRoles(1, 0, None), id="both arms"),
        pytest.param(aliases_of("2"), ("2", "1"), UP, 1, SlotRoles(0, None, None), id="promotion loads nothing"),
        pytest.param(aliases_of("1"), ("2", "1"), UP, 0, SlotRoles(1, None, None), id="rollback loads nothing"),
        pytest.param(aliases_of("3", "2"), ("2", "1"), UP, 1, SlotRoles(1, None, Load(0, "3", "champion")), id="champion first"),
        pytest.param(aliases_of("1", "2"), ("1", None), (True, False), 0, SlotRoles(0, None, None), id="challenger's slot down"),
        pytest.param(aliases_of("1", "2"), (None, "2"), (False, True), 0, SlotRoles(1, None, None), id="champion's slot down"),
        pytest.param(
            aliases_of("1"), (None, "2"), UP, 0, SlotRoles(1, None, Load(0, "1", "champion")), id="unverified slot is loaded"
        ),
        pytest.param(
            aliases_of("1"),
            ("0", None),
            (True, False),
            0,
            SlotRoles(0, None, Load(0, "1", "champion")),
            id="one engine only",
        ),
        pytest.param(aliases_of("2"), ("1", None), (True, False), 0, SlotRoles(0, None, None), id="never into the serving slot"),
        pytest.param(aliases_of("1", "1"), ("1", "0"), UP, 0, SlotRoles(0, None, None), id="champion is its own challenger"),
    ],
)
def test_plan_slots(aliases: Aliases, versions: tuple, loadable: tuple, champion: int | None, expected: SlotRoles) -> None:
    assert assign_slots(aliases, versions, loadable, champion) == expected
