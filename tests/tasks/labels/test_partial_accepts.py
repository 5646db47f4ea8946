"""A completion that is accepted in parts: one accept of the longest part, whatever the order and the delivery of its events."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.model.kept_text import kept_of_part
from infra.records import Completion, Feedback
from infra.settings.schema import Reward
from tasks.labels import measures
from tasks.rewards.reward import with_rewards
from tests.tasks.labels.test_hindsight import accounted, asked, behind, here, row
from tests.tasks.made import NOW

BLOCK = "foo(bar)\n    one = 1\n    two = 2"
"""32 characters."""
PART = "partially_accepted"
NAMED = {"completion_id": "c", "prefix": "", "suffix": "", "shown": ""}


def counted(events: Sequence[Feedback], later: Sequence[Completion] = (), **fields: Any) -> dict[str, Any]:
    """What every reader of a label counts of one completion."""
    accounting = accounted([asked(text=BLOCK, **fields), *later], list(events))
    found = accounting.classified.filter(id="c")
    names = ("outcome", "shown_characters", "accepted_characters", "taken_characters", "taken_keys", "kept_characters", "settled")
    sums = {name: getattr(measures, name.upper()) for name in ("accepted", "kept", "saved")}
    rewarded = with_rewards(accounting.samples.filter(id="c"), Reward())
    return found.select(*names, **{f"sum_{name}": value for name, value in sums.items()}).row(0, named=True) | {
        "reward": rewarded["reward"].to_list()
    }


def said(number: int, size: int, **fields: Any) -> Feedback:
    """An event of the `number`-th piece, which says that `size` characters are accepted so far."""
    values = {"client_id": "k", "outcome": PART, "accepted_characters": size, "time": NOW + 1 + number, "shown": BLOCK, **fields}
    return here(id=f"f{number}", **values)


reports = st.fixed_dictionaries(
    {},
    optional={
        "settled": st.sampled_from([BLOCK, "foo(bar)", "one = 1\n    two = 2", "foo(baz) + 1", ""]),
        "retained": st.sampled_from([BLOCK, "foo(bar)", "one = 1", ""]),
    },
)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.integers(0, 34), min_size=1, max_size=4),
    reports,
    st.sampled_from([None, BLOCK, "foo(bar)", "two = 2"]),
    st.booleans(),
    st.data(),
)
def test_pieces_count_as_one_accept_of_the_longest(
    sizes: list[int], report: dict[str, str], stands: str | None, alone: bool, data: st.DataObject
) -> None:
    """Sizes beyond the text count as all of it. Events of an editor without ids of impressions (`alone`) have no other report."""
    later = [] if stands is None else [behind(text=stands)]
    one: dict[str, Any] = {"outcome": "accepted"} if max(sizes) >= len(BLOCK) else {"accepted_characters": max(sizes)}
    others = []
    if not alone and "settled" in report:
        others.append(here(id="s", time=NOW + 40, client_id="k", outcome="shown", settled=report["settled"]))
    if not alone and "retained" in report:
        others.append(here(id="r", time=NOW + 30, client_id="k", outcome="retained", shown="", retained=report["retained"]))
    pieces = [said(number, size, client_id="" if alone else "k") for number, size in enumerate(sizes)]
    sent = [*pieces, *data.draw(st.lists(st.sampled_from(pieces), max_size=2)), *others]
    assert counted(data.draw(st.permutations(sent)), later) == counted([said(0, 0, **one), *others], later)


@pytest.mark.parametrize(("accepted", "retained"), [(8, BLOCK), (8, "foo(baz)"), (17, "one = 1"), (6, "foo(baz)"), (0, BLOCK)])
@pytest.mark.parametrize("named", [True, False])
def test_of_a_part_that_was_accepted_no_more_is_retained(accepted: int, retained: str, named: bool) -> None:
    """The rest may stand there since somebody typed it."""
    place = NAMED if named else {}
    events = [said(0, accepted, **place), said(1, 0, **place | {"outcome": "retained", "retained": retained})]
    found = counted(events)
    kept = kept_of_part(BLOCK, accepted, retained)
    assert (found["outcome"], found["taken_characters"], found["accepted_characters"]) == (PART, accepted, kept)


@pytest.mark.parametrize(
    ("event", "stated", "kept"),
    [
        ({"outcome": PART, "accepted_characters": 8}, 32, 8),  # of the whole, of which the rest was typed
        ({"outcome": PART, "accepted_characters": 8}, 5, 5),
        ({"outcome": PART, "accepted_characters": 32}, 32, 32),
        ({"outcome": "accepted"}, 32, 32),
        ({"outcome": "rejected"}, 32, 32),  # typed by hand
    ],
)
def test_a_number_of_kept_characters_counts_up_to_the_part(event: dict[str, Any], stated: int, kept: int) -> None:
    found = counted([said(0, 0, **event, settled_kept=stated, settled_total=40)])
    assert (found["kept_characters"], found["sum_kept"]) == (kept, 0 if event["outcome"] == "rejected" else kept)


LONG = "\n".join(f"    first_{number} = second({number})" for number in range(40))
"""1,149 characters."""


@pytest.mark.parametrize("settled", ["    first_0 = second(0)", LONG])
@pytest.mark.parametrize("outcome", ["accepted", PART])
def test_a_short_report_on_a_long_text_is_no_paste(settled: str, outcome: str) -> None:
    sent = here(outcome=outcome, accepted_characters=23, shown=LONG, settled=settled)
    found = row(accounted([asked(text=LONG, max_tokens=300)], [sent]))
    part = 23 if outcome == PART else len(LONG)
    assert (found["settled"], found["kept_characters"]) == (settled, kept_of_part(LONG, part, settled))


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 40), st.integers(0, 40), st.sampled_from(["", "\n", "  # more\n" * 30]))
def test_all_lines_of_a_long_accepted_text_are_kept(lines: int, stay: int, more: str) -> None:
    text = "".join(LONG.splitlines(keepends=True)[:lines]).rstrip()
    stands = "\n".join(text.split("\n")[: stay or None]) + more.rstrip("\n")
    found = row(accounted([asked(text=text, max_tokens=300), behind(text=stands, max_tokens=300)], [here(shown=text)]))
    assert found["kept_characters"] == kept_of_part(text, len(text), stands)
