"""The labels of the estimate: what was kept of completions up to each token."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.model.showing import Place
from infra.records import Completion, Feedback
from infra.settings.schema import Hindsight
from tasks.labels.accounting import WindowCounts, classify
from tasks.labels.pipeline import join_partition, merge_partitions
from tasks.showing.labels import (
    Compared,
    LabelledCompletion,
    kept_up_to,
    label_of,
    labelled_completions,
    tokens_of,
    weighed,
)
from tests.tasks import rows
from tests.tasks.labels.test_accounting import LINEAGE
from tests.tasks.labels.test_hindsight import LIMITS, TEXT, asked, behind
from tests.tasks.made import NOW, MemoryStore, feedback

N = np.nan


@pytest.mark.parametrize(
    ("generated", "ends", "settled", "whole", "kept"),
    [
        ("foo(bar)", [3, 4, 7, 8, 8], "foo(baz)", True, [1, 1, 0, 0, 0]),
        ("foo(bar)", [3, 4, 7, 8, 8], "foo(bar)\n    x", True, [1, 1, 1, 1, 1]),
        ("foo()\nbar()", [5, 6, 11], "foo()\n", False, [1, 1, N]),  # beyond what is known
        ("foo()\nbar()", [5, 6, 11], "foo()\n", True, [1, 1, 0]),
        ("  foo", [2, 5], "  foo", True, [N, 1]),  # blanks alone
        ("foo  ", [3, 5], "foo", True, [1, 1]),  # blanks at the end
        ("foo", [3], "fo", False, [N]),
        ("fo", [2], "bar", False, [0]),
    ],
)
def test_a_beginning_is_kept_if_the_settled_text_begins_with_it(
    generated: str, ends: list[int], settled: str, whole: bool, kept: list[float]
) -> None:
    np.testing.assert_array_equal(kept_up_to(generated, ends, settled, whole), kept)


@given(st.text("ab ", min_size=1, max_size=8), st.text("ab ", max_size=8), st.booleans())
def test_what_is_kept_never_comes_back(generated: str, settled: str, whole: bool) -> None:
    kept = kept_up_to(generated, range(1, len(generated) + 1), settled, whole)
    known = kept[~np.isnan(kept)]
    assert (np.diff(known) <= 0).all()


def test_tokens_of_a_text_are_those_up_to_its_last_character() -> None:
    assert [tokens_of([3, 4, 4, 8], n) for n in (0, 2, 3, 4, 5, 8, 9)] == [0, 1, 1, 2, 4, 4, 0]


def found(served: list[Completion], sent: list[Feedback]) -> dict[str, LabelledCompletion]:
    """The labelled completions of a window, by what stands before the cursor's line."""
    store = MemoryStore()
    rows.put(store, served, sent)
    plan = rows.plan_store(store, hindsight=Hindsight())
    joined, repeated = merge_partitions([join_partition(store, part) for part in plan.partitions])
    counts, distances = WindowCounts(plan.requests, repeated), LINEAGE.distances(["1"], "1")
    accounting = classify(joined.with_columns(admitted=True), distances, NOW + 1000, LIMITS, counts)
    chosen = accounting.samples.filter(accounting.samples["id"] != "d")
    return {str(row.temperature): row for row in labelled_completions(store, plan.partitions, chosen)}


@pytest.mark.parametrize("broken", [float("nan"), float("-inf")])
def test_a_log_probability_that_is_no_number_keeps_a_completion_out(broken: float) -> None:
    """Validation reads those of the shown tokens alone, and one row would fail the fit of every cycle in whose window it is."""
    shown: dict[str, Any] = {"text": "foo(", "held_back": "bar)", "token_ends": range(1, 9), "token_ids": range(8)}
    served = asked(**shown, logprobs=[*[-0.5] * 7, broken], finish_reason="length")
    assert found([served, behind(text="foo(baz)")], []) == {}


