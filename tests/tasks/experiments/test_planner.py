"""What the planner promises is what the gate finds, what it chooses can end, and traffic is read as a test would read it."""

import math
import tomllib
from dataclasses import replace
from datetime import UTC, datetime
from typing import Literal

import pytest

from evals.bench.experiments.simulate import World, simulate
from evals.bench.experiments.tests import ROWS, WORLDS, Case, proposed, traffic_of
from infra.settings import Settings
from infra.settings.schema import Collect, Experiment, Serving, Terms
from tasks.experiments.counting.traffic import DAY, by_project, recent
from tasks.experiments.planning.few import too_few
from tasks.experiments.planning.plan import make_plan
from tasks.experiments.planning.planner import errors_of, obstacle_of, page, plan_test, propose, prospects
from tasks.experiments.planning.projects import page as projects_page
from tasks.experiments.planning.projects import sizes
from tasks.experiments.planning.report import NothingToPlan, outlook
from tests.tasks.made import NOW, MemoryStore, completion, feedback

ALL = Serving(terms=Terms(experiments=True))
"""Settings by which everybody takes part in tests."""
SETTINGS = Experiment()
PLAN = make_plan(SETTINGS, Collect())
TWENTY = WORLDS["twenty"]
BEFORE = "events/completions/date=2027-01-01/hour=08/a.parquet"
"""An object of a team that began before the last week."""
WEEK = traffic_of(TWENTY, 7.0)


def promoted(row: Case, tests: int) -> int:
    return sum(simulate(row.world, row.plan, seed, looks=1).verdict == "promote" for seed in range(tests))


def test_a_team_of_20_gets_a_crossover_of_whole_days_that_finds_what_is_asked_in_the_promised_share() -> None:
    row = proposed("", WEEK, SETTINGS, {"accepted": 1.1})
    assert row.plan.design == "crossover" and row.plan.max_seconds % DAY == 0
    assert "crossover" in row.plan.planned and "finds +" in row.plan.planned
    # The promise is 0.8; Binomial(40, 0.8) falls below 25 once in a hundred times.
    assert promoted(row, 40) >= 25


def test_a_team_of_20_ships_a_harmless_candidate_within_two_days_without_inferiority() -> None:
    fast = SETTINGS.model_copy(update={"mode": "non_inferiority"})
    harmless = proposed("", WEEK, fast, {})
    assert harmless.plan.max_seconds <= 2 * DAY and "margins widened" in harmless.plan.planned
    assert promoted(harmless, 40) >= 27
    margin = next(metric.margin for metric in harmless.plan.metrics if metric.name == "accepted")
    assert 0.1 < margin < 0.3
    assert promoted(proposed("", WEEK, fast, {"accepted": 1 - margin}), 40) <= 4


def test_at_the_chosen_size_showing_less_and_accepting_more_wins_and_spam_never_does() -> None:
    assert promoted(proposed("", WEEK, SETTINGS, ROWS["planner"]["cursor"]["changes"]), 20) >= 15
    assert promoted(proposed("", WEEK, SETTINGS, ROWS["planner"]["spam"]["changes"]), 20) == 0


def test_a_team_of_hundreds_gets_the_simpler_design() -> None:
    traffic = traffic_of(World(users=300, each=1050.0, history=1050.0, blocks=56), 7.0)
    assert propose(traffic, SETTINGS, Collect()).settings.design == "by_user"


def test_twenty_users_split_into_two_arms_of_ten_too_seldom() -> None:
    assert "in 18% of the tests" in obstacle_of(20, PLAN, "by_user")
    assert obstacle_of(60, PLAN, "by_user") == "" == obstacle_of(20, PLAN, "crossover")
    assert "experiment.min_users" in obstacle_of(9, PLAN, "crossover")


def test_a_cap_of_credentials_asks_for_as_many_users_as_it_lets_count() -> None:
    strict = PLAN.model_copy(update={"max_credential_weight": 0.05})
    assert "experiment.max_credential_weight asks for 20 an arm" in obstacle_of(24, strict, "by_user")
    assert "come to 20 on each arm (experiment.max_credential_weight)" in obstacle_of(44, strict, "by_user")
    assert "experiment.max_credential_weight asks for 20" in obstacle_of(19, strict, "crossover")
    assert obstacle_of(24, strict, "crossover") == "" == obstacle_of(60, strict, "by_user")
    assert obstacle_of(60, PLAN.model_copy(update={"max_credential_weight": 0.2}), "by_user") == ""


