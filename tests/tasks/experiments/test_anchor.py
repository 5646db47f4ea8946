"""The anchor: which version it is, when it serves, and that it comes back only once champions are surely worse."""

import random
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.assignment import assigned_arm
from infra.records import Decision, ExperimentRecord, Verdict
from infra.settings import Settings
from infra.settings.schema import Collect, Experiment
from infra.storage import moves as log
from infra.storage.cycles import decision_of
from tasks.experiments.controller import look as looking
from tasks.experiments.controller.look import Found, ObservedTest
from tasks.experiments.moves import log as moves
from tasks.experiments.moves import manual, release, succession
from tasks.experiments.planning import plan as planning
from tasks.experiments.planning.plan import make_plan
from tasks.experiments.reports import recompute
from tasks.experiments.reports.explain import explain
from tasks.experiments.reports.history import history
from tasks.experiments.stages import looks
from tasks.experiments.verdict import anchor
from tasks.statistics.ratios import Difference
from tests.tasks.experiments.arms import arm_totals, user
from tests.tasks.experiments.test_manual import cycle, world
from tests.tasks.made import NOW, Killed, MemoryRegistry, MemoryStore, asked, completion, decision, feedback

USERS, BLOCK, LEAD = 30, 600.0, 3.0
VALUES = {
    **{"mode": "non_inferiority", "min_requests": 100, "min_users": 5, "min_history_requests": 0, "tolerated_users": 0},
    **{"shadow_requests": 0, "ramp": (), "watch_seconds": 0, "planned_requests": 3000},
    **{"block_seconds": BLOCK, "anchor_share": 0.25, "max_seconds": 3600},
}
SETTINGS = Settings(collect=Collect(settle_seconds=10, join_seconds=60), experiment=Experiment.model_validate(VALUES))
NEW = {"baseline_seconds": 0, "anchor_seconds": 3000, "anchor_days": 7}
PLAN = succession.plan_of_comparison(SETTINGS).model_copy(update={**NEW, "max_seconds": 7 * 86_400.0})
SHIPPED = Verdict(verdict="promote", reason="no metric is worse than its margin")


@pytest.fixture(autouse=True)
def new_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans of comparisons that are short."""
    for name, value in NEW.items():
        monkeypatch.setitem(planning.NEW, name, value)


def settings(**values: Any) -> Settings:
    return SETTINGS.model_copy(update={"experiment": SETTINGS.experiment.model_copy(update=values)})


@dataclass
class Line:
    """A line of champions, the first of which is version 1."""

    store: MemoryStore
    registry: MemoryRegistry
    now: float = NOW
    draw: random.Random = field(default_factory=lambda: random.Random(3))

    @property
    def compared(self) -> ExperimentRecord:
        found = self.registry.client.aliases().anchor
        assert found
        return found

    @property
    def pair(self) -> tuple[str, str]:
        """The anchor and the champion compared with it."""
        return self.compared.champion, self.compared.challenger

    def follow(self, chosen: Settings = SETTINGS) -> ExperimentRecord | None:
        self.now += 1
        moves.catch_up(self.store, self.registry.client, self.now)
        return succession.follow(self.store, self.registry.client, chosen, self.now, LEAD)

    def ship(self, version: str, mode: str = "non_inferiority") -> ExperimentRecord:
        """Let the gate promote a version; return its test."""
        self.now += 1
        champion, beside = self.registry.aliases["champion"], self.registry.client.aliases().anchor
        record = release.propose(self.store, settings(mode=mode), cycle(version), version, champion, self.now, beside)
        opened = release.open_experiment(self.store, self.registry.client, record)
        assert opened
        release.conclude(self.store, self.registry.client, decision(opened, SHIPPED, self.now))
        return opened

    def wait(self) -> None:
        """Let the time beside the anchor pass."""
        self.now += 4000

    def ask(self, rates: Mapping[str, float], failing: str = "") -> None:
        """Ship 30 requests of each user, over eight blocks from the newest champion's start on."""
        test, start = self.compared, max(self.compared.stage.started, self.now)
        completions, events = [], []
        for name in (f"u{number}" for number in range(USERS)):
            for i in range(40):
                time, key = start + 8 * BLOCK * (i + self.draw.random()) / 40, f"{start}-{name}-{i}"
                arm = assigned_arm(test, name, time)
                version, other = (test.challenger, test.champion)[:: 1 if arm == "challenger" else -1]
                fell_back = version == failing
                fields = {"arm": arm, "assigned": test.id, "assigned_arm": arm, "experiment": "" if fell_back else test.id}
                fields |= {"policy_version": other if fell_back else version, "ttft_ms": 5 + self.draw.random()}
                completions.append(completion(key, user=name, prefix=key, time=time, **fields))
                outcome = "accepted" if self.draw.random() < rates[version] else "rejected"
                events.append(feedback(key, user=name, prefix=key, time=time + 1, outcome=outcome))
        hour = f"date=2027-01-15/hour=08/{start:.0f}.parquet"
        self.store.put_rows(f"events/completions/{hour}", completions)
        self.store.put_rows(f"events/feedback/{hour}", events)
        self.now = start + 8 * BLOCK + 20

    def look(self) -> Found:
        """Look as the watch does, and carry out what it decides."""
        running = self.registry.client.aliases().routed
        assert running and running.plan
        found = looking.look(ObservedTest(self.store, running, running.plan, self.now, LEAD), self.registry.client.aliases())
        looks.record(self.store, running, found.verdict, self.now)
        if found.decision:
            release.conclude(self.store, self.registry.client, found.decision)
        return found


