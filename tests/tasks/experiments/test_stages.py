"""The stages of a test: what leads from one to the next, what ends it in each, and the watch over what it promotes."""

import random
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.assignment import assigned_arm, divides, next_start
from infra.records import Completion, Decision, ExperimentRecord, Feedback, ShadowCopy, Stage
from infra.registry.client import CHAMPION, ROLLED_BACK_TAG
from infra.settings import Settings
from infra.settings.schema import Collect, Experiment
from infra.storage import moves as log
from infra.storage.cycles import decision_of
from tasks.experiments.controller import look as looking
from tasks.experiments.controller import probation
from tasks.experiments.controller.look import Found, ObservedTest
from tasks.experiments.moves import log as moves
from tasks.experiments.moves import manual, release
from tasks.experiments.planning import plan as planning
from tasks.experiments.reports.recompute import recompute
from tasks.experiments.stages import ramp, shares, states
from tests.tasks.experiments import arms
from tests.tasks.experiments.test_manual import cycle, world
from tests.tasks.made import NOW, Killed, MemoryRegistry, MemoryStore, asked, completion, feedback

USERS = 60
LEAD = 3.0
WIDE = dict.fromkeys(("accepted", "characters", "annoyed", "shown", "requests_per_user", "length"), 3.0)
SETTINGS = Settings(
    collect=Collect(settle_seconds=10, join_seconds=60),
    experiment=Experiment.model_validate(
        {
            **{"min_requests": 100, "planned_requests": 600, "min_users": 5, "tolerated_users": 0},
            **{"max_seconds": 1200, "shadow_requests": 20, "ramp": (0.1, 0.25), "min_history_requests": 0},
            **{"watch_seconds": 600, "margins": WIDE},
        }
    ),
)
QUARTER = 1200 * 0.25 / 3
"""Seconds of each stage before the test."""


@pytest.fixture(autouse=True)
def new_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans of tests that are short."""
    for name, value in {"baseline_seconds": 0, "ramp_requests": 20, "holdout_share": 0.2}.items():
        monkeypatch.setitem(planning.NEW, name, value)


def copy(number: int, experiment: ExperimentRecord, **fields: Any) -> ShadowCopy:
    """Return a copy that the challenger answered as the champion did."""
    values = {
        **{"id": f"shd-{number}", "time": NOW + 1, "experiment": experiment.id, "champion": "1", "challenger": "2"},
        **{"failed": False, "champion_empty": False, "challenger_empty": False, "champion_first_ms": 20.0},
        **{"challenger_first_ms": 22.0, "champion_ms": 60.0, "challenger_ms": 66.0, "same_line": True, "similarity": 0.9},
    }
    return ShadowCopy.model_validate(values | fields)


@dataclass
class Life:
    """A test of version 2 against version 1, with the developers' requests."""

    store: MemoryStore
    registry: MemoryRegistry
    experiment: ExperimentRecord
    draw: random.Random = field(default_factory=lambda: random.Random(5))
    batch: int = 0
    recomputed: int = 0
    """Decisions that were computed again from their record, with the same verdict."""

    @property
    def client(self) -> ExperimentRecord:
        """The test as the registry has it."""
        found = self.registry.client.aliases().routed
        assert found
        return found

    def look(self, now: float) -> Found:
        """Look once, and do what the look found."""
        running = self.client
        assert running.plan
        found = looking.look(ObservedTest(self.store, running, running.plan, now, LEAD), self.registry.client.aliases())
        if found.decision:
            if found.decision.evidence or found.decision.copies:
                written = Decision.model_validate_json(found.decision.model_dump_json())
                assert recompute(written) == found.decision.verdict
                self.recomputed += 1
            release.conclude(self.store, self.registry.client, found.decision)
        elif found.stage:
            release.advance(self.store, self.registry.client, running, found.stage, now)
        return found

    def copies(self, number: int, **fields: Any) -> None:
        """Ship copies."""
        rows = [copy(i, self.experiment, **fields) for i in range(number)]
        self.store.put_rows("events/shadow/date=2027-01-15/hour=08/a.parquet", rows)

    def ask(self, since: float, seconds: float, each: int, accepted: dict[str, float], failing: str = "", slow: str = "") -> None:
        """Ship requests of every user, spread over a time: those of the version `failing` are answered by the other one."""
        running, self.batch = self.client, self.batch + 1
        completions, events = [], []
        for user in (f"u{number}" for number in range(USERS)):
            for i in range(each):
                time = since + seconds * (i + self.draw.random()) / each
                arm = assigned_arm(running, user, time)
                version = running.challenger if arm == "challenger" else running.champion
                fell_back = version == failing
                name = f"{self.batch}-{user}-{i}"
                answered = {running.champion: running.challenger, running.challenger: running.champion}[version]
                completions.append(
                    completion(
                        name,
                        user=user,
                        prefix=name,
                        time=time,
                        arm=arm,
                        experiment="" if fell_back else running.id,
                        assigned=running.id,
                        assigned_arm=arm,
                        policy_version=answered if fell_back else version,
                        ttft_ms=500.0 if version == slow else 5.0 + self.draw.random(),
                        total_ms=900.0 if version == slow else 9.0 + self.draw.random(),
                    )
                )
                outcome = "accepted" if self.draw.random() < accepted[completions[-1].policy_version] else "rejected"
                events.append(feedback(name, user=user, prefix=name, time=time + 1, outcome=outcome))
        hour = "date=2027-01-15/hour=08"
        self.store.put_rows(f"events/completions/{hour}/{self.batch}.parquet", completions)
        self.store.put_rows(f"events/feedback/{hour}/{self.batch}.parquet", events)

    def become(self, other: "Life") -> float:
        """Continue where another life of the same test stands; return when its stage started."""
        self.experiment, self.batch, self.recomputed = other.experiment, other.batch, other.recomputed
        self.draw.setstate(other.draw.getstate())
        self.store.objects, self.store.times = dict(other.store.objects), dict(other.store.times)
        mine, others = self.registry, other.registry
        mine.versions = {version: dict(tags) for version, tags in others.versions.items()}
        mine.aliases, mine.tags, mine.descriptions = dict(others.aliases), dict(others.tags), dict(others.descriptions)
        return self.client.stage.started

    def kinds(self) -> Sequence[tuple[str, str | None]]:
        """Return kind and stage of every move, oldest first."""
        return [(move.kind, move.stage) for move in log.backwards(self.store)][::-1]


