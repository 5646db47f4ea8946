"""What people do beside the plain kind of developer: near misses, alternatives, no text in mind, attention, time."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evals.developers import RunSettings, Tally, any_server
from evals.developers.aggregates import Collected, Times, aggregates
from evals.developers.alternatives import alternative
from evals.developers.draws import Quirks, draws_at, random_stream, taste_of
from evals.developers.pause import SettledTruth
from evals.developers.people import Attention, People, Sight, kept_of, opinion_of, reading_seconds, seconds_saved
from evals.developers.plausible import plausible, quality
from evals.developers.sessions import Draft
from evals.developers.taste import Opinion
from evals.developers.writer import Reaction
from infra.model.time_saved import keystrokes
from tasks.evaluation.positions import Source
from tasks.own_code.holes import holes_of
from tests.evals.test_taste import PLAIN
from tests.evals.test_writers import SOURCE, Asked, session_of

PEOPLE = People()


@pytest.mark.parametrize(
    ("before", "shown", "truth", "renamed"),
    [
        ("    ", "name = 'tabloop'", 'name = "tabloop"', None),
        ("    ", "run(b=2, a=1)", "run(a=1, b=2)", None),
        ("", "from os import sep, path", "from os import path, sep", None),
        ("    if ", "None != value:", "value != None:", None),
        ("    if ", "name not in known:", "not name in known:", None),
        ("    ", "count = count + 1", "count += 1", None),
        ("    ", "for i in range(0, n):", "for i in range(n):", None),
        ("    rows = ", "[]", "list()", None),
        ("    with ", "open(path, 'r') as file:", "open(path) as file:", None),
        ("    ", "area = width * height", "size = width * height", ("size", "area")),
        ("    ", "first = f(x)\n    return first", "value = f(x)\n    return value", ("value", "first")),
    ],
)
def test_a_text_that_means_the_same_is_an_alternative(before, shown, truth, renamed):
    found = alternative(before, shown, truth)
    assert found is not None and (found.covered, found.renamed) == (len(truth), renamed)


@pytest.mark.parametrize(
    ("before", "shown", "truth"),
    [
        ("    ", "size = width * height", "size = width * height"),  # equal
        ("    ", "size = width + height", "size = width * height"),
        ("    ", "size = height / width", "size = width / height"),
        ("    ", "run(1, 2)", "run(2, 1)"),
        ("    ", "self.size = 1", "self.area = 1"),
        ("    ", "return (width", "return width"),  # no statement
        ("    ", "total = total * 2", "count = total * 2"),  # the name is not new where it stands: `total` is read
        ("    if ", "a < b:", "b < a:"),
    ],
)
def test_a_text_of_another_meaning_is_none(before, shown, truth):
    assert alternative(before, shown, truth) is None


@pytest.mark.parametrize(
    ("text", "taken"),
    [
        ("return width * height", True),
        ("return self.height", True),
        ("return len(width)", True),
        ("width.append(height)", True),
        ("scale = 2", True),
        ("return unknown", False),
        ("return width.frobnicate()", False),
        ("return (width", False),
        ("area = width", False),  # repeats the line above
        ("return [0, 0, 0, 0, 0, 0]", False),
        ("# to do", False),
        ("   ", False),
    ],
)
def test_a_text_is_plausible_where_it_parses_names_what_exists_and_repeats_nothing(text, taken):
    prefix = "class Box:\n    def size(self, width, height):\n        self.height = height\n        area = width\n        "
    assert plausible(prefix, "\n\n    def other(self):\n        pass\n", text) is taken


def sight(shown: str, truth: str, **values) -> Sight:
    rest = truth + "\n    return size\n"
    given = {"prefix": "def f(width, height):\n    ", "suffix": "\n", "rest": rest, "shown": shown, "truth": truth}
    return Sight(**given | {"in_mind": True, "takes_alternatives": True} | values)


def test_a_near_miss_is_accepted_where_the_edit_costs_less_than_typing_saves():
    truth, near, far = "size = width * height", "size = width + height", "print(width)"
    taste = replace(PLAIN, strictness=0.8)
    found = opinion_of(PEOPLE, taste, sight(near, truth))
    assert (found.accepted, found.reason, found.covered, found.edit) == (True, "near", len(truth), 1)
    assert seconds_saved(found, truth) == pytest.approx(0.2 * (len(truth) - 1 - 1))
    assert kept_of(found, near, truth, truth) == len(near) - 2  # "+" and its blanks in proportion
    assert not opinion_of(replace(PEOPLE, near_misses=False), taste, sight(near, truth)).accepted
    assert not opinion_of(PEOPLE, replace(taste, strictness=1.0), sight(near, truth)).accepted
    assert not opinion_of(PEOPLE, taste, sight(far, truth)).accepted


def test_an_alternative_stands_and_renames_what_follows_unless_the_name_is_used_elsewhere():
    truth, shown = "size = width * height", "area = width * height"
    found = opinion_of(PEOPLE, PLAIN, sight(shown, truth))
    assert (found.reason, found.stands, found.renamed, found.edit) == ("alternative", True, ("size", "area"), 0)
    assert opinion_of(PEOPLE, PLAIN, sight(shown, truth, suffix="\n    print(size)\n")).reason != "alternative"
    overwritten = opinion_of(PEOPLE, PLAIN, sight(shown, truth, takes_alternatives=False))
    assert (overwritten.accepted, overwritten.reason) == (False, "overwritten")


def test_without_a_text_in_mind_a_plausible_text_is_taken_and_stands():
    truth = "size = width * height"
    taken = opinion_of(PEOPLE, PLAIN, sight("area = max(width, height)", truth, in_mind=False))
    assert (taken.accepted, taken.reason, taken.stands, taken.renamed) == (True, "explored", True, ("size", "area"))
    refused = opinion_of(PEOPLE, PLAIN, sight("area = nothing_known", truth, in_mind=False))
    assert (refused.accepted, refused.reason) == (False, "implausible")
    assert 0.5 < quality("area = width * height", truth) < quality(truth, truth) == 1.0
    assert quality("pass", truth) == 0.0


def test_wrong_suggestions_lower_attention_and_silence_restores_it():
    people = replace(PEOPLE, unread=0.083, switches_off=5, off_pauses=2)
    attention = Attention(people)
    assert attention.reads(0.01, 1.5, 0.1) and not attention.reads(0.01, 1.5, 1.6)  # late
    for _ in range(4):
        attention.read(accepted=False)
    assert not attention.reads(0.3, 1.5, 0.1) and attention.reads(0.34, 1.5, 0.1)  # 4 x 0.083
    attention.silence()
    assert attention.reads(0.17, 1.5, 0.1)  # half is forgotten
    attention.read(accepted=True)
    assert attention.reads(0.0, 1.5, 0.1)
    for _ in range(5):
        assert not attention.off
        attention.read(accepted=False)
    assert attention.off
    attention.silence()
    attention.silence()
    assert not attention.off
    plain = Attention(None)
    for _ in range(50):
        plain.read(accepted=False)
    assert plain.reads(0.0, 0.0, 100.0) and not plain.off


def test_time_is_that_of_keys_and_of_reading_up_to_the_first_wrong_word():
    assert reading_seconds("size = width * height", 0) == 0.25
    assert reading_seconds("size = width * height", 21) == 0.75
    assert keystrokes("if x:\n        return y") == len("if x:") + 1 + len("return y")
    assert seconds_saved(Opinion(True, "whole", 10, 10), "return one") == pytest.approx(0.2 * 9)


def test_the_plain_kind_draws_the_same_as_people_and_the_digest_names_the_rates():
    taste, quirks = taste_of(0, 1), Quirks()
    plain = draws_at(random_stream("a"), taste, quirks)
    people = draws_at(random_stream("a"), taste, replace(quirks, people=PEOPLE))
    assert replace(people, in_mind=True, takes_alternatives=True, attention=1.0, waits_seconds=60.0) == plain
    assert quirks.digest == Quirks().digest != replace(quirks, people=PEOPLE).digest
    assert replace(quirks, people=PEOPLE).digest != replace(quirks, people=replace(PEOPLE, unread=0.1)).digest
    assert all(source for _, source in PEOPLE.sources().values())


@given(st.data())
def test_a_renamed_draft_is_the_source_with_the_name_in_the_rest_of_the_hole(data):
    holes = holes_of(SOURCE.text)
    number = data.draw(st.sampled_from([at for at, hole in enumerate(holes) if hole.function]))
    hole = holes[number]
    draft = Draft(SOURCE, holes)
    end = data.draw(st.sampled_from([end for _, end in hole.lines]))
    draft.open(number)
    draft.write(number, end)
    draft.rename(number, end, "area", data.draw(st.sampled_from(["x", "area_of_it", "other"])))
    for at in range(len(holes)):
        draft.open(at)
        draft.write(at, draft.holes[at].size)
    moved = Source("moved", draft.text)
    assert [one.lines for one in holes_of(moved.text)] == [one.lines for one in draft.holes]
    assert [(one.start, one.stop, one.next) for one in holes_of(moved.text)] == [
        (one.start, one.stop, one.next) for one in draft.holes
    ]
    begin = hole.start + end
    assert moved.text.startswith(SOURCE.text[:begin]) and moved.text.endswith(SOURCE.text[hole.stop :])
    assert "area" not in moved.text[begin : draft.holes[number].stop].replace("area_", "")


def test_a_text_that_stands_is_the_settled_text_and_what_follows_fits():
    """Every pause gets the text in mind with its local name renamed: the file uses the new name throughout."""
    quirks = Quirks(
        pauses=1, breaks=0, pastes=0, false_starts=0, wrong_words=0, leaves_wrong=0, several_lines=0, goes_on=0, people=PEOPLE
    )
    stood = []

    def reply(pause):
        truth, before = pause.position.truth, pause.prefix.rpartition("\n")[2]
        shown = truth.replace("area = ", "extent = ")
        if pause.way != "writes" or shown == truth or before.strip():
            return Reaction("rejected")
        choice = pause.choose(shown, shown)
        if not choice.accepted:
            return Reaction("rejected")
        stood.append(pause)
        return Reaction("accepted", "", shown, choice.opinion)

    for seed in range(80):
        asked = Asked(session_of(SOURCE, seed), reply, quirks, seed)
        plain = Asked(session_of(SOURCE, seed), lambda pause: Reaction("rejected"), quirks, seed)
        assert asked.draft.text.replace("extent", "area") == plain.draft.text
        for pause, truth in asked.settled:
            if pause in stood:
                assert truth.text and truth.text.startswith("extent = ") and truth.kind == "accepted"
    assert stood


def test_aggregates_count_suggestions_beside_published_figures():
    found = Collected()
    stood = SettledTruth("size = width", True, "accepted", 300.0, early="size = width")
    cut = SettledTruth("size = 1", True, "rewritten", 300.0, early="size = width")
    found.add("size = width", "size = width", True, "whole", stood)
    found.add("size = width", "size = 1", True, "near", cut)
    found.add("area = width * 2", "size = width * 2", False, "overwritten", None)
    found.add("return self.first_of_all(value)", "return self.first_of_all(values)", False, "wrong", None)
    found.add("x" * 50, "size = 1", False, "unread", None)
    found.add("", "size = 1", False, "", None)
    rows = {one.name: one.simulated for one in aggregates(found, Times(writing=90.0, reading=10.0, edited=50, saved=5.0))}
    assert rows["accepted per suggestion"] == pytest.approx(2 / 5)
    assert rows["accepted, of 11 to 20 characters"] == pytest.approx(2 / 3)
    assert rows["accepted, of more than 40 characters"] == 0
    assert rows["edited after the accept, or rejected though more than 80 % similar"] == pytest.approx(2 / 5)
    assert rows["overwritten though valid, of suggestions that are not the text in mind"] == pytest.approx(1 / 4)
    assert rows["kept characters of accepted texts after 30 s"] == 1.0
    assert 0.5 < rows["kept characters of accepted texts after 5 min"] < 1.0
    assert rows["rejected unread"] == pytest.approx(1 / 5)
    assert rows["share of the time on reading suggestions"] == pytest.approx(0.1)
    assert rows["share of the time on editing accepted texts"] == pytest.approx(0.1)
    assert rows["seconds of reading per suggestion read"] == pytest.approx(10 / 4)


def test_a_settled_text_is_known_half_a_minute_after_its_request():
    asked = Asked(session_of(SOURCE, 3), lambda pause: Reaction("rejected"), Quirks(people=PEOPLE), 3)
    known = [truth for _, truth in asked.settled if truth.text is not None]
    assert known and all(truth.early is not None for truth in known)
    assert any(len(truth.early) < len(truth.text) for truth in known)


def test_the_report_of_a_run_that_showed_nothing_is_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(*_: object) -> Tally:
        return Tally()

    monkeypatch.setattr(any_server, "_run", nothing)
    assert not any_server.run_and_report(RunSettings(), (), tmp_path / "report.json", None)
    report = json.loads((tmp_path / "report.json").read_text(), parse_constant=pytest.fail)
    assert {one["simulated"] for one in report["aggregates"]} == {None}
