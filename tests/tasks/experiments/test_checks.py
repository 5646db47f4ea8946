"""Quality checks: every planted fault is found by the check of its name, and equal arms pass."""

from dataclasses import replace

import numpy as np
import pytest

from evals.bench.experiments.simulate import Simulation, World, plan_for
from infra.records import Arm, CheckResult, ExperimentRecord, Stage, Verdict
from infra.settings.schema import Collect, Experiment
from tasks.experiments.planning.plan import make_plan
from tasks.experiments.verdict.checks import run_checks
from tasks.experiments.verdict.decide import decide, means_of, over
from tasks.experiments.verdict.designs import compare, compare_ahead
from tasks.statistics.ratios import Difference, difference, leave_one_out, weighted_fit
from tests.tasks.experiments.arms import arm_totals, user
from tests.tasks.made import NOW

TEAM = World(users=300, each=60.0, history=60.0, blocks=8)
SETTINGS = Experiment(min_requests=200, min_users=5, design="by_user", max_seconds=1000)
CROSSOVER = SETTINGS.model_copy(update={"design": "crossover"})
TURNS = World(users=60, each=400.0, history=100.0)
"""A team whose users meet both versions in 40 blocks of time."""
DESIGNS = pytest.mark.parametrize("settings", [SETTINGS, CROSSOVER], ids=["by_user", "crossover"])


def checked(world: World, settings: Experiment = SETTINGS, blocks: int = 8, seed: int = 0) -> dict[str, CheckResult]:
    simulation = Simulation(world, settings.design, np.random.default_rng(seed))
    return {check.name: check for check in run_checks(simulation.totals(blocks), 0.5, plan_for(world, settings))}


def judged(world: World, blocks: int, after: float, settings: Experiment = SETTINGS, seed: int = 0) -> Verdict:
    simulation, plan = Simulation(world, settings.design, np.random.default_rng(seed)), plan_for(world, settings)
    test = ExperimentRecord(id="e", champion="1", challenger="2", share=0.5, started=NOW, plan=plan)
    return decide(test, plan, simulation.totals(blocks), NOW + after)


@DESIGNS
def test_equal_arms_pass_every_check_at_every_look(settings: Experiment) -> None:
    states = {check.state for seed in range(6) for look in (2, 8) for check in checked(TEAM, settings, look, seed).values()}
    assert states == {"passed"}


@pytest.mark.parametrize(
    ("settings", "name", "fields"),
    [
        (SETTINGS, "labels", {"judged": 0.8}),
        (SETTINGS, "requests_per_user", {"requests": 0.7}),
        (SETTINGS, "dropping_out", {"lost": 0.18}),
        (SETTINGS, "both_arms", {"both": 20}),
        (SETTINGS, "split", {"lost": 0.7, "history": 0.0}),
        (CROSSOVER, "labels", {"judged": 0.8}),
        (CROSSOVER, "requests_per_user", {"requests": 0.8}),
        (CROSSOVER, "split", {"lost": 0.4}),
        (CROSSOVER, "both_arms", {"both": 10}),
    ],
)
def test_a_fault_breaks_the_test_by_its_check_and_is_not_held_against_the_challenger(
    settings: Experiment, name: str, fields: dict
) -> None:
    team = TEAM if settings is SETTINGS else TURNS
    world = replace(team, **fields)
    found = checked(world, settings, world.blocks)[name]
    assert found.state == "broken", found
    verdict = judged(world, world.blocks, 10, settings)
    assert (verdict.verdict, verdict.promising) == ("broken", False)
    assert found.reason in verdict.reason


