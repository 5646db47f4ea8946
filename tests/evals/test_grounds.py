"""The two grounds of a comparison share nothing, and what is kept for later stands in no live window."""

import random
from collections import Counter

import pytest

from evals.developers import GROUNDS, Schedule, code_from
from evals.developers.grounds import LONG_LINE, Grounds, holes_in, role_of
from tasks.evaluation.positions import Code, Source, is_scored

COUNT = 400


@pytest.fixture(scope="module")
def code() -> Code:
    return code_from()


@pytest.fixture(scope="module")
def schedule(code) -> Schedule:
    return Schedule(200, 0, code)


@pytest.fixture(scope="module")
def places(schedule):
    return {ground: [schedule.first_pause(number, ground) for number in range(COUNT)] for ground in GROUNDS}


def removed(pause) -> list[str]:
    """The long lines of the removed span, the cursor's own with what stands before the cursor."""
    return long_lines(pause.prefix.rsplit("\n", 1)[-1] + pause.rest)


def long_lines(text: str) -> list[str]:
    return [line for raw in text.split("\n") if len(line := raw.strip()) >= LONG_LINE]


def test_no_place_of_one_ground_is_part_of_another(places):
    spans = {
        ground: {(p.position.file, o) for p in pauses for o in range(p.position.offset, p.position.offset + len(p.rest))}
        for ground, pauses in places.items()
    }
    windows = {
        ground: {line for p in pauses for line in long_lines(p.prefix) + long_lines(p.suffix)}
        for ground, pauses in places.items()
    }
    for ground in GROUNDS:
        gone = [line for pause in places[ground] for line in removed(pause)]
        assert len(gone) > COUNT
        for other in set(GROUNDS) - {ground}:
            assert not spans[ground] & spans[other]
            assert not [line for line in gone if line in windows[other]], (ground, other)


def test_text_for_later_and_new_files_stand_in_no_live_window(schedule, code, places):
    live = [schedule.first_pause(number) for number in range(3000)]
    windows = {line for pause in live for line in [*long_lines(pause.prefix), *long_lines(pause.suffix)]}
    settled = {line for pause in live for line in long_lines(pause.settled.text or "")}
    for ground in ("later", "new"):
        assert not [line for pause in places[ground] for line in removed(pause) if line in windows | settled]
    closed = {source.name for source in code.sources if role_of(source) == "closed"}
    assert {pause.position.file for pause in places["new"]} <= closed
    assert not {pause.position.file for pause in live} & closed
    spans = [(s.name, hole.start, hole.stop) for s in code.sources for hole in holes_in(s, "later")]
    later = {(name, offset) for name, start, stop in spans for offset in range(start, stop)}
    assert not [pause for pause in live if (pause.position.file, pause.position.offset) in later]


def test_at_a_place_the_file_is_finished_around_an_empty_rest_of_the_hole(code, places):
    text = {source.name: source.text for source in code.sources}
    for pauses in places.values():
        assert len({(p.position.file, p.position.offset) for p in pauses}) > 0.9 * COUNT
        for pause in pauses:
            place, whole = pause.position, text[pause.position.file]
            assert whole[: place.offset].endswith(place.prefix)
            assert whole[place.offset :].startswith(pause.rest) and pause.rest.startswith(place.truth)
            assert whole[place.offset + len(pause.rest) :].startswith(place.suffix)
            assert pause.settled.text == pause.rest and pause.settled.whole


def test_grounds_depend_on_the_code_alone(code, schedule):
    live = {(s.name, hole.start) for s in code.sources for hole in holes_in(s, "live")}
    for seed in (1, 2):
        other = Schedule(200, seed, code)
        assert {(s.source.name, s.holes[g.hole].start) for s in map(other.session, range(50)) for g in s.segments} <= live
    grounds = Grounds(code.sources)
    assert all(grounds.lines(ground) > 3000 for ground in GROUNDS)
    shares = Counter(role_of(source) for source in code.sources)
    assert 0.06 < shares["closed"] / len(code.sources) < 0.2 and 0.15 < shares["whole"] / len(code.sources) < 0.35
    assert not any(is_scored(source.name) for source in code.sources)  # held-out evaluation's files are apart from all grounds
    assert sum(len(hole.lines) for s in code.sources for hole in holes_in(s, "live")) > 30_000


def test_a_ground_without_a_place_is_an_error():
    one = Source("a.py", "x = 1\n")
    with pytest.raises(ValueError, match="ground 'new': 1 files hold no place"):
        Grounds([one]).draw("new", random.Random(0))
    name = next(f"{n}.py" for n in range(100) if role_of(Source(f"{n}.py", "x = 1\n")) == "closed")
    with pytest.raises(ValueError, match="none of 1 files is one that developers type in"):
        Schedule(3, 0, Code([Source(name, "x = 1\n")])).session(0)
