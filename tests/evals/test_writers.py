"""Developers who write: what stands in a file while holes of it are written, and what became of each place."""

import random
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from evals.developers import Developer, Quirks, Schedule
from evals.developers.draws import taste_of
from evals.developers.editor import prompt_context
from evals.developers.grounds import holes_in
from evals.developers.pause import Pause
from evals.developers.sessions import Draft, Patch, Segment, Session
from evals.developers.writer import Reaction, Writer
from tasks.evaluation.positions import Code, Source
from tasks.own_code.holes import holes_of

TEXT = "".join(
    f'''import module_{i}


class Thing{i}:
    """A thing, number {i}."""

    size = {i}

    def area_{i}(self, width, height):
        # product of both, plus {i}
        area = width * height + {i}
        if area > {i}00:
            return self.large_{i}(area)
        return area

    @property
    def name_{i}(self):
        return "thing-{i}" + self.suffix


'''
    for i in range(4)
)
SOURCE = Source("team/things.py", TEXT)
BUSY = Quirks(
    pauses=0.9,
    pastes=0.1,
    false_starts=0.15,
    wrong_words=0.2,
    leaves_wrong=0.5,
    jumps=0.5,
    unfinished=0.3,
    goes_on=0.6,
    breaks=0.2,
)
CODE = Code([Source(f"team/{i}.py", TEXT.replace("thing", f"thing{i}")) for i in range(12)])


class Asked:
    """Runs one session; answers as `reply` says, and keeps what a server would have seen."""

    def __init__(self, session: Session, reply, quirks: Quirks = BUSY, seed: int = 0) -> None:
        self.session, self.draft = session, session.draft()
        self.pauses: list[tuple[Pause, str]] = []
        self.settled: list[tuple[Pause, Any]] = []
        writer = Writer(session, self.draft, quirks, ("test", seed), lambda pause, truth: self.settled.append((pause, truth)))
        steps, reaction = writer.steps(), None
        try:
            while True:
                step = steps.send(reaction)
                reaction = None
                if not isinstance(step, float):
                    self.pauses.append((step, self.draft.text))
                    reaction = reply(step)
        except StopIteration:
            pass


def session_of(source: Source, seed: int, complete: bool = True) -> Session:
    """A session over random holes of a file; the last hole ends early unless `complete`."""
    rng = random.Random(seed)
    holes = tuple(hole for hole in holes_of(source.text) if rng.random() < 0.6) or holes_of(source.text)[-1:]
    segments = [Segment(i, 0, len(hole.lines)) for i, hole in enumerate(holes) if rng.random() < 0.8] or [Segment(0, 0, 1)]
    last = segments[-1]
    if not complete and last.last > 1:
        segments[-1] = Segment(last.hole, 0, rng.randint(1, last.last - 1))
    return Session(0, 0, source, holes, Developer("u", taste_of(seed, 0)), tuple(segments), ())


def replies(seed: int):
    """A server and a developer of any kind: nothing, right text, half right text, wrong text, several lines, typed over."""
    rng = random.Random(seed)

    def reply(pause: Pause) -> Reaction:
        truth = pause.position.truth
        typed = truth[: rng.choice((0, 0, 0, 2))] if len(truth) > 3 else ""
        rest = pause.rest[len(typed) :]
        wrong = rng.choice(("zq(", "zq)\n    zq", ""))
        kind = rng.randrange(5)
        if kind < 2:
            return Reaction("rejected", typed)
        if kind == 2:
            return Reaction("cancelled", typed)
        inserted = rest[: rng.randint(0, len(rest))] + wrong
        return Reaction("accepted", typed, inserted) if inserted else Reaction("nothing", typed)

    return reply


@given(st.text(alphabet="ab:(@\n \t#\"'\\", max_size=120) | st.sampled_from([TEXT, "", "x = 1", "\n\n", "def f(:\n\n  a\n"]))
def test_holes_cover_every_line_once(text):
    holes = holes_of(text)
    covered = [text[hole.start + start : hole.start + end].strip() for hole in holes for start, end in hole.lines]
    assert covered == [line.strip() for line in text.split("\n") if line.strip()]
    assert all(a.next == b.start for a, b in pairwise(holes))
    for hole in holes:
        assert hole.start < hole.stop <= hole.next and not text[hole.stop : hole.next].strip()


@settings(max_examples=60)
@given(st.integers(0, 10_000), st.booleans())
def test_a_session_ends_with_the_real_text_except_in_unfinished_holes(seed, complete):
    run = Asked(session_of(SOURCE, seed, complete), replies(seed), seed=seed)
    touched = {segment.hole for segment in run.session.segments}
    expected, at = [], 0
    for number, hole in enumerate(run.draft.holes):
        expected.append(TEXT[at : hole.start])
        if number in touched:
            segment = next(s for s in run.session.segments if s.hole == number)
            assert run.draft.front(number) >= hole.lines[segment.last - 1][1]
            expected.append(TEXT[hole.start : hole.start + run.draft.front(number)] + TEXT[hole.stop : hole.next])
        at = hole.next
    assert run.draft.text == "".join([*expected, TEXT[at:]])
    assert len(run.settled) == len(run.pauses) and {id(p) for p, _ in run.settled} == {id(p) for p, _ in run.pauses}