@DESIGNS
@pytest.mark.parametrize(("lost", "check"), [("failed", "champion_failed"), ("closed", "champion_late")])
def test_a_champion_whose_slot_fails_or_is_slow_makes_no_challenger_look_better(
    settings: Experiment, lost: str, check: str
) -> None:
    """Without the check, equal challengers were promoted in 8 of 20 tests by user, and in 12 of 20 crossovers."""
    world = World(users=300, each=200.0, blocks=8) if settings is SETTINGS else replace(TURNS, each=1000.0)
    plan, verdicts = plan_for(world, settings), []
    test = ExperimentRecord(id="e", champion="1", challenger="2", share=0.5, started=NOW, plan=plan)
    for seed in range(4):
        totals, draw = (
            Simulation(world, settings.design, np.random.default_rng(seed)).totals(world.blocks),
            np.random.default_rng(seed),
        )
        for part in (totals.during, totals.later, totals.in_block):
            sums = part["champion"]
            sums[lost][:] = draw.binomial(sums["requests"].astype(int), 0.07)  # type: ignore[index]
            for name in ("visible", "shown", "judged", "decided", "accepted", "characters", "annoyed", "length"):
                sums[name][:] *= 0.93  # type: ignore[index]
        assert {each.name for each in decide(test, plan, totals, NOW).checks if each.state != "passed"} == {check}
        verdicts += [decide(test, plan, totals, NOW + after) for after in (10, 1000)]
    assert {(verdict.verdict, verdict.promising) for verdict in verdicts} == {("undecided", False), ("broken", False)}
    assert f"of the requests {'failed' if lost == 'failed' else 'were closed'}" in verdicts[0].reason
    failing = replace(TEAM, failures=0.3) if settings is SETTINGS else replace(TURNS, failures=0.3)
    assert checked(failing, settings, failing.blocks)["champion_failed"].state == "passed", "the challenger's is a guardrail"


def test_a_split_that_depends_on_the_time_of_day_breaks_a_crossover() -> None:
    totals = Simulation(TURNS, "crossover", np.random.default_rng(0)).totals(40)
    plan = plan_for(TURNS, CROSSOVER)
    states = {check.name: check.state for check in run_checks(totals, 0.5, plan)}
    assert states["time_of_day"] == "passed"
    champion, challenger = totals.during["champion"], totals.during["challenger"]
    for name, side in (("turns_6", champion), ("turns_18", challenger)):
        side[name][:] *= 1.8  # type: ignore[index]
    broken = {check.name: check for check in run_checks(totals, 0.5, plan)}
    assert broken["time_of_day"].state == "broken" and broken["split"].state == "passed"


def test_one_user_on_both_arms_is_set_aside() -> None:
    world = replace(TEAM, both=1)
    assert checked(world)["both_arms"].state == "passed"
    assert judged(world, 8, 10).verdict != "broken"


@DESIGNS
@pytest.mark.parametrize("part", [0.125, 0.375, 1.0])
def test_late_labels_hold_the_verdict_and_a_test_that_ends_before_they_arrive_is_broken(
    settings: Experiment, part: float
) -> None:
    """At the first look the champion has no label at all, later only old requests have them."""
    world = replace(TEAM if settings is SETTINGS else TURNS, late=0.25)
    blocks = round(world.blocks * part)
    assert checked(world, settings, blocks)["labels"].state == "hold"
    held = judged(world, blocks, 10, settings)
    assert held.verdict == "undecided" and "judged per shown completion differs" in held.reason
    ended = judged(world, blocks, 1000, settings)
    assert (ended.verdict, ended.promising) == ("broken", False)


@DESIGNS
def test_an_arm_that_loses_labels_looks_neither_better_nor_worse(settings: Experiment) -> None:
    """A tenth of the champion's labels is lost, of all that is shown, which is 60 % of the requests: it used to cost 4 %."""
    world = World(users=2000, each=200.0, judged=0.9, blocks=8, spread=0.3)
    totals = Simulation(world, settings.design, np.random.default_rng(1)).totals(8)
    plan = plan_for(world, settings)
    for metric in plan.metrics[:3]:
        found = difference(compare(totals, metric, plan), 0.05, 1.0, last_look=True)
        assert isinstance(found, Difference) and found.low < 0 < found.high, metric.name
        assert abs(found.estimate) < 0.02 * means_of(totals, metric)[0]


