"""Attribution of feedback to completions, by cases of editors and against a slow reference implementation."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.records import Completion, Feedback
from tasks.labels.attribution import TRIMMED_SPACES, nothing_to_show, unique
from tasks.labels.impressions import STRENGTH
from tests.tasks.made import NOW, completion, feedback
from tests.tasks.rows import Joined, Label, count_kept_tokens, frame, join

SECONDS = 60.0
RANK = {outcome: rank for rank, outcome in enumerate(STRENGTH)}


def only(completions: Sequence[Completion], events: Sequence[Feedback]) -> Joined:
    (joined,) = join(completions, events, SECONDS).joined
    return joined


def test_feedback_joins_the_completion_at_its_place() -> None:
    assert only([completion()], [feedback()]).label == Label("accepted", 8, 8, 8)


def test_feedback_with_an_id_joins_the_completion_of_that_id() -> None:
    elsewhere = completion("other", time=NOW + 0.5)
    result = join([completion(), elsewhere], [feedback(completion_id="c")], SECONDS)
    assert [j.completion.id for j in result.joined if j.label] == ["c"]


@pytest.mark.parametrize(
    ("requested", "languages", "expected"), [("", ["", "py"], "py"), ("python", ["", ""], "python"), ("", [""], "")]
)
def test_the_language_of_the_event_replaces_that_of_the_request(requested: str, languages: list[str], expected: str) -> None:
    events = [feedback(str(n), client_id="k", time=NOW + n, language=language) for n, language in enumerate(languages)]
    assert only([completion(language=requested)], events).completion.language == expected
    assert only([completion(language=requested)], []).completion.language == requested


@pytest.mark.parametrize(
    "fields",
    [
        {"shown": "made up"},
        {"user": "another"},
        {"project": "another"},
        {"suffix": "other"},
        {"prefix": "y = "},
        {"time": NOW + SECONDS + 1},
        {"time": NOW - 2},
        {"shown": ""},
        {"completion_id": "unknown"},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_feedback_that_matches_no_completion_is_an_orphan(fields: dict[str, Any]) -> None:
    result = join([completion()], [feedback(**fields)], SECONDS)
    assert result.joined[0].label is None
    assert result.orphans == 1


def test_a_late_accept_overrides_the_earlier_reject() -> None:
    reject = feedback("1", client_id="k", outcome="rejected", time=NOW + 10)
    accept = feedback("2", client_id="k", time=NOW + 14)
    for events in ([reject, accept], [accept, reject]):
        label = only([completion()], events).label
        assert label
        assert label.outcome == "accepted"


def test_a_view_alone_is_no_label() -> None:
    assert only([completion()], [feedback(outcome="shown")]).label is None


def test_a_partial_accept_counts_its_accepted_characters() -> None:
    label = only([completion()], [feedback(outcome="partially_accepted", accepted_characters=3)]).label
    assert label == Label("partially_accepted", 8, 8, 3)


def test_feedback_with_an_id_and_no_text_covers_the_whole_completion() -> None:
    bare = {"completion_id": "c", "prefix": "", "suffix": "", "shown": ""}
    assert only([completion()], [feedback(**bare)]).label == Label("accepted", 8, 8, 8)
    assert only([completion()], [feedback(**bare, outcome="rejected")]).label == Label("rejected", 8, 8, 0)
    line = feedback(**bare, outcome="partially_accepted")
    assert only([completion(text="foo(bar)\n)")], [line]).label == Label("partially_accepted", 10, 10, 8)


@pytest.mark.parametrize(
    ("retained", "label"),
    [
        ("y = foo(bar)  # kept", Label("accepted", 8, 8, 8)),
        ("foo(x, bar)", Label("accepted", 8, 8, 8)),
        ("foo(baz)", Label("partially_accepted", 8, 8, 5)),
        ("bar()", Label("partially_accepted", 8, 8, 4)),
        ("", Label("partially_accepted", 8, 8, 0)),
    ],
)
def test_a_retained_event_counts_the_accepted_text_that_is_still_present(retained: str, label: Label) -> None:
    accept = feedback("1", client_id="k")
    later = feedback("2", client_id="k", time=NOW + 30, outcome="retained", retained=retained, prefix="", suffix="", shown="")
    for events in ([accept, later], [later, accept]):
        assert only([completion()], events).label == label


@pytest.mark.parametrize(("first", "last", "kept"), [("foo(bar)", "", 0), ("", "foo(bar)", 8), ("foo(bar)", "foo(baz)", 5)])
def test_of_several_retained_texts_the_latest_counts(first: str, last: str, kept: int) -> None:
    sent = {"client_id": "k", "outcome": "retained", "prefix": "", "suffix": "", "shown": "", "completion_id": "c"}
    events = [
        feedback("1", **sent, time=NOW + 30, retained=first),
        feedback("2", **sent, time=NOW + 300, retained=last),
    ]
    for delivered in (events, events[::-1]):
        label = only([completion()], delivered).label
        assert label and label.accepted_characters == kept


def test_a_thumbs_down_overrides_an_accept() -> None:
    events = [feedback("1", client_id="k"), feedback("2", client_id="k", outcome="thumbs_down", shown="")]
    assert only([completion()], events).label == Label("rejected", 8, 8, 0)


def test_a_reused_stream_joins_to_its_first_request() -> None:
    joined = only([completion()], [feedback(prefix="x = fo", shown="o(ba")])
    assert joined.label == Label("accepted", shown_characters=4, extent=6, accepted_characters=4)
    assert count_kept_tokens(joined.completion, 6) == 6


def test_the_same_prefix_is_preferred_to_a_reused_stream() -> None:
    later = completion("later", prefix="x = fo", text="o(bar)", time=NOW - 5)
    result = join([completion(), later], [feedback(prefix="x = fo", shown="o(bar)")], SECONDS)
    assert [j.completion.id for j in result.joined if j.label] == ["later"]


def test_the_latest_of_two_requests_at_one_place_gets_the_label() -> None:
    result = join([completion("1"), completion("2", time=NOW + 0.5)], [feedback()], SECONDS)
    assert [j.completion.id for j in result.joined if j.label] == ["2"]


def test_impressions_from_the_editors_cache_are_ignored() -> None:
    cached = only([completion()], [feedback(cache_hit=True)])
    assert (cached.label, cached.cache_hit) == (None, True)
    both = only([completion()], [feedback("1", cache_hit=True), feedback("2", outcome="rejected")])
    assert both.label
    assert both.label.outcome == "rejected"


def test_an_empty_suffix_matches_a_newline() -> None:
    assert only([completion(suffix="\n")], [feedback(suffix="")]).label


@pytest.mark.parametrize("spaces", TRIMMED_SPACES)
def test_the_extent_includes_leading_spaces_that_the_editor_removed(spaces: str) -> None:
    joined = only([completion(text=f"{spaces}foo")], [feedback(shown="foo")])
    assert joined.label
    assert joined.label.extent == len(spaces) + 3


@pytest.mark.parametrize(
    ("text", "finish", "extent", "kept"),
    [
        ("foo", "stop", 3, 4),  # the whole text and the end token
        ("foo  ", "stop", 3, 6),  # trailing blanks, which the editor trims, are kept
        ("foo", "stop", 2, 2),
        ("foo", "length", 3, 3),
        ("foo", "disconnected", 1, 1),
    ],
)
def test_tokens_are_cut_to_the_shown_text(text: str, finish: str, extent: int, kept: int) -> None:
    assert count_kept_tokens(completion(text=text, finish_reason=finish), extent) == kept


def test_tokens_that_were_held_back_are_not_counted_even_if_all_that_was_shown_was_seen() -> None:
    served = completion(text="foo").model_copy(update={"held_back": "(bar)", "token_ends": tuple(range(1, 9))})
    served = served.model_copy(update={"token_ids": tuple(range(8)), "logprobs": (-0.5,) * 8})
    assert count_kept_tokens(served, 3) == 3
    blank = served.model_copy(update={"text": "foo(bar)", "held_back": " "})
    assert count_kept_tokens(blank, 8) == 8


def test_a_withheld_completion_is_none_that_the_model_ended_with_nothing_to_show() -> None:
    empty = completion("empty", text="", finish_reason="stop")
    withheld = completion("withheld", text="", held_back="f", finish_reason="stop", withheld=True, time=NOW + 1)
    shown = nothing_to_show(unique(frame([empty, withheld], Completion)))
    assert shown["served"].to_list() == ["empty"]


def test_a_partly_shown_token_is_kept_and_the_next_is_not() -> None:
    served = completion(text="foobar", finish_reason="length")
    served = served.model_copy(update={"token_ids": (1, 2, 3), "logprobs": (-1.0,) * 3, "token_ends": (3, 5, 6)})
    assert [count_kept_tokens(served, extent) for extent in (1, 3, 4, 5, 6)] == [1, 1, 2, 2, 3]


@pytest.mark.parametrize(
    ("served", "prefix", "shown", "label"),
    [
        (("print(os.pathsep", "(1, 2)"), "print(os.pathsep", "pathsep(1, 2)", Label("accepted", 6, 6, 6)),
        (("print(os.pathsep", "(1, 2)"), "print(os.pathsep", "pathsep(1", Label("accepted", 2, 2, 2)),
        (("print(os.pa", "thsep(1)"), "print(os.pathsep", "pathsep(1)", Label("accepted", 3, 8, 3)),  # with a reused stream
        (("name = ", "name = 1"), "name = ", "name = 1", Label("accepted", 8, 8, 8)),  # the model's own text
        (("print(os.sep", "(1)"), "print(os.sep", "sep(1)", None),  # the selected name is too short
        (("print(os.pathsep", "(1)"), "print(os.pathsep", "pathsep", None),  # no text of the model
        (("print(os.pathsep", "(1)"), "print(os.pathsep", "linesep(1)", None),
    ],
)
def test_shown_text_may_begin_with_a_name_selected_in_the_suggestion_list(served, prefix, shown, label) -> None:
    joined = only([completion(prefix=served[0], text=served[1])], [feedback(prefix=prefix, shown=shown)])
    assert joined.label == label


@pytest.mark.parametrize("text", ["", " "])
def test_nothing_stays_of_a_completion_without_text(text: str) -> None:
    served = completion(prefix="", suffix="", text=text)
    joined = only([served], [feedback(completion_id=served.id, outcome="retained", prefix="", suffix="", shown="")])
    assert joined.label and joined.label.outcome == "partially_accepted"


@pytest.mark.parametrize(("retained", "label"), [("a", "accepted"), ("ab", "partially_accepted"), ("b a", "accepted")])
def test_a_text_stays_word_by_word_whatever_blanks_are_around(retained: str, label: str) -> None:
    served = completion(prefix="", suffix="", text="a ")
    event = feedback(completion_id=served.id, outcome="retained", retained=retained, prefix="", suffix="", shown="")
    joined = only([served], [event])
    assert joined.label and joined.label.outcome == label


# Small alphabets, so that places, texts and ids meet often.
texts = st.text("ab ", max_size=3)
completions = st.builds(
    completion,
    id=st.sampled_from(["1", "2", "3", "4", "5"]),
    time=st.floats(NOW, NOW + 90),
    user=st.sampled_from(["u", "v"]),
    prefix=texts,
    suffix=st.sampled_from(["", "\n", "s"]),
    text=texts,
    finish_reason=st.sampled_from(["stop", "length", "disconnected"]),
)
events = st.builds(
    feedback,
    id=st.integers(0, 10**6).map(str),
    time=st.floats(NOW, NOW + 150),
    user=st.sampled_from(["u", "v"]),
    client_id=st.sampled_from(["", "k", "l", "m"]),
    completion_id=st.sampled_from(["", "", "1", "2"]),
    outcome=st.sampled_from(STRENGTH),
    retained=texts,
    prefix=texts,
    suffix=st.sampled_from(["", "\n", "s"]),
    shown=texts,
    accepted_characters=st.sampled_from([None, 0, 1, 9]),
    cache_hit=st.booleans(),
)
histories = st.tuples(
    st.lists(completions, max_size=6, unique_by=lambda c: c.id), st.lists(events, max_size=8, unique_by=lambda f: f.id)
)


@settings(max_examples=100)
@given(histories, st.randoms(use_true_random=False), st.data())
def test_labels_do_not_depend_on_order_or_repeated_delivery(history, random, data) -> None:
    completions, events = history
    expected = join(completions, events, SECONDS)
    redelivered_completions = completions + (data.draw(st.lists(st.sampled_from(completions), max_size=3)) if completions else [])
    redelivered_events = events + (data.draw(st.lists(st.sampled_from(events), max_size=3)) if events else [])
    random.shuffle(redelivered_completions)
    random.shuffle(redelivered_events)
    result = join(redelivered_completions, redelivered_events, SECONDS)
    assert result.joined == expected.joined
    assert result.orphans == expected.orphans
    assert result.duplicates == len(redelivered_completions) - len(completions)


@settings(max_examples=130)
@given(histories)
def test_outcomes_agree_with_the_reference(history) -> None:
    completions, events = history
    outcomes = {
        j.completion.id: (j.label.outcome if j.label else None, j.cache_hit) for j in join(completions, events, SECONDS).joined
    }
    assert outcomes == reference_outcomes(completions, events)


def reference_outcomes(completions: list[Completion], events: list[Feedback]) -> dict[str, tuple[str | None, bool]]:
    """Return outcome and cache flag by completion id; tries every impression against every completion."""
    impressions: dict[object, list[Feedback]] = {}
    for event in events:
        impressions.setdefault((event.user, event.client_id or ("event", event.id)), []).append(event)
    judged: dict[str, list[tuple[int, bool, str, tuple[Any, ...]]]] = {c.id: [] for c in completions}
    for group in impressions.values():
        first = min(e.time for e in group)
        named = [e.completion_id for e in sorted(group, key=lambda e: (e.time, e.id)) if e.completion_id]
        signs = {"retained": 1}  # of several the latest counts
        parts = [e.accepted_characters or 0 if e.outcome == "partially_accepted" else 0 for e in group]
        order = [(RANK[e.outcome], part, signs.get(e.outcome, -1) * e.time, e.id) for e, part in zip(group, parts, strict=True)]
        best = group[order.index(max(order))]
        with_text = [e for e in group if e.shown] or group
        event = best if best.shown else max(with_text, key=lambda e: (RANK[e.outcome], -e.time, e.id))
        if named:  # editors add and remove blanks at the end
            event = event.model_copy(update={"shown": event.shown.rstrip() or event.shown})
        candidates = []
        for c in completions:
            typed = event.prefix[len(c.prefix) :]
            places = [
                len(typed + spaces + event.shown)
                for spaces in ("", " ", "  ")
                if event.prefix == c.prefix + typed and c.text.startswith(typed + spaces + event.shown)
            ]
            same = (
                c.user == event.user and c.suffix.strip("\n") == event.suffix.strip("\n") and bool(event.shown) and bool(places)
            )
            in_time = -1 <= first - c.time <= SECONDS
            by_id = bool(named) and c.id == named[0] and c.user == event.user
            starts = (c.text, c.text.lstrip())  # editors remove blanks at the start
            begins = [len(c.text) - len(start) for start in starts if not event.prefix and start.startswith(event.shown)]
            whole = [] if event.shown else [len(c.text)]
            rest = [len(c.text.rstrip())] if not event.prefix and c.text.rstrip().endswith(event.shown) else []
            ends = [*(places if same else ()), *whole, *(at + len(event.shown) for at in begins), *rest]
            if (by_id and (same or begins or rest)) if named else (same and in_time):
                candidates.append((c.prefix == event.prefix, c.time, c.id, ends[0], c))
        if candidates:
            *_, extent, chosen = max(candidates)
            cached = any(e.cache_hit for e in group)
            outcome: str = {"thumbs_down": "rejected"}.get(best.outcome, best.outcome)
            shown = event.shown or chosen.text
            seen = len(shown.rstrip()) or len(shown)
            in_part = [e for e in group if e.outcome == "partially_accepted"]
            longest = max(in_part, key=lambda e: (e.accepted_characters or 0, -e.time, e.id), default=best)
            taken = seen if longest.accepted_characters is None else longest.accepted_characters  # else the line, which is all
            if outcome == "partially_accepted":
                outcome = "accepted" if taken >= seen > 0 else outcome
            if outcome == "retained":
                # Texts are shorter than the shortest run that counts: all words stand in a row, or the text is not retained.
                words, left = shown.split(), best.retained.split()
                rows = [left[start : start + len(words)] for start in range(len(left))]
                all_of_it = taken >= seen or not in_part or any(e.outcome == "accepted" for e in group)
                stays = words and all_of_it and words in rows  # of a blank one nothing stays
                outcome = "accepted" if stays else "partially_accepted"
            part = min(taken, seen) if best.outcome == "partially_accepted" else 0
            one = (extent - len(shown) + seen, part, first, best.client_id, outcome)
            judged[chosen.id].append((RANK[best.outcome], cached, outcome, one))
    result: dict[str, tuple[str | None, bool]] = {}
    for name, matches in judged.items():
        judgements = [match for match in matches if match[0] > 0]
        counted = [match for match in judgements if not match[1]]
        strongest = max(counted, key=lambda match: (match[0], match[3]), default=None)
        result[name] = (strongest[2], False) if strongest else (None, bool(judgements))
    return result


@pytest.mark.parametrize("text", [" foo(bar)", "\n    foo(bar)"])
def test_an_event_with_an_id_may_lack_the_blanks_at_the_start(text: str) -> None:
    found = only([completion(text=text)], [feedback(completion_id="c", prefix="", suffix="", shown="foo(bar)")])
    assert found.label is not None and (found.label.extent, found.label.accepted_characters) == (len(text), 8)


@pytest.mark.parametrize(
    ("shown", "label"),
    [
        ("bar)", Label("accepted", 4, 8, 4)),
        ("bar)\n", Label("accepted", 4, 8, 4)),
        ("foo(bar)\n", Label("accepted", 8, 8, 8)),
        ("foo(\n", Label("accepted", 4, 4, 4)),
        (")", Label("accepted", 1, 8, 1)),
        ("bar", None),
        ("\n", None),
        ("made up", None),
    ],
)
@pytest.mark.parametrize("text", ["foo(bar)", "foo(bar)\n  "])
def test_an_event_with_an_id_may_have_the_rest_that_was_shown_after_a_part_was_typed(
    text: str, shown: str, label: Label | None
) -> None:
    event = feedback(completion_id="c", prefix="", suffix="", shown=shown)
    result = join([completion(text=text), completion("d", text=text)], [event], SECONDS)
    assert [j.label for j in result.joined] == [label, None]
    assert result.orphans == (label is None)


@pytest.mark.parametrize(("outcome", "accepted"), [("rejected", 0), ("partially_accepted", 3), ("shown", None)])
def test_a_rest_has_its_own_outcome_and_length(outcome: str, accepted: int | None) -> None:
    event = feedback(completion_id="c", prefix="", suffix="", shown="bar)", outcome=outcome, accepted_characters=accepted)
    assert only([completion()], [event]).label == (None if accepted is None else Label(outcome, 4, 8, accepted))
