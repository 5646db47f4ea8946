"""A person pauses a running test and resumes it: what ends it meanwhile, what counts after, and what is refused."""

import random

import pytest

from infra.assignment import assigned_arm
from infra.records import Stage
from infra.storage import moves as log
from tasks.experiments.moves import manual, release
from tasks.experiments.stages import shares as stages
from tasks.experiments.stages import states
from tests.tasks.experiments.test_stages import BETTER, EQUAL, USERS, at_ramp, at_test, opened
from tests.tasks.made import NOW, asked


@pytest.mark.parametrize("in_ramp", [True, False])
def test_a_test_that_a_person_paused_ends_by_a_breach_alone_and_goes_on_where_it_was(in_ramp: bool) -> None:
    life = opened()
    start = at_ramp(life) if in_ramp else at_test(life)
    before = life.client
    life.ask(start, 20, 10, BETTER)
    manual.pause(life.store, life.registry.client, asked("pause", "2", "ada", "let me see", start + 30))
    paused = life.client.stage
    assert (paused.name, paused.share, paused.by) == ("paused", before.stage.share, "ada")
    last = log.newest(life.store)
    assert last and (last.kind, last.by, last.stage, last.reason) == ("advance", "ada", "paused", "let me see")
    life.ask(start + 30, 20, 20, BETTER)
    found = life.look(NOW + 1201)  # its time is over
    assert found.stage is None and found.decision is None and "paused by ada, a person decides" in found.verdict.reason
    manual.pause(life.store, life.registry.client, asked("pause", "2", "ada", "again", start + 61))
    assert life.client.stage == paused, "once"
    manual.resume(life.store, life.registry.client, asked("resume", "2", "bob", "go on", start + 62))
    resumed = life.client
    assert (resumed.stage.name, resumed.stage.share) == (before.stage.name, before.stage.share)
    assert resumed.counts_from == start, "what was asked before and during the pause counts"
    arms = [assigned_arm(resumed, f"u{user}", start + at) for user in range(USERS) for at in (1.0, 45.0, 63.0)]
    assert arms[::3] == arms[1::3] == arms[2::3]
    last = log.newest(life.store)
    assert last and (last.by, last.stage, last.reason) == ("bob", before.stage.name, "go on")
    manual.pause(life.store, life.registry.client, asked("pause", "2", "ada", "slow", start + 64))
    life.ask(start + 64, 20, 40, EQUAL, failing="2")
    assert life.look(start + 90).verdict.verdict == "breach" and life.recomputed == 1
    assert life.registry.aliases == {"champion": "1"}


def test_a_test_that_is_paused_often_fits_into_its_tag_and_ends() -> None:
    life, draw = opened(), random.Random(0)
    start = at_test(life)
    words = [word for word in manual.__doc__.split() for _ in range(9)]
    for number in range(manual.MOST_PAUSES):
        reasons = [" ".join(draw.choices(words, k=120))[:500] for _ in range(2)]
        manual.pause(life.store, life.registry.client, asked("pause", "2", "ada", reasons[0], start + 2 * number))
        manual.resume(life.store, life.registry.client, asked("resume", "2", "ada", reasons[1], start + 2 * number + 1))
    kept = [stage.reason for stage in life.client.stages if stage.by]
    assert len(kept) == 2 * manual.MOST_PAUSES and len(" ".join(kept)) > 4900 and kept[-1] == reasons[1]
    with pytest.raises(manual.NothingToDo, match="was paused 5 times, which is the most: "):
        manual.pause(life.store, life.registry.client, asked("pause", "2", "ada", "again", start + 20))
    life.ask(start + 20, 20, 40, EQUAL, failing="2")
    assert life.look(start + 90).verdict.verdict == "breach" and life.registry.aliases == {"champion": "1"}


@pytest.mark.parametrize("stage", ["shadow", "ramp", "test", "paused"])
def test_a_running_test_ends_with_a_rejection_by_hand_in_every_stage(stage: str) -> None:
    life = opened()
    start = NOW + 1 if stage == "shadow" else at_ramp(life) if stage == "ramp" else at_test(life)
    if stage == "paused":
        manual.pause(life.store, life.registry.client, asked("pause", "2", "ada", "wait", start + 1))
    with pytest.raises(manual.NothingToDo, match="no test of version 3 runs, the test of version 2 does"):
        manual.reject(life.store, life.registry.client, asked("reject", "3", "ada", "worse", start + 2))
    planned = manual.plan(life.store, life.registry.client, asked("reject", "", "ada", "worse", start + 2))
    assert planned.summary().startswith("version 2 is rejected, and its test ") and planned.version == "2"
    decision = manual.reject(life.store, life.registry.client, asked("reject", "", "ada", "worse", start + 2))
    assert (decision.verdict.verdict, decision.verdict.reason, decision.by) == ("reject", "worse", "ada")
    last = log.newest(life.store)
    assert last and (last.kind, last.by, last.reason) == ("reject", "ada", "worse")
    assert life.registry.aliases == {"champion": "1"} and life.registry.versions["2"]["state"] == "failed"
    with pytest.raises(manual.NothingToDo, match="no test runs"):
        manual.reject(life.store, life.registry.client, asked("reject", "", "ada", "again", start + 3))


def test_a_shadow_and_what_the_gate_paused_cannot_be_paused_or_resumed() -> None:
    life = opened()
    with pytest.raises(manual.NothingToDo, match="stage shadow, expected ramp or test"):
        manual.pause(life.store, life.registry.client, asked("pause", "2", "ada", "wait", NOW + 1))
    with pytest.raises(manual.NothingToDo, match="no test of version 3 runs, the test of version 2 does"):
        manual.resume(life.store, life.registry.client, asked("resume", "3", "ada", "wait", NOW + 1))
    start = at_test(life)
    stage = stages.pause(life.client, start + 1, "no proof")
    release.advance(life.store, life.registry.client, life.client, stage, start + 1)
    with pytest.raises(manual.NothingToDo, match="is over, without proof either way"):
        manual.resume(life.store, life.registry.client, asked("resume", "2", "ada", "go on", start + 2))
    with pytest.raises(states.IllegalStage, match="expected test at 50%, which was paused"):
        states.enter(life.client, Stage(name="ramp", share=0.5, started=start + 2))
