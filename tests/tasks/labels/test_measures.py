"""What completions are worth: each measure counted by hand, and the same sums for any division into groups."""

import math
import random
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evals.developers.people import reading_seconds, seconds_saved
from evals.developers.taste import Opinion
from infra.model.language import language
from infra.records import Completion, Feedback, MeasuredGroup, Measures
from infra.records.measures import OTHER_LANGUAGES
from infra.settings.schema import Reward
from tasks.labels import measures
from tasks.labels.measures import MOST_LANGUAGES, deciles, measure
from tasks.rewards.reward import with_rewards
from tests.tasks.labels.test_accounting import account
from tests.tasks.labels.test_hindsight import BEGIN, END, LIMITS, TEXT, asked, behind
from tests.tasks.made import NOW, completion, feedback


def groups(completions: list[Completion], events: list[Feedback], **fields: Any) -> dict[tuple[str, str], Measures]:
    """The measures by kind and name of the group."""
    found = measure(account(completions, events, limits=LIMITS, until=NOW + 1000, **fields).classified)
    return {(group.by, group.name): group.measures for group in found}


def of_all(completions: list[Completion], events: list[Feedback]) -> Measures:
    return groups(completions, events)["all", ""]


def served(*ids: str, **fields: Any) -> list[Completion]:
    """Requests at places of their own."""
    return [completion(id, **{"prefix": f"{id} = ", "time": NOW, **fields}) for id in ids]


def sent(request: Completion, outcome: str, **fields: Any) -> Feedback:
    return feedback(request.id, **{"user": request.user, "completion_id": request.id, "prefix": "", "outcome": outcome, **fields})


def test_each_measure_counts_what_it_names() -> None:
    accepted, partly, hardly, rejected, dismissed, quick, slow = requests = served("a", "p", "h", "r", "d", "q", "s")
    unseen = [
        completion("blank", prefix="blank", text=" "),
        completion("withheld", prefix="withheld", withheld=True),
        completion("typed over", prefix="typed over", finish_reason="disconnected"),
        *served("cancelled"),
    ]
    superseded = served("superseded")
    events = [
        sent(accepted, "accepted"),
        sent(partly, "partially_accepted", accepted_characters=4),
        sent(hardly, "partially_accepted", accepted_characters=3),
        sent(rejected, "rejected"),
        sent(dismissed, "rejected", reason="rejected", seen_ms=2000),
        sent(quick, "rejected", seen_ms=749),
        sent(slow, "rejected", reason="typed_away", seen_ms=750),
        sent(unseen[-1], "shown", reason="cancelled"),
    ]
    found = of_all([*requests, *unseen, *superseded], events)
    assert found == Measures(
        requests=12, shown=8, accepted=2, kept_characters=8 + 4 + 3, explicit_cancels=1, quick_rejections=1
    )  # fmt: skip
    assert found.ratios() == {
        "accepted_per_request": pytest.approx(2 / 12),
        "accepted_per_shown": 0.25,
        "shown_per_request": pytest.approx(8 / 12),
        "kept_characters_per_request": 1.25,
        "completed_share": None,
        "explicit_cancels_per_shown": 0.125,
        "quick_rejections_per_shown": 0.125,
    }
    assert set(Measures().ratios().values()) == {None}


def test_accepted_characters_count_as_far_as_they_are_kept() -> None:
    rewritten = of_all([asked(), behind(text="foo(x)")], [sent(asked(), "accepted")])
    assert (rewritten.accepted, rewritten.kept_characters) == (1, len("foo()"))
    stays = of_all([asked(), behind()], [sent(asked(), "accepted")])
    assert (stays.accepted, stays.kept_characters) == (1, 8)
    wanted = of_all([asked(), behind()], [sent(asked(), "rejected")])
    assert (wanted.accepted, wanted.kept_characters) == (0, 0), "typed by hand"