@settings(max_examples=60)
@given(st.integers(0, 10_000))
def test_a_request_shows_what_stands_and_no_line_before_it_is_written(seed):
    run = Asked(session_of(SOURCE, seed), replies(seed), seed=seed)
    assert run.pauses
    for pause, state in run.pauses:
        place = pause.position
        assert place.prefix + place.suffix in state  # all of it here: the file is shorter than what a position keeps
        assert (pause.prefix, pause.suffix) == prompt_context(place.prefix, place.suffix)
        assert place.truth.strip()
        if pause.way == "writes":
            hole = next(h for h in run.draft.holes if h.start <= place.offset < h.next)
            number = next(n for n, (_, end) in enumerate(hole.lines) if hole.start + end > place.offset)
            unwritten = [TEXT[hole.start + a : hole.start + b] for a, b in hole.lines[number + 1 :]]
            # Each line of the text is there once, but for a few; a later one stands in no earlier window.
            assert not [line for line in unwritten if TEXT.count(line) == 1 and line in state]
            assert TEXT[place.offset :].startswith(place.truth) and pause.rest.startswith(place.truth)


@settings(max_examples=60)
@given(st.integers(0, 10_000))
def test_the_settled_text_is_what_stands_between_prefix_and_suffix(seed):
    calm = Quirks(breaks=0, pastes=0, false_starts=0, wrong_words=0, leaves_wrong=0, quiet_seconds=1e9, settle_seconds=1e9)
    run = Asked(session_of(SOURCE, seed), replies(seed), calm, seed)
    for pause, truth in run.settled:  # nothing settles before the end, when the holes are complete
        assert truth.whole and truth.kind in ("typed", "accepted", "rewritten")
        assert truth.text == pause.rest
        final = TEXT[: pause.position.offset] + truth.text
        assert TEXT.startswith(final)


@settings(max_examples=40)
@given(st.integers(0, 10_000))
def test_what_settles_early_is_the_beginning_of_the_rest_or_says_that_it_is_not(seed):
    run = Asked(session_of(SOURCE, seed), lambda pause: Reaction("rejected"), BUSY, seed)
    for pause, truth in run.settled:
        if truth.kind == "deleted":
            assert truth.text is None
            continue
        assert truth.seconds >= 0
        if truth.whole:
            assert len(truth.text.split("\n")) == len(pause.rest.split("\n"))
        if truth.kind == "unfinished":
            assert truth.text == "" and not truth.whole


def test_a_place_settles_some_minutes_after_the_request_and_is_quiet_before():
    calm = Quirks(pauses=1, breaks=0, pastes=0, false_starts=0, wrong_words=0, goes_on=0, several_lines=0)
    session = Session(
        0, 0, SOURCE, holes_of(SOURCE.text), Developer("u", taste_of(1, 0)), (Segment(3, 0, 6), Segment(4, 0, 3)), ()
    )

    def settled(**times):
        return Asked(session, lambda pause: Reaction("rejected"), replace(calm, **times)).settled

    early = settled(settle_seconds=12.0)
    assert any(not truth.whole and truth.text for _, truth in early)
    assert all(truth.text == pause.rest[: len(truth.text)] for pause, truth in early)
    assert all(truth.seconds <= 12 for _, truth in early)
    patient = settled(settle_seconds=1e9)
    assert all(truth.whole and truth.text == pause.rest for pause, truth in patient)
    hasty = settled(settle_seconds=1e9, quiet_seconds=0.01)
    assert any(len(truth.first) < len(truth.text) for _, truth in hasty)
    assert all(truth.text.startswith(truth.first) for _, truth in hasty)
    assert all(truth.first == truth.text for _, truth in settled(settle_seconds=1e9, quiet_seconds=1e9))


def test_each_habit_leaves_its_mark():
    def settled(**rates):
        base = dict.fromkeys(("breaks", "pastes", "false_starts", "wrong_words"), 0.0) | {"pauses": 1.0}
        return [
            (pause, truth)
            for seed in range(8)
            for pause, truth in Asked(
                session_of(SOURCE, seed), lambda pause: Reaction("rejected"), Quirks(**(base | rates)), seed
            ).settled
        ]

    assert {truth.kind for _, truth in settled()} == {"typed"}
    assert "pasted" in {truth.kind for _, truth in settled(pastes=0.3)}
    false = [truth for pause, truth in settled(false_starts=1.0) if pause.way == "false start"]
    assert false and {truth.kind for truth in false} == {"deleted"}
    again = [pause for pause, _ in settled(wrong_words=1.0) if pause.way == "again"]
    assert again and all(pause.rest == pause.position.truth and "\n" not in pause.rest for pause in again)
    assert any(truth.first != pause.rest[: len(truth.first)] for pause, truth in settled(wrong_words=1.0) if truth.first)