def test_settled_text_labels_what_was_shown_and_what_was_held_back() -> None:
    shown: dict[str, Any] = {"text": "foo(", "held_back": "bar)", "token_ends": range(1, 9), "level": "eager", "chance": 0.7}
    served = asked(**shown, token_ids=range(8), logprobs=[-0.5] * 8, finish_reason="length", user_acceptance=0.3)
    (row,) = found([served, behind(text="foo(baz)")], []).values()
    assert row.kept.tolist() == [1, 1, 1, 1, 1, 1, 0, 0]
    assert row.decided == (0.7, 4) and row.accepted is None and row.place.user_acceptance == 0.3


def test_nothing_shown_has_labels_too_and_was_not_decided_on_a_beginning() -> None:
    fields: dict[str, Any] = {"text": "", "held_back": "foo(bar)", "token_ends": range(1, 9), "withheld": True, "chance": 0.01}
    served = asked(**fields, token_ids=range(8), logprobs=[-0.5] * 8)
    (row,) = found([served, behind()], []).values()
    assert row.kept.tolist() == [1] * 8 and row.decided is None


@pytest.mark.parametrize(
    ("fields", "last"),
    [({"outcome": "accepted"}, 1.0), ({"outcome": "rejected"}, 0.0), ({"outcome": "partially_accepted"}, N)],
)
def test_without_settled_text_only_what_was_shown_has_a_label(fields: dict[str, str], last: float) -> None:
    served = asked()
    sent = feedback(prefix=served.prefix, suffix=served.suffix, accepted_characters=4, **fields)
    got = found([served], [sent])
    if np.isnan(last):
        assert got == {}
        return
    (row,) = got.values()
    np.testing.assert_array_equal(row.kept, [*[N] * 7, last, N])
    assert row.accepted is (last == 1.0)


def test_of_an_accepted_text_that_was_undone_nothing_is_kept() -> None:
    """Its place is empty, so that there is no settled text; the reward is that of a text of which nothing is kept, too."""
    served = asked()
    for outcome, kept in (("accepted", 8), ("rejected", 0)):
        sent = feedback(prefix=served.prefix, suffix=served.suffix, accepted_characters=kept, outcome=outcome)
        (row,) = found([served, behind(text="")], [sent]).values()
        np.testing.assert_array_equal(row.kept, [*[N] * 7, 0.0, N])


@pytest.mark.parametrize(
    ("outcome", "kept", "label"),
    [
        *(("accepted", None, 1.0), ("accepted", 0, 0.0), ("accepted", 6, 0.75), ("accepted", 9, 1.0)),
        *(("rejected", None, 0.0), ("rejected", 6, 0.0), ("partially_accepted", 6, N), (None, 6, N)),
    ],
)
def test_the_label_of_an_answer_is_the_share_that_still_stands(outcome: str | None, kept: int | None, label: float) -> None:
    np.testing.assert_equal(label_of(outcome, kept, 8), label)


@pytest.mark.parametrize(("written", "rest", "verdict"), [("foo(bar)\n    one", " = 1", None), ("foo(1)\n    one", " = 1", True)])
def test_an_accept_of_lines_whose_later_ones_are_not_settled_is_no_verdict_to_fit_on(
    written: str, rest: str, verdict: bool | None
) -> None:
    """The cursor stands in the second line. Compared with the first alone, the accepted text would count as half wrong."""
    served = asked(text="foo(bar)\n    one = 1")
    sent = feedback(prefix=served.prefix, suffix=served.suffix, shown=served.text)
    (row,) = found([served, asked("d", 20, written, rest)], [sent]).values()
    assert row.accepted is True and row.compared and row.compared.verdict is verdict


@pytest.mark.parametrize("typed", ["", "fo", "foo("])
def test_a_verdict_is_on_the_rest_of_the_line_that_was_shown(typed: str) -> None:
    """The developer typed a part of the completion while it streamed, within a word too, and then saw the rest."""
    served = asked()
    shown = TEXT.removeprefix(typed)
    (row,) = found([served, behind()], [feedback(prefix=served.prefix + typed, suffix=served.suffix, shown=shown)]).values()
    assert row.compared and row.compared.shown == row.compared.settled[row.compared.typed :] == shown


