"""Attribution against a second slow reference, which follows the documentation and not the code.

test_attribution.py compares outcomes. This reference also compares the shown characters, the extent and the accepted characters.
Its histories simulate typing, so that reused streams and late accepts are frequent.
"""

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from infra.model.kept_text import kept_of_part
from infra.records import Completion, Feedback
from tasks.labels.impressions import STRENGTH
from tests.tasks.made import NOW, completion, feedback
from tests.tasks.rows import join

SECONDS = 60.0
CLOCK_TOLERANCE_SECONDS = 1.0
OUTCOMES = ("shown", "rejected", "partially_accepted", "accepted", "retained", "thumbs_down")
WholeLabel = tuple[str, int, int, int] | None
"""Outcome, shown characters, extent and accepted characters; None without a label."""


def reference(completions: Sequence[Completion], events: Sequence[Feedback]) -> tuple[dict[str, WholeLabel], set[str], int]:
    """Return labels by completion, completions judged from the cache alone, and the count of impressions without a completion."""
    impressions: list[list[Feedback]] = []
    for event in events:
        for group in impressions:
            first = group[0]
            if event.client_id and (first.project, first.user, first.client_id) == (event.project, event.user, event.client_id):
                group.append(event)
                break
        else:
            impressions.append([event])

    matches: dict[str, list[tuple[int, int, int, float, str, WholeLabel, bool]]] = {c.id: [] for c in completions}
    orphans = 0
    # Impressions without a client's id may be equal in all other fields; then the first id counts.
    for group in sorted(impressions, key=lambda group: group[0].id):
        # The strongest outcome of an impression counts, in this order, the larger of two partial accepts, and the later text that
        # is retained.
        strongest = strongest_of(group)
        # A later event with an id may come without text.
        with_text = strongest
        if not strongest.shown:
            with_text = sorted(group, key=lambda e: (e.shown != "", OUTCOMES.index(e.outcome), -e.time, e.id))[-1]
        first_time = min(e.time for e in group)
        ids = [e.completion_id for e in sorted(group, key=lambda e: (e.time, e.id)) if e.completion_id][:1]
        candidates = []
        for c in completions:
            if (c.project, c.user) != (strongest.project, strongest.user):
                continue
            if ids and c.id != ids[0]:
                continue
            if not ids and not (c.time - CLOCK_TOLERANCE_SECONDS <= first_time <= c.time + SECONDS):
                continue
            if (extent_and_length := match_text(c, with_text, has_id=bool(ids))) is not None:
                candidates.append((c.prefix == with_text.prefix, c.time, c.id, extent_and_length))
        if not candidates:
            orphans += 1
            continue
        _, _, chosen, (extent, length) = max(candidates)
        text = next(c.text for c in completions if c.id == chosen)[:extent]
        text = text[extent - length :]
        if text.strip():  # nobody sees the blanks at its end
            text, extent = text.rstrip(), extent - len(text) + len(text.rstrip())
        outcome, accepted = strongest.outcome, 0
        if outcome == "accepted":
            accepted = len(text)
        elif outcome == "partially_accepted":
            counted = strongest.accepted_characters
            lines = text.split("\n")[: lines_of(group, impressions, text)] if counted is None else [text[:counted]]
            accepted = len("\n".join(lines))
        elif outcome == "retained":
            # All of it was accepted, unless the longest of partial accepts alone says how much.
            parts = sorted((e for e in group if e.outcome == "partially_accepted"), key=lambda e: (part_of(e), -e.time, e.id))
            part = parts[-1].accepted_characters if parts and not any(e.outcome == "accepted" for e in group) else None
            accepted = kept_of_part(text, len(text) if part is None else part, strongest.retained)
        elif outcome == "thumbs_down":
            outcome = "rejected"
        if outcome in ("partially_accepted", "retained"):
            outcome = "accepted" if text and accepted == len(text) else "partially_accepted"
        label = (outcome, len(text), extent, accepted)
        cached = any(e.cache_hit for e in group)
        longest = accepted if strongest.outcome == "partially_accepted" else 0
        matches[chosen].append(
            (OUTCOMES.index(strongest.outcome), extent, longest, first_time, strongest.client_id, label, cached)
        )

    labels: dict[str, WholeLabel] = {}
    from_cache: set[str] = set()
    for name, completion_matches in matches.items():
        judgements = [match for match in completion_matches if match[0] > 0]
        uncached = [match for match in judgements if not match[6]]
        labels[name] = max(uncached, key=lambda match: match[:5])[5] if uncached else None
        if judgements and not uncached:
            from_cache.add(name)
    return labels, from_cache, orphans


def strongest_of(group: Sequence[Feedback]) -> Feedback:
    return max(group, key=lambda e: (OUTCOMES.index(e.outcome), part_of(e), preferred(e), e.id))


def lines_of(group: Sequence[Feedback], impressions: Sequence[Sequence[Feedback]], text: str) -> int:
    """Return the lines that impressions without a number accept of a completion: one each. Of words, which editors report alike,
    one at all: a rest of the completion is then shown after as many accepts as it has lines."""
    own = named(group)
    if not own:
        return 1
    others = [other for other in impressions if named(other) == own]
    accepts = [
        other for other in others if (e := strongest_of(other)).outcome == "partially_accepted" and e.accepted_characters is None
    ]
    last = max(first_time(accept) for accept in accepts)
    rest = any(first_time(other) > last for other in others)
    return 1 if rest and len(accepts) >= len(text.split("\n")) else len(accepts)