EQUAL = {"1": 0.3, "2": 0.3}
BETTER = {"1": 0.2, "2": 0.7}


def opened() -> Life:
    """Open a test of version 2."""
    store, registry = world()
    record = release.open_experiment(store, registry.client, release.propose(store, SETTINGS, cycle("2"), "2", "1", NOW))
    assert record
    return Life(store, registry, record)


@pytest.fixture
def life() -> Life:
    return opened()


def at_ramp(life: Life) -> float:
    """Pass the shadow; return when the ramp starts."""
    life.copies(20)
    life.look(NOW + 5)
    return life.client.stage.started


def at_test(life: Life) -> float:
    """Pass the ramp; return when the test starts."""
    return life.become(after_ramp())


def at_watch(life: Life) -> float:
    """Promote the challenger; return when the watch starts."""
    return life.become(after_promotion())


@cache
def after_ramp() -> Life:
    """Return a test that has passed its ramp, for tests to continue."""
    life = opened()
    start = at_ramp(life)
    while life.client.stage.name == "ramp":
        life.ask(start, QUARTER, 10, EQUAL)
        found = life.look(start + QUARTER + 11)
        assert found.stage, found.verdict.reason
        start = life.client.stage.started
    return life


@cache
def after_promotion() -> Life:
    """Return a test whose challenger has been promoted, for tests to continue."""
    life = opened()
    start = at_test(life)
    life.ask(start, 300, 25, BETTER)
    found = life.look(start + 320)
    assert found.decision and found.decision.verdict.verdict == "promote", found.verdict.reason
    return life


