"""The closed loop: what was shown decides what stands, what settles, and whether the next suggestion is read."""

from dataclasses import replace
from typing import Any

import pytest

from evals.developers import People, Quirks, Schedule
from evals.developers.people import Attention
from evals.developers.seen import see
from evals.developers.writer import Writer
from evals.studies.recipes import loop as loops
from evals.studies.recipes.loop import Loop
from evals.studies.recipes.policy import Served
from evals.studies.recipes.stream import Stream
from infra.settings.schema import Hindsight
from tasks.evaluation.models.base import SampledCompletion
from tests.evals.test_writers import CODE

RATES = ("breaks", "pastes", "false_starts", "wrong_words", "leaves_wrong", "several_lines", "superseded")
NOTHING: dict[str, Any] = dict.fromkeys(RATES, 0.0)
CALM = Quirks(**NOTHING, pauses=1.0, people=People())


class Texts:
    """Answers with the text that `reply` gives for a prefix and a suffix, one token a character."""

    most = 24

    def __init__(self, reply) -> None:
        self.reply = reply
        self.asked: list[tuple[int, ...]] = []

    def complete(self, contexts, keys, shares=()):
        self.asked += keys
        texts = [self.reply(*context) for context in contexts]
        made = [SampledCompletion((1,), tuple(range(len(text))), (-0.1,) * len(text), text) for text in texts]
        return [Served(one, one.text, range(1, len(one.text) + 1), 0.1, len(one.text)) for one in made]


def run(reply, count: int = 300, quirks: Quirks = CALM, first: int = 0) -> Stream:
    return Loop(Schedule(20, 1, CODE, quirks), first, count, Texts(reply), 7).run(Hindsight())


def knows(prefix: str, suffix: str) -> str:
    """The right text of lines that begin as `area = `, under another name; a wrong text elsewhere."""
    line = prefix.rpartition("\n")[2]
    rest = "area = width * height + "
    at = next((source.text.find(prefix[-200:]) for source in CODE.sources if prefix[-200:] in source.text), -1)
    return rest.removeprefix(line.strip()) if at >= 0 and rest.startswith(line.strip()) and line.startswith("        ") else "zq("


def test_the_same_seed_gives_the_same_requests_and_another_policy_others():
    first, again = run(knows), run(knows)
    assert first == again and len(first.requests) == 300
    assert [one.time for one in first.requests] == sorted(one.time for one in first.requests)
    other = run(lambda prefix, suffix: "")
    assert other.requests != first.requests and {one.outcome for one in other.requests} <= {"nothing", "unjudged"}


def test_each_completion_has_draws_of_its_own():
    policy = Texts(knows)
    Loop(Schedule(20, 1, CODE, CALM), 0, 200, policy, 7).run(Hindsight())
    assert len({*policy.asked}) == len(policy.asked)


def test_accepted_text_that_stands_is_in_the_next_prefix_and_settles_as_the_models_own():
    made = run(lambda prefix, suffix: "extent = width\n" if prefix.endswith("\n        ") else "", 600)
    stood = [one for one in made.requests if one.stands]
    assert stood and all(one.outcome in ("accepted", "unjudged") and one.shown.startswith("extent = width") for one in stood)
    for one in stood:
        later = [other for other in made.requests if other.user == one.user and other.time > one.time]
        assert not later or any("extent = width" in other.prefix + other.suffix for other in later)
    known = [one for one in stood if one.settled]
    assert known and all((one.settled or "").startswith("extent = width") for one in known)
    assert all(one.quality is not None and one.quality < 1 for one in stood)
    assert not any("extent = width" in one.prefix for one in run(lambda prefix, suffix: "", 600).requests)


def test_wrong_suggestions_tire_and_silence_restores():
    annoying = run(lambda prefix, suffix: "zq(", 600)
    silent = run(lambda prefix, suffix: "", 600)
    assert annoying.counts.off and annoying.counts.unread and annoying.counts.saved_ms < 0
    assert not silent.counts.off and not silent.counts.unread and not silent.counts.saved_ms
    wrong = annoying.counts.shown
    rested = run(lambda prefix, suffix: "zq(" if len(prefix) % 3 == 0 else "", 600).counts
    assert rested.unread / rested.shown < annoying.counts.unread / wrong
    assert rested.off < annoying.counts.off
    assert annoying.counts.requests >= 600 and silent.counts.written_keys


def test_sessions_of_one_developer_or_file_never_overlap(monkeypatch: pytest.MonkeyPatch):
    going: dict[tuple[str, str], int] = {}

    def begun(self, session):
        for key in loops.keys_of(session):
            assert not going.get(key)
            going[key] = 1
        return begin(self, session)

    def ended(self, one):
        going.update(dict.fromkeys(loops.keys_of(one.session), 0))
        end(self, one)

    begin, end = Loop._begin, Loop._end
    monkeypatch.setattr(Loop, "_begin", begun)
    monkeypatch.setattr(Loop, "_end", ended)
    made = run(knows, 400)
    assert made.next_session > 20
    following = run(knows, 100, first=made.next_session)
    assert {one.prefix for one in following.requests} - {one.prefix for one in made.requests}


def test_a_late_answer_is_not_read_and_costs_nothing():
    pause = Schedule(20, 1, CODE, CALM).first_pause(3)
    pause = replace(pause, draws=replace(pause.draws, types_on=False, waits_seconds=1.0, attention=1.0))
    late = see(pause, pause.position.truth, "", Attention(CALM.people), 1.5)
    assert (late.kind, late.read, late.accepted, late.reading, late.saved) == ("shown", False, False, 0.0, 0.0)
    assert see(pause, "zq", "x", Attention(CALM.people), 0.1).kind == "cancelled"


def test_keys_of_a_session_are_those_of_its_lines_whatever_is_accepted():
    schedule = Schedule(20, 1, CODE, CALM)
    made = [run(reply, 200).counts for reply in (lambda prefix, suffix: "", lambda prefix, suffix: "zq(")]
    assert made[0].written_keys > 0 and isinstance(
        schedule.writer(schedule.session(0), schedule.session(0).draft(), print), Writer
    )
    assert all(one.writing_ms > 0 for one in made)