def named(group: Sequence[Feedback]) -> tuple[str, str, str] | None:
    """Return project, user and id of the completion that an impression names."""
    ids = [(e.project, e.user, e.completion_id) for e in sorted(group, key=lambda e: (e.time, e.id)) if e.completion_id]
    return ids[0] if ids else None


def first_time(group: Sequence[Feedback]) -> float:
    return min(e.time for e in group)


def part_of(event: Feedback) -> int:
    return event.accepted_characters or 0 if event.outcome == "partially_accepted" else 0


def preferred(event: Feedback) -> float:
    return event.time if event.outcome == "retained" else -event.time


def match_text(c: Completion, event: Feedback, *, has_id: bool) -> tuple[int, int] | None:
    """Return the extent and the number of shown characters, if the event matches the completion."""
    newline = {"\n": ""}
    whole = event.shown
    if has_id:  # editors add and remove blanks at the end
        whole = event.shown.rstrip() or event.shown
    if whole and newline.get(c.suffix, c.suffix) == newline.get(event.suffix, event.suffix):
        selected = [n for n in range(4, len(whole)) if whole[:n].strip() and event.prefix.endswith(whole[:n])]
        for shown in (whole, *([] if has_id else [whole[n:] for n in selected[-1:]])):
            for typed in range(len(event.prefix) + 1):
                before, after = event.prefix[: len(event.prefix) - typed], event.prefix[len(event.prefix) - typed :]
                if before != c.prefix:
                    continue
                for spaces in range(3):
                    if c.text[: len(after) + spaces + len(shown)] == after + " " * spaces + shown:
                        return len(after) + spaces + len(shown), len(shown)
    if has_id and not event.prefix and not whole:
        return len(c.text), len(c.text)
    for start in (c.text, c.text.lstrip()) if has_id and not event.prefix else ():  # editors remove blanks at the start
        if start.startswith(whole):
            return len(c.text) - len(start) + len(whole), len(whole)
    if has_id and not event.prefix and c.text.rstrip().endswith(whole):  # a part was typed, and the rest shown
        return len(c.text.rstrip()), len(whole)
    return None


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[Completion], list[Feedback]]:
    """Draw histories of one or two developers who type, see completions, wait and judge them, with some noise."""
    completions: list[Completion] = []
    events: list[Feedback] = []
    time = NOW
    for number in range(draw(st.integers(1, 5))):
        time += draw(st.sampled_from([0.0, 0.5, 20.0, 70.0]))
        user, suffix = draw(st.sampled_from("uuv")), draw(st.sampled_from(["", "\n", "s"]))
        prefix, text = draw(st.text("ab ", max_size=2)), draw(st.text("ab \n", max_size=5))
        # The editor repeats a name selected in the suggestion list before the shown text; it may be too short to count.
        selected = draw(st.sampled_from(["", "", "", "name", "x.names", "nam"]))
        prefix += selected
        completions.append(completion(f"c{number}", time=time, user=user, prefix=prefix, suffix=suffix, text=text))
        for impression in range(draw(st.integers(0, 2))):
            typed = draw(st.integers(0, len(text)))
            rest = text[typed:].removeprefix(" " * draw(st.integers(0, 2)))
            shown = rest[: draw(st.integers(0, len(rest)))] if draw(st.booleans()) else draw(st.text("ab ", max_size=3))
            typed, shown = (0, selected + shown) if selected and draw(st.booleans()) else (typed, shown)
            client = draw(st.sampled_from([f"k{number}-{impression}", "", "shared"]))
            cache_hit = draw(st.integers(0, 5)) == 0
            event_time = time + draw(st.sampled_from([-2.0, -0.5, 0.1, 10.0, 59.0, 61.0]))
            for outcome in draw(st.lists(st.sampled_from(STRENGTH), max_size=3)):
                events.append(
                    feedback(
                        f"f{len(events)}",
                        time=event_time,
                        user=user,
                        client_id=client,
                        completion_id=draw(st.sampled_from(["", "", "", f"c{number}", "c0"])),
                        outcome=outcome,
                        prefix=draw(st.sampled_from([prefix + text[:typed], prefix + text[:typed], ""])),
                        suffix=draw(st.sampled_from([suffix, suffix, "\n"])),
                        shown=shown,
                        retained=draw(st.sampled_from(["", text, "x" + rest])),
                        accepted_characters=draw(st.sampled_from([None, 0, 1, 9])),
                        cache_hit=cache_hit,
                    )
                )
                event_time += draw(st.sampled_from([0.0, 4.0]))
    return completions, draw(st.permutations(events))


@settings(max_examples=200)
@given(histories())
def test_labels_agree_with_the_reference_in_all_fields(history: tuple[list[Completion], list[Feedback]]) -> None:
    completions, events = history
    labels, from_cache, orphans = reference(completions, events)
    result = join(completions, events, SECONDS)
    assert {j.completion.id: _fields(j.label) for j in result.joined} == labels
    assert {j.completion.id for j in result.joined if j.cache_hit} == from_cache
    assert result.orphans == orphans


def _fields(label) -> WholeLabel:
    return (label.outcome, label.shown_characters, label.extent, label.accepted_characters) if label else None