def test_an_accepted_wrong_rest_stays_for_some_lines_and_is_written_again():
    def reply(pause: Pause) -> Reaction:
        return Reaction("accepted", "", pause.position.truth[:3] + "zqzq") if pause.way == "writes" else Reaction("rejected")

    calm = Quirks(breaks=0, pastes=0, false_starts=0, wrong_words=0, pauses=1, several_lines=0)
    stays = Asked(session_of(SOURCE, 3), reply, replace(calm, leaves_wrong=1.0))
    assert any("zqzq" in pause.prefix for pause, _ in stays.pauses) and any(p.way == "again" for p, _ in stays.pauses)
    goes = Asked(session_of(SOURCE, 3), reply, replace(calm, leaves_wrong=0.0))
    assert not any("zqzq" in pause.prefix for pause, _ in goes.pauses)
    assert {truth.kind for _, truth in goes.settled} == {"rewritten"}


def by_line(pauses):
    """Return pauses by their way, the offset of the first pause in their line, and their stop."""
    found, begin = {}, 0
    for pause, _ in pauses:
        begin = pause.position.offset if not pause.stop else begin
        found[pause.way, begin, pause.stop] = pause
    return found


@settings(max_examples=20)
@given(st.integers(0, 1000), st.integers(0, 1000))
@example(73, 31)  # a later stop of one line and of the next are at one offset
def test_answers_shift_no_draw(seed, other):
    """Two models meet the same developers: the same line and stop have the same chance events and, at first, the same place."""
    session = session_of(SOURCE, seed)
    runs = [Asked(session, replies(answers), BUSY, seed) for answers in (seed, other)]
    first, second = (by_line(run.pauses) for run in runs)
    both = first.keys() & second.keys()
    assert all(first[key].draws == second[key].draws for key in both)
    again = Asked(session, replies(seed), BUSY, seed)
    assert [p for p, _ in again.pauses] == [p for p, _ in runs[0].pauses] and again.settled == runs[0].settled


def test_patches_stand_where_they_are_put():
    draft = Draft(SOURCE, holes_of(SOURCE.text)[:3])
    assert draft.text == TEXT[holes_of(SOURCE.text)[2].next :]
    draft.open(1)
    draft.write(1, 12)
    draft.put(1, Patch(6, 12, "Other"))
    assert draft.text.startswith("class Other" + TEXT[holes_of(SOURCE.text)[1].stop : holes_of(SOURCE.text)[1].next])
    assert draft.before(1, 12) == "class Other" and draft.between(1, 0, 6) == "class "
    assert draft.after(1, 12) == draft.text.removeprefix("class Other")
    draft.drop(1, Patch(6, 12, "Other"))
    assert draft.before(1, 12) == TEXT[holes_of(SOURCE.text)[1].start :][:12]


def test_the_schedule_is_the_same_for_the_same_seed_and_goes_on_for_ever():
    schedule, again = Schedule(20, 1, CODE, BUSY), Schedule(20, 1, CODE, BUSY)
    pauses = [pause for number in range(300) for pause in schedule.live_pauses(number)][:300]
    assert pauses == [again.first_pause(number) for number in range(300)]
    assert again.first_pause(7) == pauses[7]
    other = Schedule(20, 2, CODE, BUSY)
    assert pauses != [other.first_pause(number) for number in range(300)]
    assert all(pause.settled is not None for pause in pauses)
    assert len({pause.developer.name for pause in pauses}) > 5 and any(pause.developer.silent for pause in pauses)
    sessions = [schedule.session(number) for number in range(400)]
    assert sessions[-1].round > 0 and [session.number for session in sessions] == list(range(400))
    assert schedule.session(3) == sessions[3]


def test_in_a_pass_every_live_hole_is_written_from_the_top_and_those_for_later_never():
    schedule = Schedule(20, 1, CODE, Quirks(unfinished=0))
    written: dict[tuple[str, int], int] = {}
    for number in range(1000):
        session = schedule.session(number)
        if session.round:
            break
        for segment in session.segments:
            key = session.source.name, session.holes[segment.hole].start
            assert written.get(key, 0) == segment.first
            written[key] = segment.last
            assert session.holes[segment.hole] not in holes_in(session.source, "later")
    for name, start in written:
        hole = next(h for s in CODE.sources if s.name == name for h in holes_of(s.text) if h.start == start)
        assert written[name, start] == len(hole.lines)


def test_a_draft_as_planned_is_what_the_earlier_sessions_leave():
    schedule = Schedule(20, 1, CODE, BUSY)
    drafts: dict[str, Any] = {}
    for number in range(120):
        session = schedule.session(number)
        if session.round:
            break
        draft = drafts.setdefault(session.source.name, session.draft())
        assert draft.text == session.draft().text
        steps, reaction = schedule.writer(session, draft, lambda pause, truth: None).steps(), None
        with pytest.raises(StopIteration):
            while True:
                step = steps.send(reaction)
                reaction = None if isinstance(step, float) else Reaction("rejected")