@pytest.fixture
def line() -> Line:
    store, registry = world(6)
    line = Line(store, registry)
    assert line.follow() and line.pair == ("1", "1"), "the first champion is the anchor"
    return line


def totals(anchor_rate: float, rate: float, newest_rate: float | None = None):
    """Return totals of 30 users with 80 requests of the anchor and 240 of the champions, half of them of the newest one."""

    def users(requests: float, accepts: float, turns: float) -> dict[str, dict[str, float]]:
        shares = (1 + 0.3 * (number % 5 - 2) / 2 for number in range(USERS))
        return {f"u{n}": {**user(requests, accepts * requests * s), "turns_6": turns} for n, s in enumerate(shares)}

    later = {"champion": users(40, anchor_rate, 4), "challenger": users(120, newest_rate or rate, 12)}
    return arm_totals(users(80, anchor_rate, 8), users(240, rate, 24), later=later)


def judged(found) -> Verdict:
    record = ExperimentRecord(id="anchor-1", champion="1", challenger="4", share=0.75, started=0.0, plan=PLAN)
    return anchor.verdict_of(record, PLAN, found)


@pytest.mark.parametrize(
    ("rates", "verdict"),
    [
        ((0.3, 0.3), "undecided"),
        ((0.3, 0.4), "undecided"),
        ((0.4, 0.3), "reject"),
        ((0.4, 0.3, 0.42), "undecided"),
    ],
    ids=["equal", "better", "worse", "worse, but not the newest"],
)
def test_champions_that_are_surely_worse_than_the_anchor_give_way_to_it(rates: tuple[float, ...], verdict: str) -> None:
    found = judged(totals(*rates))
    assert found.verdict == verdict, found.reason
    if verdict == "reject":
        assert "version 4 beside the anchor, version 1: the champions since are worse: acceptance per request" in found.reason
    assert [metric.name for metric in found.metrics] == [metric.name for metric in PLAN.metrics]


@pytest.mark.parametrize(("errors", "leaning"), [(-1.1, True), (-0.9, False), (1.1, False)])
def test_champions_lean_to_a_loss_by_more_than_a_standard_error(errors: float, leaning: bool) -> None:
    accepted = next(each for each in anchor.Beside(PLAN, last=False).compare(totals(0.3, 0.31)) if each.metric.name == "accepted")
    found = Difference(errors * 0.01, -1.0, 1.0, 0.01)
    assert anchor.leans(replace(accepted, difference=found)) == leaning
    fewer = accepted.metric.model_copy(update={"better": "fewer"})
    assert anchor.leans(replace(accepted, metric=fewer, difference=replace(found, estimate=-found.estimate))) == leaning


def test_arms_that_cannot_be_compared_bring_nothing_back() -> None:
    worse = totals(0.4, 0.2)
    for arm in worse.during.values():
        arm["turns_6"][:] = 8  # as many blocks of the anchor as of the champions
    found = judged(worse)
    assert found.verdict == "undecided" and "sample-ratio mismatch" in found.reason
    assert found.leaning, "the next test needs a gain all the same"


def test_every_error_level_is_part_of_the_plans() -> None:
    look = anchor.Beside(PLAN, last=False)
    assert sum(look.gain_levels([]).values()) == pytest.approx(PLAN.anchor_alpha)
    assert look.alpha * len(PLAN.metrics) == pytest.approx(PLAN.breach_alpha)


