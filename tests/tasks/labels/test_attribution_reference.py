"""The join against a slow and obvious reference of its own: every label whole, from the documents and not from the code.

The other one (test_join.py) compares outcomes; this one also compares what was shown, how far the developer saw, and what was
accepted, over histories in which a developer really types, so that reused streams and late accepts are frequent.
"""

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from infra.records import Completion, Feedback
from tasks.labels.attribution import STRENGTH
from tests.tasks.made import NOW, completion, feedback
from tests.tasks.rows import join

SECONDS = 60.0
LATE_BY_CLOCKS = 1.0
Whole = tuple[str, int, int, int] | None
"""Outcome, characters shown, extent, characters accepted; none without a label."""


def reference(completions: Sequence[Completion], events: Sequence[Feedback]) -> tuple[dict[str, Whole], set[str], int]:
    """Labels by completion, completions judged from the cache alone, and impressions of nothing that was served."""
    impressions: list[list[Feedback]] = []
    for event in events:
        for group in impressions:
            first = group[0]
            if event.client_id and (first.project, first.user, first.client_id) == (event.project, event.user, event.client_id):
                group.append(event)
                break
        else:
            impressions.append([event])

    found: dict[str, list[tuple[int, int, float, str, Whole, bool]]] = {c.id: [] for c in completions}
    orphans = 0
    # Of impressions without a client's id that are alike in all else, the first by name counts.
    for group in sorted(impressions, key=lambda group: group[0].id):
        # Of one impression the strongest word counts, in this order; of two accepted in part the larger.
        words = ("shown", "rejected", "partially_accepted", "accepted", "retained", "thumbs_down")
        strength = {word: number for number, word in enumerate(words)}
        truth = sorted(group, key=lambda e: (strength[e.outcome], e.accepted_characters or 0, -e.time, e.id))[-1]
        # A later word, said by id, may come without the place.
        place = truth
        if not truth.shown:
            place = sorted(group, key=lambda e: (e.shown != "", strength[e.outcome], -e.time, e.id))[-1]
        arrived = min(e.time for e in group)
        named = [e.completion_id for e in sorted(group, key=lambda e: (e.time, e.id)) if e.completion_id][:1]
        possible = []
        for c in completions:
            if (c.project, c.user) != (truth.project, truth.user):
                continue
            if named and c.id != named[0]:
                continue
            if not named and not (c.time - LATE_BY_CLOCKS <= arrived <= c.time + SECONDS):
                continue
            if (seen := saw(c, place, named=bool(named))) is not None:
                possible.append((c.prefix == place.prefix, c.time, c.id, seen))
        if not possible:
            orphans += 1
            continue
        _, _, owner, (extent, length) = max(possible)
        text = next(c.text for c in completions if c.id == owner)[:extent]
        text = text[extent - length :]
        outcome, kept = truth.outcome, 0
        if outcome == "accepted":
            kept = len(text)
        elif outcome == "partially_accepted":
            counted = truth.accepted_characters
            kept = len(text.split("\n")[0]) if counted is None else min(counted, len(text))
        elif outcome == "retained":  # texts are no longer than a run that counts: it is all there, or nothing is
            outcome, kept = ("accepted", len(text)) if text in truth.retained else ("partially_accepted", 0)
        elif outcome == "thumbs_down":
            outcome = "rejected"
        label = (outcome, len(text), extent, kept)
        cached = any(e.cache_hit for e in group)
        found[owner].append((strength[truth.outcome], extent, arrived, truth.client_id, label, cached))

    labels: dict[str, Whole] = {}
    from_cache: set[str] = set()
    for name, told in found.items():
        judged = [t for t in told if t[0] > 0]
        real = [t for t in judged if not t[5]]
        labels[name] = max(real, key=lambda t: t[:4])[4] if real else None
        if judged and not real:
            from_cache.add(name)
    return labels, from_cache, orphans