def test_the_error_of_a_rate_with_missing_labels_equals_that_of_leaving_out_each_user() -> None:
    world = World(users=40, each=60.0, answered=0.6, blocks=4)
    totals = Simulation(world, "by_user", np.random.default_rng(2)).totals(4)
    plan = plan_for(world, SETTINGS)
    alone = replace(totals, before={name: np.zeros_like(values) for name, values in totals.before.items()})
    fit = weighted_fit(compare(alone, plan.metrics[0], plan))
    assert fit is not None

    def product(arm: str, keep: np.ndarray) -> float:
        sums = {name: float(values[keep].sum()) for name, values in totals.during[arm].items()}  # type: ignore[index]
        return sums["visible"] / sums["requests"] * sums["accepted"] / sums["judged"]

    users = len(totals.both)
    everyone = np.ones(users, dtype=bool)
    assert fit[0] == pytest.approx(product("challenger", everyone) - product("champion", everyone))
    left_out = [product("challenger", everyone & (np.arange(users) != u)) for u in range(users)]
    left_out = [a - product("champion", everyone & (np.arange(users) != u)) for u, a in enumerate(left_out)]
    assert fit[1] == pytest.approx(np.sqrt(np.square(np.array(left_out) - fit[0]).sum()), rel=0.02)


def test_the_first_half_of_a_block_that_shows_the_version_before_breaks_a_crossover() -> None:
    world = World(users=200, each=200.0, blocks=40, accepted=2.0, carry_over=1.0)
    assert checked(world, CROSSOVER, 40)["carry_over"].state == "broken"
    assert checked(replace(world, carry_over=0.0), CROSSOVER, 40)["carry_over"].state == "passed"


@DESIGNS
def test_a_gain_that_surely_fades_within_the_test_promotes_nothing(settings: Experiment) -> None:
    team = World(users=400, each=100.0, blocks=8)
    fades = judged(replace(team, accepted=1.6, fading=True), 8, 1000, settings)
    assert fades.verdict == "reject" and "less so in the second half" in fades.reason
    lasts = [judged(replace(team, accepted=1.3), 8, 1000, settings, seed).verdict for seed in range(4)]
    assert lasts.count("promote") >= 3


@DESIGNS
def test_a_gain_before_the_planned_end_promotes_only_where_it_surely_lasts_until_then(settings: Experiment) -> None:
    team = TEAM if settings.design == "by_user" else replace(TURNS, blocks=8)
    lasting, fading = (
        [judged(replace(team, accepted=2.0, fading=fades), 4, 500, settings, seed).verdict for seed in range(5)]
        for fades in (False, True)
    )
    assert "promote" in lasting and "promote" not in fading


def test_the_gain_at_the_planned_end_is_on_the_line_through_both_halves() -> None:
    """A rate of 0.2 on the champion's arm; 0.2 + 0.10 in the first half of the challenger's, 0.2 + 0.06 in the second."""
    champion = {f"a{i}": user(100, 20) for i in range(3)}
    challenger = {f"b{i}": user(100, 28) for i in range(3)}
    halves = {"champion": {f"a{i}": user(50, 10) for i in range(3)}, "challenger": {f"b{i}": user(50, 13) for i in range(3)}}
    totals, plan = arm_totals(champion, challenger, later=halves), plan_for(TEAM, SETTINGS)
    for part, expected in ((1.0, 0.06 - 0.5 * 0.04), (0.5, 0.06 - 2.5 * 0.04)):
        found = leave_one_out(compare_ahead(totals, "accepted", "requests", plan, part))
        assert found and found[0] == pytest.approx(expected)


def test_the_elapsed_part_of_a_test_is_that_of_the_time_whose_halves_are_compared() -> None:
    """A ramp took 400 of 1,000 s, so 150 s of the test are a quarter of it."""
    stages = (Stage(name="ramp", share=0.1, started=NOW), Stage(name="test", share=0.5, started=NOW + 400))
    plan = plan_for(TEAM, SETTINGS)
    test = ExperimentRecord(id="e", champion="1", challenger="2", share=0.5, started=NOW, plan=plan, stages=stages)
    few = arm_totals({"a": user(1)}, {"b": user(1)})
    assert [over(test, plan, few, NOW + 400 + after) for after in (150, 600, 700)] == [0.25, 1.0, 1.0]
    late = test.model_copy(update={"stages": (stages[0], stages[1].model_copy(update={"started": NOW + 1000}))})
    assert over(late, plan, few, NOW + 1000) == 1.0, "no time is left"