@given(st.integers(0, 10**6), st.floats(0, 10**4))
def test_a_user_meets_one_arm_in_a_block_while_champions_follow_each_other(number: int, now: float) -> None:
    first = ExperimentRecord(id="anchor-1", champion="1", challenger="2", share=0.75, started=0.0, plan=PLAN)
    stages = [{"name": "anchor", "share": 0.75, "started": start} for start in (0.0, BLOCK, 5 * BLOCK)]
    both = [ExperimentRecord.model_validate(first.model_dump() | {"stages": stages[:count]}) for count in (1, 2, 3)]
    start = now // BLOCK * BLOCK
    assert len({assigned_arm(test, f"u{number}", at) for test in both for at in (start, now, start + BLOCK - 1)}) == 1


def test_the_anchor_meets_its_share_of_the_blocks(line: Line) -> None:
    line.ship("2")
    line.follow()
    test, times = line.compared, [NOW + BLOCK * number for number in range(100, 140)]
    arms = [assigned_arm(test, f"u{user}", time) for user in range(100) for time in times]
    assert arms.count("champion") / len(arms) == pytest.approx(0.25, abs=0.03)


def test_the_anchor_stays_while_champions_are_only_not_worse(line: Line) -> None:
    for version in ("2", "3"):
        line.ship(version)
        changed = line.follow()
        assert changed and line.pair == ("1", version)
        assert line.follow() is None, "once"
        line.wait()
    assert [stage.reason for stage in line.compared.stages] == ["version 2 is champion", "version 3 is champion"]
    manual.rollback(line.store, line.registry.client, asked("roll_back", "2", "ada", "", line.now))
    line.follow()
    assert line.pair == ("1", "2"), "a rollback to one of them"
    manual.rollback(line.store, line.registry.client, asked("roll_back", "1", "ada", "", line.now))
    line.follow()
    assert line.pair == ("1", "1") and not line.compared.stages


@pytest.mark.parametrize("how", ["sure gain", "by a person", "in MLflow"])
def test_another_version_is_the_anchor_once_it_is_champion_otherwise(line: Line, how: str) -> None:
    line.ship("2")
    line.follow()
    line.wait()
    match how:
        case "sure gain":
            line.ship("3", mode="superiority")
        case "by a person":
            manual.promote(line.store, line.registry.client, asked("promote", "3", "ada", "", line.now))
        case _:
            line.registry.aliases["champion"] = "3"
    line.follow()
    assert line.pair == ("3", "3") and line.registry.client.aliases().routed is None
    manual.rollback(line.store, line.registry.client, asked("roll_back", "2", "ada", "worse", line.now + 1))
    line.now += 1
    line.follow()
    assert line.pair == ("2", "2"), "an anchor that was rolled back is none any more"


def test_without_the_mode_or_a_share_there_is_no_anchor() -> None:
    store, registry = world()
    line = Line(store, registry)
    for chosen in (settings(mode="superiority"), settings(anchor_share=0.0)):
        assert line.follow(chosen) is None and registry.client.aliases().anchor is None
    assert not list(store.keys("experiments/"))
    line.follow()
    line.follow(settings(anchor_share=0.0))
    assert registry.client.aliases().anchor is None


def test_a_comparison_begins_anew_with_the_same_anchor_after_its_days(line: Line) -> None:
    line.ship("2")
    line.follow()
    first = line.compared
    line.now += 7 * 86_400
    line.follow()
    assert line.pair == ("1", "2") and line.compared.id != first.id and len(line.compared.stages) == 1


def test_a_champion_is_compared_for_its_time_before_the_next_test_opens(line: Line) -> None:
    line.ship("2")
    line.follow()
    aliases, start = line.registry.client.aliases(), line.compared.stage.started
    assert aliases.routed == line.compared and succession.seconds_left(aliases, start + 1000) == 2000
    early, late = (release.propose(line.store, SETTINGS, cycle("3"), "3", "2", start + seconds) for seconds in (2999, 3000))
    assert release.open_experiment(line.store, line.registry.client, early) is None
    opened = release.open_experiment(line.store, line.registry.client, late)
    assert opened and line.registry.client.aliases().routed == opened, "the test has the slot"
    assert line.follow() is None and line.pair == ("1", "2")
    release.conclude(line.store, line.registry.client, decision(opened, Verdict(verdict="reject", reason="worse"), line.now))
    assert line.registry.client.aliases().routed == line.compared, "it goes on after the test"