def test_a_test_by_user_is_planned_without_credentials_of_several_users_and_a_crossover_with_them() -> None:
    store, plan = MemoryStore(), PLAN.model_copy(update={"max_credential_weight": 0.2})
    who = [(f"u{n}", f"c{n}") for n in range(3)] + [(f"m{n}", "shared") for n in range(4)]
    served = [completion(user, user=user, credential=credential, prefix=user, time=NOW - 400) for user, credential in who]
    store.put_rows("events/completions/date=2027-01-15/hour=08/a.parquet", served)
    traffic = recent(store, Settings(experiment=Experiment(min_history_requests=0), serving=ALL), plan, NOW, 0.01)
    apart, within = traffic.counted("by_user"), traffic.counted("crossover")
    assert (apart.users, apart.requests, apart.crowds.any()) == (3, 3.0, False)
    assert (within.users, within.requests, within.crowds.sum()) == (4, 7.0, 1)
    assert [each.users for each in prospects(traffic, plan)] == [3, 4]


def test_time_helps_within_users_and_what_users_differ_stays() -> None:
    team = traffic_of(World(users=80, each=300.0, history=300.0, restless=0.1, blocks=56), 7.0)
    crossover, apart = (errors_of(team, PLAN, design) for design in ("crossover", "by_user"))
    first = [metric.name for metric in PLAN.metrics].index("accepted")
    week, month = (math.sqrt(crossover.covariance(days)[first, first]) for days in (7.0, 28.0))
    assert month == pytest.approx(week / 2)
    assert apart.covariance(28.0)[first, first] > crossover.covariance(28.0)[first, first]
    by_user, within = prospects(team, PLAN)
    assert within.smallest["a week"] < by_user.smallest["a week"]
    assert within.chances["a week"][0.05] < within.chances["a week"][0.2]
    assert within.harmless["a day"] <= within.harmless["four weeks"]


def test_the_page_says_what_is_found_and_where_nothing_can_be() -> None:
    shown = page(prospects(WEEK, PLAN), WEEK, PLAN, propose(WEEK, SETTINGS, Collect()))
    assert 'design = "crossover"' in shown and "max_seconds" in shown and "no verdict" in shown
    lonely = traffic_of(replace(TWENTY, users=3, each=30.0), 7.0)
    assert "nothing to plan from" in page(prospects(lonely, PLAN), lonely, PLAN, propose(lonely, SETTINGS, Collect()))
    rare = traffic_of(replace(TWENTY, each=8.0), 7.0)
    assert "finds no gain below 50%" in propose(rare, SETTINGS.model_copy(update={"min_requests": 1}), Collect()).reason


def test_no_margin_allows_to_lose_more_than_a_half_and_a_test_that_shows_less_is_named() -> None:
    """With a margin of 120 % of the accepts, a version with half of them was promoted in 24 of 200 tests."""
    ten, fast = traffic_of(replace(TWENTY, users=10, each=150.0), 7.0), SETTINGS.model_copy(update={"mode": "non_inferiority"})
    proposal = propose(ten, fast, Collect())
    assert {name: proposal.settings.margins[name] for name in ("accepted", "characters")} == {"accepted": 0.5, "characters": 0.5}
    assert "ships an equal version in 9%" in proposal.reason and "more than 50% proves nothing" in proposal.reason
    assert "accepts fall by less than 120%" in proposal.reason
    assert promoted(proposed("", ten, fast, {"accepted": 0.5}), 40) == 0
    (few,) = too_few(ten, Settings(collect=Collect(min_samples=1), experiment=fast), NOW)
    assert "accepts fall by less than 120%" in few.reason and few.possible is not None
    days = int(few.change.split("max_seconds to ")[1].split(",")[0]) / DAY
    chosen = Settings(collect=Collect(min_samples=1), experiment=proposal.settings)
    assert not too_few(ten, chosen, NOW), "of settings that leave nothing open, no margin is widened"
    longer = propose(ten, fast.model_copy(update={"max_seconds": days * DAY}), Collect())
    assert 2 < days < 28 and "proves nothing" not in longer.reason


