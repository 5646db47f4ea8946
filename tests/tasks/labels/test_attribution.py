"""Labels joined to completions, with every quirk of the editor, against a slow and obvious reference."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.records import Completion, Feedback
from tasks.labels.attribution import STRENGTH, TRIMMED_SPACES
from tests.tasks.made import NOW, completion, feedback
from tests.tasks.rows import Joined, Label, cut, join

SECONDS = 60.0
RANK = {outcome: rank for rank, outcome in enumerate(STRENGTH)}


def only(completions: Sequence[Completion], told: Sequence[Feedback]) -> Joined:
    (found,) = join(completions, told, SECONDS).joined
    return found


def test_at_the_place_it_was_served() -> None:
    assert only([completion()], [feedback()]).label == Label("accepted", 8, 8, 8)


def test_by_id_where_the_client_knows_it() -> None:
    elsewhere = completion("other", time=NOW + 0.5)
    found = join([completion(), elsewhere], [feedback(completion_id="c")], SECONDS)
    assert [j.completion.id for j in found.joined if j.label] == ["c"]


@pytest.mark.parametrize(("asked", "told", "kept"), [("", ["", "py"], "py"), ("python", ["", ""], "python"), ("", [""], "")])
def test_the_language_is_the_event_s_else_the_request_s(asked: str, told: list[str], kept: str) -> None:
    events = [feedback(str(n), client_id="k", time=NOW + n, language=language) for n, language in enumerate(told)]
    assert only([completion(language=asked)], events).completion.language == kept
    assert only([completion(language=asked)], []).completion.language == asked


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
def test_what_was_not_served_like_this_is_no_label(fields: dict[str, object]) -> None:
    found = join([completion()], [feedback(**fields)], SECONDS)
    assert found.joined[0].label is None
    assert found.orphans == 1


def test_a_late_accept_overrides_the_reject_before_it() -> None:
    reject = feedback("1", client_id="k", outcome="rejected", time=NOW + 10)
    accept = feedback("2", client_id="k", time=NOW + 14)
    for told in ([reject, accept], [accept, reject]):
        label = only([completion()], told).label
        assert label
        assert label.outcome == "accepted"


def test_a_view_alone_is_no_judgement() -> None:
    assert only([completion()], [feedback(outcome="shown")]).label is None


def test_a_partial_accept_keeps_its_share() -> None:
    label = only([completion()], [feedback(outcome="partially_accepted", accepted_characters=3)]).label
    assert label == Label("partially_accepted", 8, 8, 3)


def test_who_tells_by_id_alone_means_all_that_was_served() -> None:
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
        ("foo(baz)", Label("partially_accepted", 8, 8, 6)),
        ("bar()", Label("partially_accepted", 8, 8, 0)),
        ("", Label("partially_accepted", 8, 8, 0)),
    ],
)
def test_of_an_accept_what_is_left_of_it_counts(retained: str, label: Label) -> None:
    accept = feedback("1", client_id="k")
    later = feedback("2", client_id="k", time=NOW + 30, outcome="retained", retained=retained, prefix="", suffix="", shown="")
    for told in ([accept, later], [later, accept]):
        assert only([completion()], told).label == label


def test_a_thumb_down_is_a_rejection_whatever_was_done_before() -> None:
    told = [feedback("1", client_id="k"), feedback("2", client_id="k", outcome="thumbs_down", shown="")]
    assert only([completion()], told).label == Label("rejected", 8, 8, 0)


def test_a_reused_stream_joins_to_its_first_request() -> None:
    found = only([completion()], [feedback(prefix="x = fo", shown="o(ba")])
    assert found.label == Label("accepted", shown_characters=4, extent=6, accepted_characters=4)
    assert cut(found.completion, 6) == 6


def test_the_very_place_goes_before_a_reused_stream() -> None:
    later = completion("later", prefix="x = fo", text="o(bar)", time=NOW - 5)
    found = join([completion(), later], [feedback(prefix="x = fo", shown="o(bar)")], SECONDS)
    assert [j.completion.id for j in found.joined if j.label] == ["later"]


def test_of_two_requests_at_one_place_the_latest_counts() -> None:
    found = join([completion("1"), completion("2", time=NOW + 0.5)], [feedback()], SECONDS)
    assert [j.completion.id for j in found.joined if j.label] == ["2"]


def test_the_editors_cache_counts_for_nothing() -> None:
    found = only([completion()], [feedback(cache_hit=True)])
    assert (found.label, found.cache_hit) == (None, True)
    both = only([completion()], [feedback("1", cache_hit=True), feedback("2", outcome="rejected")])
    assert both.label
    assert both.label.outcome == "rejected"


def test_an_empty_suffix_is_sent_as_a_newline() -> None:
    assert only([completion(suffix="\n")], [feedback(suffix="")]).label


@pytest.mark.parametrize("spaces", TRIMMED_SPACES)
def test_leading_spaces_that_the_editor_removed_were_still_seen(spaces: str) -> None:
    found = only([completion(text=f"{spaces}foo")], [feedback(shown="foo")])
    assert found.label
    assert found.label.extent == len(spaces) + 3


@pytest.mark.parametrize(
    ("text", "finish", "extent", "kept"),
    [
        ("foo", "stop", 3, 4),  # all of it, the end token too
        ("foo  ", "stop", 3, 6),  # all but trailing blanks, which the editor trims
        ("foo", "stop", 2, 2),
        ("foo", "length", 3, 3),
        ("foo", "disconnected", 1, 1),
    ],
)
def test_tokens_are_cut_to_what_was_shown(text: str, finish: str, extent: int, kept: int) -> None:
    assert cut(completion(text=text, finish_reason=finish), extent) == kept


def test_a_token_that_was_shown_in_part_is_kept_and_the_next_is_not() -> None:
    served = completion(text="foobar", finish_reason="length")
    served = served.model_copy(update={"token_ids": (1, 2, 3), "logprobs": (-1.0,) * 3, "token_ends": (3, 5, 6)})
    assert [cut(served, extent) for extent in (1, 3, 4, 5, 6)] == [1, 1, 2, 2, 3]


@pytest.mark.parametrize(
    ("served", "prefix", "shown", "label"),
    [
        (("print(os.pathsep", "(1, 2)"), "print(os.pathsep", "pathsep(1, 2)", Label("accepted", 6, 6, 6)),
        (("print(os.pathsep", "(1, 2)"), "print(os.pathsep", "pathsep(1", Label("accepted", 2, 2, 2)),
        (("print(os.pa", "thsep(1)"), "print(os.pathsep", "pathsep(1)", Label("accepted", 3, 8, 3)),  # and the stream reused
        (("name = ", "name = 1"), "name = ", "name = 1", Label("accepted", 8, 8, 8)),  # nothing selected, the model's own words
        (("print(os.sep", "(1)"), "print(os.sep", "sep(1)", None),  # too short to be asked with
        (("print(os.pathsep", "(1)"), "print(os.pathsep", "pathsep", None),  # and nothing of the model's
        (("print(os.pathsep", "(1)"), "print(os.pathsep", "linesep(1)", None),
    ],
)
def test_a_name_selected_in_the_list_is_told_again_in_front(served, prefix, shown, label) -> None:
    joined = only([completion(prefix=served[0], text=served[1])], [feedback(prefix=prefix, shown=shown)])
    assert joined.label == label


# Small alphabets, so that places, texts and ids meet often.
texts = st.text("ab ", max_size=3)
served = st.builds(
    completion,
    id=st.sampled_from(["1", "2", "3", "4", "5"]),
    time=st.floats(NOW, NOW + 90),
    user=st.sampled_from(["u", "v"]),
    prefix=texts,
    suffix=st.sampled_from(["", "\n", "s"]),
    text=texts,
    finish_reason=st.sampled_from(["stop", "length", "disconnected"]),
)
told = st.builds(
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
    st.lists(served, max_size=6, unique_by=lambda c: c.id), st.lists(told, max_size=8, unique_by=lambda f: f.id)
)


@settings(max_examples=150)
@given(histories, st.randoms(use_true_random=False), st.data())
def test_order_and_repeated_delivery_change_nothing(history, random, data) -> None:
    completions, events = history
    expected = join(completions, events, SECONDS)
    again_c = completions + (data.draw(st.lists(st.sampled_from(completions), max_size=3)) if completions else [])
    again_f = events + (data.draw(st.lists(st.sampled_from(events), max_size=3)) if events else [])
    random.shuffle(again_c)
    random.shuffle(again_f)
    found = join(again_c, again_f, SECONDS)
    assert found.joined == expected.joined
    assert found.orphans == expected.orphans
    assert found.duplicates == len(again_c) - len(completions)


@settings(max_examples=200)
@given(histories)
def test_agrees_with_the_obvious_way(history) -> None:
    completions, events = history
    found = {
        j.completion.id: (j.label.outcome if j.label else None, j.cache_hit) for j in join(completions, events, SECONDS).joined
    }
    assert found == obvious(completions, events)


def obvious(completions: list[Completion], events: list[Feedback]) -> dict[str, tuple[str | None, bool]]:
    """Every impression tried against every completion; outcomes by completion id."""
    impressions: dict[object, list[Feedback]] = {}
    for event in events:
        impressions.setdefault((event.user, event.client_id or ("event", event.id)), []).append(event)
    judged: dict[str, list[tuple[int, bool, str]]] = {c.id: [] for c in completions}
    for group in impressions.values():
        first = min(e.time for e in group)
        named = [e.completion_id for e in sorted(group, key=lambda e: (e.time, e.id)) if e.completion_id]
        best = max(group, key=lambda e: (RANK[e.outcome], e.accepted_characters or 0, -e.time, e.id))
        telling = [e for e in group if e.shown] or group
        event = best if best.shown else max(telling, key=lambda e: (RANK[e.outcome], -e.time, e.id))
        candidates = []
        for c in completions:
            places = [
                c.prefix + typed
                for typed in (event.prefix[len(c.prefix) :],)
                if event.prefix == c.prefix + typed
                and any(c.text.startswith(typed + spaces + event.shown) for spaces in ("", " ", "  "))
            ]
            same = (
                c.user == event.user and c.suffix.strip("\n") == event.suffix.strip("\n") and bool(event.shown) and bool(places)
            )
            in_time = -1 <= first - c.time <= SECONDS
            by_id = bool(named) and c.id == named[0] and c.user == event.user
            whole = not event.prefix and c.text.startswith(event.shown)
            if (by_id and (same or whole)) if named else (same and in_time):
                candidates.append(c)
        if candidates:
            chosen = max(candidates, key=lambda c: (c.prefix == event.prefix, c.time, c.id))
            cached = any(e.cache_hit for e in group)
            outcome: str = {"thumbs_down": "rejected"}.get(best.outcome, best.outcome)
            if outcome == "retained":
                # Texts are shorter than a run that counts: it is all there or nothing is.
                outcome = "accepted" if (event.shown or chosen.text) in best.retained else "partially_accepted"
            judged[chosen.id].append((RANK[best.outcome], cached, outcome))
    result: dict[str, tuple[str | None, bool]] = {}
    for name, found in judged.items():
        real = [f for f in found if f[0] > 0]
        counted = [f for f in real if not f[1]]
        result[name] = (max(counted)[2], False) if counted else (None, bool(real))
    return result