@pytest.mark.parametrize(
    ("outcome", "accepted", "saved"),
    [
        ("accepted", None, 0.2 * (8 - 1) - 0.25),
        ("partially_accepted", 6, 0.2 * (6 - 1) - 0.25),  # the other two characters were never in the file
        ("partially_accepted", 3, 0.2 * (3 - 1) - 0.25),  # less than half is no accept, and spares its keys
        ("rejected", None, -0.25),
    ],
)
def test_what_was_not_taken_of_a_partial_accept_costs_no_edit(outcome: str, accepted: int | None, saved: float) -> None:
    (request,) = served("a")
    found = account([request], [sent(request, outcome, accepted_characters=accepted)], limits=LIMITS, until=NOW + 1000)
    assert found.classified.select(saved=measures.SAVED)["saved"].to_list() == pytest.approx([saved])


LINES = "if x:\n        return y"
"""22 characters, 14 keys and 3 fixations."""


PART = "partially_accepted"


@pytest.mark.parametrize(
    ("outcome", "fields", "stands", "saved"),
    [
        ("accepted", {}, None, 0.2 * (14 - 1) - 0.75),
        ("accepted", {}, LINES, 0.2 * (14 - 1) - 0.75),
        ("accepted", {}, "if x:", 0.2 * (14 * 8 / 22 - 14 - 1) - 0.75),  # 4 of 11 characters that are no blanks: 8 of 22
        ("retained", {"retained": LINES}, None, 0.2 * (14 - 1) - 0.75),
        ("retained", {"retained": "if x:"}, None, 0.2 * (14 * 8 / 22 - 14 - 1) - 0.75),
        ("retained", {"retained": ""}, None, 0.2 * (-22 - 1) - 0.75),
        (PART, {"accepted_characters": 5}, None, 0.2 * (5 - 1) - 0.75),
        (PART, {"accepted_characters": 5}, LINES, 0.2 * (5 - 1) - 0.5),  # 13 characters are read
        (PART, {"accepted_characters": 5}, "return y", 0.2 * (-5 - 1) - 0.5),
        (PART, {"accepted_characters": 15}, LINES, 0.2 * (7 - 1) - 0.75),
    ],
)
def test_the_time_saved_counts_keys_of_what_stands_and_characters_that_were_deleted(
    outcome: str, fields: dict[str, Any], stands: str | None, saved: float
) -> None:
    request, later = asked(text=LINES), [] if stands is None else [behind(text=stands)]
    rows = account([request, *later], [sent(request, outcome, shown=LINES, **fields)], limits=LIMITS, until=NOW + 1000).classified
    assert rows.filter(id=request.id).select(saved=measures.SAVED)["saved"].to_list() == pytest.approx([saved])


@pytest.mark.parametrize(("first", "deleted"), [({"outcome": "accepted"}, 8), ({"outcome": PART, "accepted_characters": 4}, 0)])
def test_of_a_retained_text_only_what_was_accepted_can_be_deleted(first: dict[str, Any], deleted: int) -> None:
    (request,) = served("a", text="foo()bar.baz")
    accepts, kept = sent(request, client_id="k", shown=request.text, **first), {"outcome": "retained", "retained": "foo("}
    events = [accepts, accepts.model_copy(update={"id": "later", "time": NOW + 30, **kept})]
    rows = account([request], events, limits=LIMITS, until=NOW + 1000).classified
    assert rows.select(saved=measures.SAVED)["saved"].to_list() == pytest.approx([0.2 * (4 - deleted - 1) - 0.5])


@pytest.mark.parametrize("text", ["x", LINES, "\n  a\n\n\tb = 1"])
def test_an_accepted_text_that_stands_saves_what_a_simulated_developer_counts(text: str) -> None:
    (request,) = served("a", text=text)
    rows = account([request], [sent(request, "accepted", shown=text)], limits=LIMITS, until=NOW + 1000).classified
    expected = seconds_saved(Opinion(True, "whole", len(text), len(text)), text) - reading_seconds(text, len(text))
    assert rows.select(saved=measures.SAVED)["saved"].to_list() == pytest.approx([expected])