@pytest.mark.parametrize("mode", ["superiority", "non_inferiority"])
def test_the_printed_settings_are_taken_and_make_the_proposed_plan(mode: Literal["superiority", "non_inferiority"]) -> None:
    """Of a team whose next test has fewer requests than the default least, at wider margins than the default."""
    few, own = traffic_of(replace(TWENTY, each=8.0), 7.0), SETTINGS.model_copy(update={"mode": mode})
    proposal = propose(few, own, Collect())
    assert proposal.settings.planned_requests < SETTINGS.min_requests and proposal.settings.margins
    printed = page(prospects(few, PLAN), few, PLAN, proposal).split("so that it stays:\n")[1]
    kept = Experiment.model_validate({"mode": mode, **tomllib.loads(printed)["experiment"]})
    assert make_plan(kept, Collect()) == make_plan(proposal.settings, Collect())


def test_traffic_is_counted_by_user_and_block_as_a_test_would() -> None:
    store = MemoryStore()
    settings = Settings(experiment=Experiment(min_history_requests=2, block_seconds=60), serving=ALL)
    at = [NOW - 500, NOW - 490, NOW - 400]
    served = [completion(str(i), prefix=str(i), time=when) for i, when in enumerate(at)]
    served.append(completion("rare", user="v", prefix="rare", time=NOW - 300))
    store.put_rows("events/completions/date=2027-01-15/hour=08/a.parquet", served)
    store.put_rows("events/feedback/date=2027-01-15/hour=08/a.parquet", [feedback("f", prefix="0", time=NOW - 495)])
    days = 600 / 86_400
    traffic = recent(store, settings, PLAN, NOW, days)
    assert traffic.sums["requests"].tolist() == [[0, 2, 0, 1, 0, 0, 0, 0, 0, 0]]
    assert (traffic.sums["accepted"].sum(), traffic.sums["judged"].sum(), traffic.days) == (1, 1, days)
    assert traffic.mean("accepted", "shown") == pytest.approx(1.0)
    assert traffic.named.tolist() == [False]


def test_requests_of_people_who_take_part_in_no_test_are_not_planned_for_but_fill_a_cycle() -> None:
    pinned, refusing = "p" * 32, "r" * 32
    serving = Serving.model_validate(
        {
            "projects": {"pilot": {"experiments": True}, "quiet": {"experiments": False}},
            "users": {pinned: {"version": "3"}, refusing: {"experiments": False}},
        }
    )
    who = [("ada", "pilot"), ("bob", "pilot"), ("ada", "quiet"), (pinned, "pilot"), (refusing, "pilot"), ("eve", "elsewhere")]
    served = [completion(f"{n}", user=user, project=project, prefix=f"x{n}") for n, (user, project) in enumerate(who)]
    served = [row.model_copy(update={"time": NOW - 400}) for row in served]
    store, experiment = MemoryStore(), Experiment(min_history_requests=0, mode="non_inferiority", min_users=2, min_requests=1)
    store.put_rows(BEFORE, [completion("old", time=NOW - 14 * DAY)])
    store.put_rows("events/completions/date=2027-01-15/hour=08/a.parquet", served)
    answers = [feedback(row.id, user=row.user, project=row.project, prefix=row.prefix, time=NOW - 399) for row in served]
    store.put_rows("events/feedback/date=2027-01-15/hour=08/a.parquet", answers)
    settings, seven = (Settings(experiment=experiment, serving=serving, collect=Collect(min_samples=n)) for n in (6, 7))
    traffic = recent(store, settings, PLAN, NOW, 7.0)
    assert (traffic.users, traffic.requests, traffic.outside_tests) == (2, 2.0, 4 / 7)
    assert not too_few(traffic, settings, NOW), "all six requests of a week fill a cycle"
    assert [each.what for each in too_few(traffic, seven, NOW)] == ["cycle"]
    nobody = Settings(experiment=experiment, serving=Serving())
    assert "Let more developers take part" in plan_test(store, nobody, NOW).planned
    with pytest.raises(NothingToPlan, match=r"of people who take part \(serving.terms.experiments"):
        outlook(store, nobody, NOW, 7.0)
    with pytest.raises(NothingToPlan, match=r"with an answer; `tabloop status` shows whether"):
        outlook(store, nobody, NOW, 28.0)