def test_a_completion_of_mixed_weights_or_without_log_probabilities_has_no_label() -> None:
    assert found([asked(mixed=True), behind()], []) == {}
    empty: dict[str, Any] = {"token_ids": (), "logprobs": (), "token_ends": (), "prompt_token_ids": (1,)}
    unknown = {"behaviour_logprobs": "unknown", **empty}
    assert found([asked(**unknown), behind()], []) == {}


def answered(generated: str, settled: str, verdict: bool | None) -> LabelledCompletion:
    """A completion of a character a token, all of it shown, with the labels of its settled text."""
    ends = range(1, len(generated) + 1)
    kept = kept_up_to(generated, ends, settled, True)
    texts = Compared(settled, generated, verdict)
    return LabelledCompletion(Place("", ""), 0.1, generated, [-0.1] * len(ends), ends, kept, verdict, compared=texts)


RIGHT, NEAR, WRONG = (
    ("total = add(left, right)",) * 2,
    ("total = add(left, light)", "total = add(left, right)"),
    ("import os", "x = 1"),
)


def verdicts(near: float) -> list[LabelledCompletion]:
    """100 verdicts each on right texts, all accepted; near misses, accepted so often; and wrong texts, all rejected."""
    taken = [(RIGHT, 1.0), (NEAR, near), (WRONG, 0.0)]
    return [answered(*texts, number < 100 * share) for texts, share in taken for number in range(100)]


def test_a_near_miss_that_is_accepted_and_corrected_counts_by_what_stays_of_it() -> None:
    for near in (0.9, 0.1):
        found = [row.kept[-1] for row in weighed(verdicts(near))]
        right, miss, wrong = (np.mean(found[part : part + 100]) for part in (0, 100, 200))
        assert right == pytest.approx(1.0, abs=0.1) and wrong == 0.0
        assert miss == pytest.approx(near * 18 / 24, abs=0.1), near  # 18 of 24 characters stay, blanks in proportion


def judged(user: str, texts: tuple[str, str], verdict: bool) -> LabelledCompletion:
    """A completion with the verdict of a user."""
    row = answered(*texts, verdict)
    assert row.compared
    return replace(row, compared=replace(row.compared, judge={"user": user}))


def test_one_judge_has_no_more_than_their_share_of_the_weights() -> None:
    """A third of the verdicts are of one user, each the contrary of what its text deserves."""
    team = [judged(f"u{number % 30}", texts, texts == RIGHT) for number in range(60) for texts in (RIGHT, WRONG)]
    false = [judged("h", texts, texts != RIGHT) for _ in range(30) for texts in (RIGHT, WRONG)]
    assert weighed([*team, *false]) == [*team, *false], "the verdicts predict no others, so that nothing is weighed by them"
    right, wrong = (row.kept[-1] for row in weighed([*team, *false], {"user": 0.05})[:2])
    assert right > 0.8 and wrong == 0.0


def test_without_verdicts_a_text_is_kept_as_it_is_or_not_at_all() -> None:
    rows = [answered(*NEAR, None)]
    assert weighed(rows) == rows
    assert rows[0].kept[0] == 1.0 and rows[0].kept[-1] == 0.0


def test_what_is_unknown_stays_unknown() -> None:
    beyond = answered("foo()\nbar()", "foo()\n", None)
    kept = kept_up_to(beyond.text, beyond.ends, "foo()\n", False)
    unknown = LabelledCompletion(beyond.place, 0.1, beyond.text, beyond.logprobs, beyond.ends, kept, None)
    rows = weighed([*verdicts(0.5), unknown])
    np.testing.assert_array_equal(np.isnan(rows[-1].kept), np.isnan(unknown.kept))