def saw(c: Completion, event: Feedback, *, named: bool) -> tuple[int, int] | None:
    """How far a completion's text was seen and how much of it was shown, if the event is of it."""
    newline = {"\n": ""}
    if event.shown and newline.get(c.suffix, c.suffix) == newline.get(event.suffix, event.suffix):
        selected = [n for n in range(4, len(event.shown)) if event.shown[:n].strip() and event.prefix.endswith(event.shown[:n])]
        for shown in (event.shown, *([] if named else [event.shown[n:] for n in selected[-1:]])):
            for typed in range(len(event.prefix) + 1):
                before, after = event.prefix[: len(event.prefix) - typed], event.prefix[len(event.prefix) - typed :]
                if before != c.prefix:
                    continue
                for spaces in range(3):
                    if c.text[: len(after) + spaces + len(shown)] == after + " " * spaces + shown:
                        return len(after) + spaces + len(shown), len(shown)
    if named and not event.prefix and c.text.startswith(event.shown):
        return len(event.shown) or len(c.text), len(event.shown) or len(c.text)
    return None


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[Completion], list[Feedback]]:
    """A developer, sometimes two, who type, are shown things, wait, and judge; and a little noise."""
    completions: list[Completion] = []
    events: list[Feedback] = []
    time = NOW
    for number in range(draw(st.integers(1, 5))):
        time += draw(st.sampled_from([0.0, 0.5, 20.0, 70.0]))
        user, suffix = draw(st.sampled_from("uuv")), draw(st.sampled_from(["", "\n", "s"]))
        prefix, text = draw(st.text("ab ", max_size=2)), draw(st.text("ab ", max_size=4))
        # A name selected in the list of suggestions, as long as it must be or too short, is told again in front of what is shown.
        selected = draw(st.sampled_from(["", "", "", "name", "x.names", "nam"]))
        prefix += selected
        completions.append(completion(f"c{number}", time=time, user=user, prefix=prefix, suffix=suffix, text=text))
        for impression in range(draw(st.integers(0, 2))):
            typed = draw(st.integers(0, len(text)))
            rest = text[typed:].removeprefix(" " * draw(st.integers(0, 2)))
            shown = rest[: draw(st.integers(0, len(rest)))] if draw(st.booleans()) else draw(st.text("ab ", max_size=3))
            typed, shown = (0, selected + shown) if selected and draw(st.booleans()) else (typed, shown)
            client = draw(st.sampled_from([f"k{number}-{impression}", "", "shared"]))
            cached, at = draw(st.integers(0, 5)) == 0, time + draw(st.sampled_from([-2.0, -0.5, 0.1, 10.0, 59.0, 61.0]))
            for outcome in draw(st.lists(st.sampled_from(STRENGTH), max_size=3)):
                events.append(
                    feedback(
                        f"f{len(events)}",
                        time=at,
                        user=user,
                        client_id=client,
                        completion_id=draw(st.sampled_from(["", "", "", f"c{number}", "c0"])),
                        outcome=outcome,
                        prefix=draw(st.sampled_from([prefix + text[:typed], prefix + text[:typed], ""])),
                        suffix=draw(st.sampled_from([suffix, suffix, "\n"])),
                        shown=shown,
                        retained=draw(st.sampled_from(["", text, "x" + rest])),
                        accepted_characters=draw(st.sampled_from([None, 0, 1, 9])),
                        cache_hit=cached,
                    )
                )
                at += draw(st.sampled_from([0.0, 4.0]))
    return completions, draw(st.permutations(events))


@settings(max_examples=300)
@given(histories())
def test_whole_labels_agree(history: tuple[list[Completion], list[Feedback]]) -> None:
    completions, events = history
    labels, from_cache, orphans = reference(completions, events)
    found = join(completions, events, SECONDS)
    assert {j.completion.id: _whole(j.label) for j in found.joined} == labels
    assert {j.completion.id for j in found.joined if j.cache_hit} == from_cache
    assert found.orphans == orphans


def _whole(label) -> Whole:
    return (label.outcome, label.shown_characters, label.extent, label.accepted_characters) if label else None