def test_the_rate_of_a_new_team_is_that_of_its_days_so_far() -> None:
    """Its first requests were spread over seven days: 100 a day were too few for a cycle that 500 a week fill."""
    store, settings = MemoryStore(), Settings(experiment=Experiment(min_history_requests=0), serving=ALL)
    served = [completion(f"{n}", prefix=f"x{n}", time=NOW - 600 - 720 * n) for n in range(200)]  # 40 hours
    hours = {row.time // 3600 for row in served}
    for hour in hours:
        own = [row for row in served if row.time // 3600 == hour]
        store.put_rows(f"events/completions/{datetime.fromtimestamp(hour * 3600, UTC):date=%Y-%m-%d/hour=%H}/a.parquet", own)
    assert [(each.days, each.per_day) for each in (recent(store, settings, PLAN, NOW, days) for days in (28.0, 1.0))] == [
        (2.0, 100.0),
        (1.0, 120.0),
    ]
    (alone,) = by_project(store, settings, PLAN, NOW).values()
    assert (alone.days, alone.per_day) == (2.0, 100.0)
    assert "100 requests a day in 48 h, acceptance" in page((), alone, PLAN, propose(alone, settings.experiment, Collect()))
    asked = settings.model_copy(update={"collect": Collect(min_samples=500)})
    assert "cycle" not in [each.what for each in too_few(recent(store, asked, PLAN, NOW), asked, NOW)]
    store.put_rows(BEFORE, [completion("old", time=NOW - 14 * DAY)])
    known = recent(store, asked, PLAN, NOW)
    assert known.days == 7.0 and next(each.reason[:16] for each in too_few(known, asked, NOW)) == "29 samples a day"


def test_projects_with_made_up_names_are_not_all_planned_for() -> None:
    store, serving = MemoryStore(), Serving.model_validate({"projects": {"small": {}}, "terms": {"experiments": True}})
    names = ["small", *(f"p{n % 50:02}" for n in range(150)), *["large"] * 4]
    served = [completion(f"{n}", prefix=f"x{n}", project=name, time=NOW - 700) for n, name in enumerate(names)]
    store.put_rows("events/completions/date=2027-01-15/hour=07/a.parquet", served)
    settings = Settings(experiment=Experiment(min_history_requests=0), serving=serving)
    found = by_project(store, settings, PLAN, NOW)
    assert set(found) == {"large", *(f"p{n:02}" for n in range(19)), "small"}
    assert "Projects, the largest and those of the settings (serving" in projects_page(sizes(found, settings, NOW))


def test_requests_of_users_without_a_history_and_those_that_explore_fill_a_cycle() -> None:
    """Sixty users with ten requests a week each were `0 samples a day`, and no cycle would ever begin."""
    store, settings = MemoryStore(), Settings(serving=ALL, collect=Collect(min_samples=500))
    who = [(f"u{n % 60}", n >= 480) for n in range(600)]
    served = [
        completion(f"{n}", user=user, prefix=f"x{n}", time=NOW - 700 + n / 10, exploring=explores)
        for n, (user, explores) in enumerate(who)
    ]
    store.put_rows(BEFORE, [completion("old", time=NOW - 14 * DAY)])
    store.put_rows("events/completions/date=2027-01-15/hour=07/a.parquet", served)
    traffic = recent(store, settings, PLAN, NOW)
    assert (traffic.users, traffic.outside_tests) == (0, 600 / 7)
    assert "cycle" not in [each.what for each in too_few(traffic, settings, NOW)]
    more = settings.model_copy(update={"collect": Collect(min_samples=601)})
    assert "86 samples a day" in too_few(traffic, more, NOW)[0].reason


def test_without_any_request_the_plan_says_that_there_is_nothing_to_plan_from() -> None:
    assert recent(MemoryStore(), Settings(), PLAN, NOW).sums["judged"].sum() == 0
    plan = plan_test(MemoryStore(), Settings(), NOW)
    assert (plan.design, plan.max_seconds) == ("by_user", 7 * DAY) and "nothing to plan from" in plan.planned
    fixed = Experiment(design="crossover", planned_requests=500, max_seconds=60)
    assert plan_test(MemoryStore(), Settings(experiment=fixed), NOW).planned == ""