@pytest.mark.parametrize("later", [[], [behind()]], ids=["unknown", "settled"])
@pytest.mark.parametrize("by_id", [True, False])
def test_blanks_at_the_end_of_a_completion_are_worth_nothing(later: list[Completion], by_id: bool) -> None:
    """Nobody sees them: neither kept characters, nor time saved, nor reward grow by them."""
    place = {} if by_id else {"completion_id": "", "prefix": BEGIN, "suffix": END}

    def found(text: str) -> tuple[Any, ...]:
        first = asked(text=text)
        event = sent(first, "accepted", **place, shown="" if by_id else text)
        rows = account([first, *later], [event], limits=LIMITS, until=NOW + 1000).classified.filter(id=first.id)
        counts = rows.select("accepted_characters", "shown_characters", "tokens", kept=measures.KEPT, saved=measures.SAVED).row(0)
        return (*counts, with_rewards(rows, Reward())["reward"][0])

    accepted, shown, tokens, *others = found(TEXT + " " * 40)
    assert (accepted, shown, tokens) == (8, 8, 8 + 40 + 1), "all tokens are trained on, to the end"
    assert others == list(found(TEXT)[3:])


def test_the_share_of_completed_code_counts_each_character_once() -> None:
    """Eight characters typed, eight completed, four typed, and a request from which on nothing is known."""
    first = asked("1", 0)
    second = asked("2", 3, "12345678")
    third = asked("3", 6, "12345678" + TEXT + "1234")
    found = of_all([first, second, third], [sent(first, "rejected"), sent(second, "accepted")])
    assert (found.completed_characters, found.typed_characters) == (8, 12)
    assert found.ratios()["completed_share"] == pytest.approx(8 / 20)
    assert found.kept_characters == 8


@pytest.mark.parametrize(
    ("later", "why"),
    [
        ([], "no later request"),
        ([asked("2", 3, "x" * 2000)], "a paste"),
        ([completion("2", time=NOW + 3, prefix="elsewhere = 1\n" * 9, suffix="")], "another file"),
        ([asked("2", 301, "typed")], "long ago"),
        ([asked("2", 3, "typed", redacted=True)], "it held a secret"),
    ],
)
def test_what_was_typed_is_unknown_where_the_next_request_does_not_show_it(later: list[Completion], why: str) -> None:
    found = of_all([asked("1"), *later], [sent(asked("1"), "accepted")])
    assert (found.completed_characters, found.typed_characters, found.ratios()["completed_share"]) == (0, 0, None), why


def test_what_is_measured_elsewhere_or_unknown_is_left_out() -> None:
    requests = [
        *served("counts"),
        *served("opted out", opted_out=True),
        *served("pinned", pinned=True),
        *served("waiting", time=NOW + 2000),
        *served("editor that only asks", user="silent"),
        *served("explores", exploring=True),
    ]
    found = groups(requests, [sent(requests[0], "accepted"), sent(requests[-1], "accepted")])
    assert {name: sums.requests for name, sums in found.items()} == {
        ("all", ""): 1,
        ("language", ""): 1,
        ("activity", "1"): 1,
        ("sampling", "exploring"): 1,
    }
    assert groups(served("a"), []) == {}