def test_a_better_version_passes_every_stage_and_stays(life: Life) -> None:
    assert life.look(NOW + 2).verdict.reason == "shadow: 0 of 20 copies (experiment.shadow_requests)"
    start = at_watch(life)
    aliases = life.registry.client.aliases()
    assert (aliases.champion, aliases.challenger, aliases.experiment) == ("2", None, None)
    life.ask(start, 500, 10, EQUAL)
    assert life.look(start + 520).verdict.verdict == "undecided"
    assert not probation.settle(life.store, life.registry.client, life.client, start + 520)
    assert probation.settle(life.store, life.registry.client, life.client, start + 601)
    assert life.registry.client.aliases().watch is None
    assert life.kinds() == [
        ("begin", ""),
        ("open", "shadow"),
        ("advance", "ramp"),
        ("advance", "ramp"),
        ("advance", "test"),
        ("promote", "watch"),
        ("settle", ""),
    ]
    decided = decision_of(life.store, life.experiment.id)
    assert decided and [stage.share for stage in decided.experiment.stages] == [0.0, 0.1, 0.25, 0.5]
    assert life.recomputed == 1


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"failed": True, "challenger_first_ms": None}, "20 of 20 copies failed"),
        ({"challenger_first_ms": 80.0, "challenger_ms": 200.0}, "median times 4.00 (first token) and 3.33 (all)"),
        ({"similarity": 0.01, "same_line": False}, "texts 1% alike, 0% with the same first line"),
    ],
)
def test_a_version_that_is_wrong_in_its_shadow_is_rejected_before_any_user(life: Life, fields: dict, reason: str) -> None:
    life.copies(20, **fields)
    found = life.look(NOW + 5)
    assert found.verdict.verdict == "reject" and reason in found.verdict.reason, found.verdict.reason
    assert life.registry.aliases == {"champion": "1"} and life.registry.versions["2"]["state"] == "failed"
    assert life.recomputed == 1


def test_a_shadow_without_enough_copies_in_its_time_is_not_held_against_the_version(life: Life) -> None:
    life.copies(7)
    assert life.look(NOW + QUARTER - 1).verdict.verdict == "undecided"
    assert life.look(NOW + QUARTER + 1).verdict.verdict == "broken" and life.recomputed == 1
    assert life.registry.versions["2"]["state"] == "candidate"


def test_a_shadow_that_passes_promotes_nothing(life: Life) -> None:
    life.copies(20)
    found = life.look(NOW + 5)
    assert found.stage and found.stage.name == "ramp"
    assert found.verdict.verdict == "undecided" and "20 of 20 copies" in found.verdict.reason, "no user has seen it"


@pytest.mark.parametrize("how", ["failing", "slow"])
def test_a_version_that_fails_or_is_slow_is_taken_from_the_ramp_at_once(life: Life, how: str) -> None:
    start = at_ramp(life)
    life.ask(start, 30, 10, EQUAL, **{how: "2"})
    found = life.look(start + 31)
    assert found.verdict.verdict == "breach" and "ramp at 10%" in found.verdict.reason, found.verdict.reason
    assert life.registry.aliases == {"champion": "1"} and life.registry.versions["2"]["state"] == "failed"
    assert life.recomputed == 1


def test_a_check_that_fails_holds_the_ramp_and_does_not_count_against_the_version(life: Life) -> None:
    start = at_ramp(life)
    life.ask(start, QUARTER, 10, EQUAL)
    hour = "date=2027-01-15/hour=08/1.parquet"
    served = {row.id: row.arm for row in life.store.get_rows(f"events/completions/{hour}", Completion)}
    events = life.store.get_rows(f"events/feedback/{hour}", Feedback)
    life.store.put_rows(
        f"events/feedback/{hour}", [row for row in events if served[row.id] == "challenger" or life.draw.random() < 0.4]
    )
    found = life.look(start + QUARTER + 20)
    assert found.stage is None and found.decision is None and "held: judged" in found.verdict.reason, found.verdict.reason
    assert life.look(NOW + 1300).verdict.verdict == "broken" and life.recomputed == 1
    assert life.registry.versions["2"]["state"] == "candidate"


def test_the_ramp_waits_for_its_time_and_for_requests(life: Life) -> None:
    start = at_ramp(life)
    life.ask(start, 30, 10, EQUAL)
    assert life.look(start + 50).stage is None, "its time is not over"
    life.store.objects = {key: body for key, body in life.store.objects.items() if "events/completions" not in key}
    found = life.look(start + QUARTER + 1)
    assert found.stage is None and "20 are asked" in found.verdict.reason