def test_arms_are_compared_where_one_user_alone_asked_in_the_day_before() -> None:
    """As on a Monday: the requests of a user then have a covariate that nobody else has."""
    champion, challenger = (
        {f"{name}{i}": user(40 + i % 9, 8 + gain + i % 3) for i in range(60)} for name, gain in (("a", 0), ("b", 9))
    )
    fewer = {name: user(15 + i % 9, 6) for i, name in enumerate(challenger)}
    plan, before = plan_for(TEAM, SETTINGS), {"a0": user(30, 6)}
    test = ExperimentRecord(id="e", champion="1", challenger="2", share=0.5, started=NOW, plan=plan)
    promoted = decide(test, plan, arm_totals(champion, challenger, before), NOW + 1000)
    assert promoted.verdict == "promote", promoted.reason
    broken = decide(test, plan, arm_totals(champion, fewer, before), NOW + 10)
    assert broken.verdict == "broken" and "a user's requests differ by -" in broken.reason


@pytest.mark.parametrize("requests", [1, 2, 5, 12])
def test_the_first_requests_of_a_long_test_end_nothing(requests: int) -> None:
    plan = plan_for(TEAM, SETTINGS).model_copy(update={"planned_requests": 400_000, "min_requests": 20_000})
    test = ExperimentRecord(id="e", champion="1", challenger="2", share=0.5, started=NOW, plan=plan)
    arms = [{f"{name}{i}": user(requests + (i + n) % 2, i % 2) for i in range(8 + n)} for n, name in enumerate("ab")]
    verdict = decide(test, plan, arm_totals(*arms), NOW + 20)
    assert verdict.verdict == "undecided" and {check.state for check in verdict.checks} == {"passed"}


def test_equal_rates_of_a_few_users_may_be_chance() -> None:
    plan = plan_for(TEAM, SETTINGS)

    def state(champion: int, challenger: int) -> str:
        arms = [{f"{name}{i}": user(1 + 2 * n) for i in range((champion, challenger)[n])} for n, name in enumerate("ab")]
        return next(check.state for check in run_checks(arm_totals(*arms), 0.5, plan) if check.name == "requests_per_user")

    assert [state(6, 1), state(1, 6), state(4, 4), state(6, 6)] == ["passed", "passed", "passed", "broken"]


def test_who_has_not_come_yet_has_not_dropped_out() -> None:
    """The first users of a test of a twentieth of a team may be the challenger's."""
    plan = plan_for(TEAM, SETTINGS)
    for present in (1, 2):
        totals = arm_totals({}, {f"b{i}": user(1) for i in range(present)}, absent={"champion": 190, "challenger": 10 - present})
        found = {check.name: check.state for check in run_checks(totals, 0.05, plan)}
        assert found["dropping_out"] == "passed"


@pytest.mark.parametrize(("rates", "verdict"), [((0.33, 0.17), "reject"), ((0.25, 0.25), "promote"), ((0.27, 0.23), "promote")])
def test_without_inferiority_a_version_that_is_surely_worse_in_the_second_half_is_not_promoted(
    rates: tuple[float, float], verdict: str
) -> None:
    draw = np.random.default_rng(0)
    settings = SETTINGS.model_copy(update={"mode": "non_inferiority", "tolerated_users": 0, "planned_requests": 15_000})
    plan = make_plan(settings, Collect())
    test = ExperimentRecord(id="e", champion="1", challenger="2", share=0.5, started=NOW, plan=plan)
    during, later = dict[Arm, dict](), dict[Arm, dict]()
    for arm, (first, second) in {"champion": (0.25, 0.25), "challenger": rates}.items():
        accepted = draw.binomial(50, [[first], [second]], (2, 150))
        during[arm] = {f"{arm}{i}": user(100, accepted[:, i].sum()) for i in range(150)}
        later[arm] = {f"{arm}{i}": user(50, accepted[1, i]) for i in range(150)}
    found = decide(test, plan, arm_totals(during["champion"], during["challenger"], later=later), NOW + 10)
    assert found.verdict == verdict and ("in the second half surely worse" in found.reason) == (verdict == "reject")