def test_groups_divide_all_requests() -> None:
    draw = random.Random(0)
    requests = [
        completion(
            f"{user}-{n}", user=f"u{user:02}", prefix=f"{user}-{n} =", time=NOW + n, language=draw.choice(["py", "go", ""])
        )
        for user in range(20)
        for n in range(user + 1)
    ]
    events = [sent(r, draw.choice(["accepted", "rejected"]), time=NOW + 100) for r in requests if not draw.randrange(3)]
    events += [sent(r, "accepted", time=NOW + 100) for r in requests if r.id.endswith("-0")]
    found = groups(requests, events)
    assert [name for by, name in found if by == "activity"] == [str(n) for n in range(1, 11)]
    assert {name for by, name in found if by == "language"} == {"py", "go", ""}
    for kind in ("language", "activity"):
        total = Measures()
        for (by, _), sums in found.items():
            total += sums if by == kind else Measures()
        assert total == found["all", ""]
    assert found["activity", "1"].requests == 1 + 2 and found["activity", "10"].requests == 19 + 20


def test_made_up_languages_share_a_group() -> None:
    many = [f"made-up-{n:03}" for n in range(MOST_LANGUAGES + 5)]
    requests = [
        completion(f"{name}-{n}", user="u", prefix=f"{name}-{n} =", time=NOW + n, language=name)
        for at, name in enumerate(many)
        for n in range(2 if at < MOST_LANGUAGES else 1)
    ]
    events = [sent(r, "accepted", time=NOW + 100) for r in requests]
    found = {name: sums.requests for (by, name), sums in groups(requests, events).items() if by == "language"}
    assert found == dict.fromkeys(many[:MOST_LANGUAGES], 2) | {OTHER_LANGUAGES: 5}
    assert language(name=OTHER_LANGUAGES) == "", "no request has this language"


@given(st.lists(st.integers(0, 30), min_size=1, max_size=120))
def test_a_decile_holds_a_tenth_of_the_users_from_the_least_active(requests: list[int]) -> None:
    users = pl.Series([f"u{user:02}" for user in requests])
    found = deciles(users)
    counts = dict(users.value_counts().iter_rows())
    assert sorted(found["user"]) == sorted(counts)
    assert found["decile"].is_between(1, 10).all()
    sizes = found.group_by("decile").len()["len"]
    assert max(sizes) - min(sizes) <= 1 or len(counts) < 10
    ordered = [counts[user] for user in found.sort("decile", maintain_order=True)["user"]]
    assert ordered == sorted(ordered)


def test_acceptance_by_version_and_project_has_an_interval_over_users() -> None:
    # Two users, 1 of 2 and 1 of 4: the rate is 1/3, the influences (1 - 2/3)/6 and (1 - 4/3)/6, t(1) = 12.706.
    first = served(*"ab", user="one", project="p") + served(*"cdef", user="two", project="q")
    alone = served("lonely", user="three", policy_version="2")
    exploring = served("x", "y", user="one", exploring=True)
    events = [sent(request, "accepted" if request.id in ("a", "c") else "rejected", project=request.project) for request in first]
    events += [sent(request, "accepted", project=request.project) for request in (*alone, *exploring)]
    classified = account([*first, *alone, *exploring], events, limits=LIMITS, until=NOW + 1000).classified
    (found,) = measures.served(classified)
    assert (found.project, found.version, found.acceptance.n) == ("", "1", 6)
    assert found.acceptance.rate == pytest.approx(1 / 3)
    assert found.acceptance.high - found.acceptance.rate == pytest.approx(12.7062 * math.sqrt(2 * 2 / 18**2), rel=1e-4)
    # With a second user in a project, that project has a row of its own.
    more = served("g", user="four", project="q")
    classified = account(
        [*first, *more], [*events[:6], sent(more[0], "rejected", project="q")], limits=LIMITS, until=NOW + 1000
    ).classified
    rows = {(row.project, row.version): (row.acceptance.rate, row.acceptance.n) for row in measures.served(classified)}
    assert rows == {("", "1"): (pytest.approx(2 / 7), 7), ("q", "1"): (pytest.approx(1 / 5), 5)}


def test_a_group_survives_json() -> None:
    group = MeasuredGroup(by="language", name="py", measures=Measures(requests=3, shown=2))
    assert MeasuredGroup.model_validate_json(group.model_dump_json()) == group