def test_a_share_that_gives_nobody_to_the_challenger_is_passed_after_its_time() -> None:
    plan = planning.make_plan(SETTINGS.experiment.model_copy(update={"design": "by_user"}), SETTINGS.collect)
    stage = Stage(name="ramp", share=0.1, started=NOW)
    test = ExperimentRecord(id="e", champion="1", challenger="2", share=0.5, started=NOW, plan=plan, stages=(stage,))
    team = {f"u{i}": arms.user(20, 5) for i in range(28)}
    for absent, seconds, passed in ((0, 1, False), (0, QUARTER + 1, True), (1, QUARTER + 1, False)):
        totals = arms.arm_totals(team, {}, absent={"champion": 0, "challenger": absent})
        verdict, next_may_begin = ramp.verdict_of(test, plan, totals, NOW + seconds)
        assert (verdict.verdict, next_may_begin) == ("undecided", passed)
        assert ("none of the 28 users is on the challenger's arm" in verdict.reason) == passed


def test_the_verdict_counts_requests_of_the_test_stage_alone(life: Life) -> None:
    start = at_test(life)
    life.ask(start, 100, 5, EQUAL)
    assert sum(life.look(start + 120).verdict.requests.values()) == USERS * 5


def test_an_end_without_proof_pauses_for_a_person_where_the_plan_says_so(life: Life) -> None:
    start = at_test(life)
    running = life.client
    assert running.plan
    paused = running.model_copy(update={"plan": running.plan.model_copy(update={"inconclusive": "pause", "alpha": 1e-4})})
    life.registry.client.set_experiment(paused)
    life.ask(start, 100, 25, EQUAL)
    pausing = life.look(NOW + 1201)
    assert pausing.stage == life.client.stage and life.client.stage.name == "paused"
    assert pausing.verdict.verdict == "undecided" and pausing.verdict.reason.startswith("no proof"), "a person decides"
    assert "a person decides" in life.look(NOW + 1202).verdict.reason
    planned = manual.plan(life.store, life.registry.client, asked("roll_back", "", "ada", "", NOW + 1210))
    assert planned.summary() == f"version 2 is rejected, and its test {running.id} ends; version 1 stays champion"
    manual.rollback(life.store, life.registry.client, asked("roll_back", planned.version, "ada", "no need", NOW + 1211))
    last = log.newest(life.store)
    assert last and (last.kind, last.by, last.reason) == ("reject", "ada", "no need")
    assert life.registry.aliases == {"champion": "1"}


def test_a_promoted_version_that_turns_bad_is_taken_back_by_the_watch(life: Life) -> None:
    start = at_watch(life)
    life.ask(start, 60, 10, EQUAL, failing="2")
    found = life.look(start + 61)
    assert found.verdict.verdict == "breach" and found.decision, found.verdict.reason
    aliases = life.registry.client.aliases()
    assert (aliases.champion, aliases.previous_champion, aliases.watch) == ("1", "2", None)
    last = log.newest(life.store)
    assert last and (last.kind, last.by, last.stage) == ("roll_back", "watch", "")
    assert "failures per request" in last.reason and last.reason in life.registry.versions["2"][ROLLED_BACK_TAG]
    assert {v: life.registry.versions[v]["state"] for v in "12"} == {"1": "champion", "2": "rolled_back"}
    assert life.recomputed == 2


def test_a_promoted_version_that_is_accepted_far_less_is_taken_back(life: Life) -> None:
    start = at_watch(life)
    watched = life.client
    assert watched.plan
    strict = [m.model_copy(update={"margin": 0.1}) if m.name == "accepted" else m for m in watched.plan.metrics]
    plan = watched.plan.model_copy(update={"metrics": tuple(strict)})
    life.registry.client.set_watch(watched.model_copy(update={"plan": plan}))
    life.ask(start, 400, 40, {"1": 0.7, "2": 0.1})
    found = life.look(start + 420)
    assert found.verdict.verdict == "reject" and "acceptance per request" in found.verdict.reason, found.verdict.reason
    assert life.registry.aliases[CHAMPION] == "1"


def test_a_watched_champion_that_a_person_moves_is_watched_no_more(life: Life) -> None:
    start = at_watch(life)
    manual.rollback(life.store, life.registry.client, asked("roll_back", "", "ada", "I do not like it", start + 5))
    assert life.registry.aliases == {"champion": "1"} and life.registry.client.aliases().watch is None
    assert life.kinds()[-1] == ("roll_back", "")


def test_no_test_opens_beside_a_watch(life: Life) -> None:
    start = at_watch(life)
    proposed = release.propose(life.store, SETTINGS, cycle("3"), "3", "2", start + 1)
    assert release.open_experiment(life.store, life.registry.client, proposed) is None