@pytest.mark.parametrize("rate", [0.42, 0.55], ids=["lower", "higher"])
def test_while_champions_lean_to_a_loss_a_test_asks_for_a_gain_and_leaves_the_anchor(line: Line, rate: float) -> None:
    line.ship("2")
    line.follow()
    line.ask({"1": 0.5, "2": rate})
    found = line.look()
    assert found.decision is None and found.verdict.leaning == (rate < 0.5), found.verdict.reason
    line.wait()
    plan = line.ship("3").plan
    assert plan and (plan.mode, plan.cautious) == (("superiority", True) if rate < 0.5 else ("non_inferiority", False))
    assert ("a gain is needed, since the champions beside the anchor lean to a loss or" in plan.planned) == plan.cautious
    line.follow()
    assert line.pair == ("1", "3"), "the anchor stays, whatever the test promoted"


WORSE = {"1": 0.5, "2": 0.42, "3": 0.3}


def chain(line: Line, rates: Mapping[str, float], failing: str = "") -> Found:
    """Ship two champions one after another, each beside the anchor; return the last look."""
    for version in ("2", "3"):
        line.ship(version)
        line.follow()
        line.ask(rates, failing if failing == version else "")
        found = line.look()
    return found


def test_the_anchor_comes_back_and_the_decision_is_computed_again_from_its_record(line: Line) -> None:
    found = chain(line, WORSE)
    assert found.verdict.verdict == "reject", found.verdict.reason
    aliases = line.registry.client.aliases()
    assert (aliases.champion, aliases.previous_champion, aliases.routed) == ("1", "3", None)
    last = log.newest(line.store)
    assert last and (last.kind, last.by) == ("roll_back", "anchor") and "acceptance per request" in last.reason
    assert line.registry.versions["3"]["state"] == "rolled_back" and "by anchor" in line.registry.versions["3"]["rolled_back"]
    written = decision_of(line.store, last.experiment)
    assert written and not list(recompute.differences(written))
    line.follow()
    assert line.pair == ("1", "1")
    shown = "\n".join(history(line.store, 100))
    assert "version 1 is the anchor: version 2 is compared with it" in shown and "anchor at 75%" in shown
    assert "roll back, by anchor" in shown
    sections = dict(explain(line.store, "3"))
    assert len(sections["anchor"]) == 1 and "the champions since are worse" in sections["anchor"][0]
    assert any("version 1 is the anchor" in text for text in dict(explain(line.store, "1"))["anchor"])


def test_equal_champions_stay(line: Line) -> None:
    found = chain(line, dict.fromkeys("123", 0.4))
    assert found.verdict.verdict == "undecided" and "no sure loss of the champions since" in found.verdict.reason
    assert sum(found.verdict.requests.values()) == 2 * USERS * 40, "the requests of both champions count"
    assert line.registry.aliases == {"champion": "3"}


def test_a_champion_that_fails_gives_way_at_once_and_the_one_before_it_is_not_blamed(line: Line) -> None:
    assert chain(line, dict.fromkeys("123", 0.4), failing="3").verdict.verdict == "breach"
    assert line.registry.aliases == {"champion": "1"}
    other = Line(*world(6))
    other.follow()
    other.ship("2")
    other.follow()
    other.ask(dict.fromkeys("12", 0.4), failing="2")
    other.ship("3")  # before anybody looked
    other.follow()
    other.ask(dict.fromkeys("123", 0.4))
    assert other.look().verdict.verdict == "undecided", "the newest champion does not fail"


@pytest.mark.parametrize("writes", range(10))
def test_a_return_killed_at_any_write_is_completed(line: Line, writes: int) -> None:
    line.ship("2")
    line.follow()
    line.ask({"1": 0.6, "2": 0.3})
    line.registry.writes_left = writes
    with suppress(Killed):
        line.look()
        line.follow()
    line.registry.writes_left = 10**9
    if line.registry.aliases["champion"] == "2":
        line.look()
    line.follow()
    last = log.newest(line.store)
    assert last and (last.kind, last.by, last.champion) == ("roll_back", "anchor", "1")
    assert line.registry.aliases == {"champion": "1"} and line.pair == ("1", "1")
    assert len([move for move in log.backwards(line.store) if move.kind == "roll_back"]) == 1


def test_a_plan_and_a_decision_from_before_anchors_are_read() -> None:
    plan = make_plan(SETTINGS.experiment, SETTINGS.collect).model_dump()
    earlier = {name: value for name, value in plan.items() if not name.startswith("anchor")}
    record = {"id": "e", "champion": "1", "challenger": "2", "share": 0.5, "started": NOW, "plan": earlier}
    read = Decision.model_validate({"experiment": record, "verdict": SHIPPED.model_dump(), "decided": NOW, "by": "gate"})
    assert read.experiment.plan and read.experiment.plan.anchor_share == 0