@pytest.mark.parametrize("then", ["advance", "promote", "roll back"])
def test_a_watch_killed_at_any_write_changes_no_outcome(then: str) -> None:
    prepared = opened()
    if then == "advance":
        start, seconds, each, failing = at_ramp(prepared), QUARTER, 10, ""
    elif then == "promote":
        start, seconds, each, failing = at_test(prepared), 300.0, 25, ""
    else:
        start, seconds, each, failing = at_watch(prepared), 60.0, 10, "2"
    prepared.ask(start, seconds, each, BETTER, failing=failing)
    before, now = prepared.client.stage, start + seconds + 11

    def play(writes: int) -> tuple[dict[str, str], Sequence[tuple[str, str | None]], ExperimentRecord | None]:
        life = opened()
        life.become(prepared)
        store, registry = life.store, life.registry
        registry.writes_left = writes
        with suppress(Killed):
            life.look(now)
        taken.append(writes - registry.writes_left)
        registry.writes_left = 10**9
        moves.catch_up(store, registry.client, now)
        running = registry.client.aliases().routed
        if (running and running.stage == before) or (
            registry.client.aliases().experiment and then == "promote"
        ):  # not done: the next run looks again
            life.look(now)
        return registry.aliases, life.kinds(), registry.client.aliases().routed

    taken: list[int] = []
    undisturbed = play(10**9)
    assert taken[0] > 0
    for writes in range(taken[0]):
        assert play(writes) == undisturbed, f"killed at write {writes}"


@given(st.integers(0, 10**6), st.floats(0, 10**5), st.sampled_from(["by_user", "crossover"]))
def test_a_user_passes_only_from_champion_to_challenger_and_within_a_block_never(user: int, now: float, design: str) -> None:
    settings = SETTINGS.experiment.model_copy(update={"design": design})
    test = release.propose(MemoryStore(), SETTINGS.model_copy(update={"experiment": settings}), cycle("2"), "2", "1", 0.0)
    assert test.plan
    decided = 0.0
    for name, share in (("ramp", 0.1), ("ramp", 0.25), ("test", 0.5), ("watch", 0.8)):
        decided += 1000.0
        stage = Stage(name=name, share=share, started=next_start(test, decided, LEAD))
        test = test.model_copy(update={"stages": (*test.stages, stage)})
    arms = [assigned_arm(test, f"u{user}", at) for at in (now, now + 1.0, now + 3000.0)]
    assert test.plan
    block = test.plan.block_seconds
    if design == "by_user":
        assert arms == sorted(arms, reverse=True), "from the champion, never back"
    elif now // block == (now + 1.0) // block:
        assert arms[0] == arms[1]


def test_stages_follow_each_other_only_as_the_table_says(life: Life) -> None:
    for name, share, expected in (("watch", 0.8, "expected ramp, test"), ("shadow", 0.0, "expected ramp, test")):
        with pytest.raises(states.IllegalStage, match=expected):
            states.enter(life.experiment, Stage(name=name, share=share, started=NOW + 9))
    ramp = states.enter(life.experiment, Stage(name="ramp", share=0.25, started=NOW + 9))
    with pytest.raises(states.IllegalStage, match="expected no smaller one"):
        states.enter(ramp, Stage(name="ramp", share=0.1, started=NOW + 19))


def test_a_clock_that_was_set_back_starts_no_stage_before_the_last_one(life: Life) -> None:
    test = life.experiment
    assert test.plan
    back = test.stage.started - 60
    for stage in (shares.following(test, test.plan, back, LEAD, ""), shares.watch(test, test.plan, back, LEAD, "")):
        assert stage.started >= test.stage.started
    entered = states.enter(test, shares.following(test, test.plan, back, LEAD, ""))
    assert ExperimentRecord.model_validate_json(entered.model_dump_json()) == entered
    with pytest.raises(ValueError, match="in the order of their start"):
        states.enter(test, Stage(name="test", share=test.share, started=back))


def test_a_shadow_and_a_watch_that_is_over_divide_nobody(life: Life) -> None:
    assert not divides(life.experiment, NOW + 1)
    start = at_watch(life)
    assert divides(life.client, start + 1) and not divides(life.client, start + 600)
