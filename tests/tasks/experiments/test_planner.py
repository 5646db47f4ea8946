"""What the planner promises is what the gate finds, and traffic is read as a test would read it."""

from dataclasses import replace

import numpy as np
import pytest

from infra.settings import Settings
from infra.settings.schema import Collect, Experiment
from tasks.experiments.plan import make_plan
from tasks.experiments.planner import Traffic, advice, page, prospects, read_traffic
from tasks.experiments.simulate import Simulation, World, simulate
from tests.tasks.made import NOW, MemoryStore, completion, feedback

SETTINGS = Experiment(min_requests=200, min_users=5, tolerated_users=0)
PLAN = make_plan(SETTINGS, Collect())
WEEK = World(users=20, each=1050.0, history=1050.0, blocks=56)
"""A team of 20 with 150 requests a day each, in blocks of an eighth of a day."""


def traffic_of(world: World, days: float, seed: int = 0) -> Traffic:
    simulation = Simulation(world, "crossover", np.random.default_rng(seed))
    sums = {name: simulation.halves[name].sum(axis=0) for name in ("accepted", "labelled", "requests")}
    return Traffic(**sums, days=days)


def test_what_is_promised_for_a_week_is_found_in_the_promised_share() -> None:
    crossover = prospects(traffic_of(WEEK, 7.0), PLAN)[1]
    gain = crossover.smallest["a week"]
    assert 0.02 < gain < 0.3
    settings = SETTINGS.model_copy(update={"design": "crossover"})
    outcomes = [simulate(replace(WEEK, accepted=1 + gain), settings, seed, looks=1) for seed in range(60)]
    # The promise is 0.8; Binomial(60, 0.8) falls below 40 once in a hundred times.
    assert sum(outcome.verdict == "promote" for outcome in outcomes) >= 40


def test_the_crossover_finds_less_where_users_differ_and_time_helps_only_there() -> None:
    by_user, crossover = prospects(traffic_of(replace(WEEK, users=60, restless=0.1), 7.0), PLAN)
    assert crossover.smallest["a week"] < by_user.smallest["a week"]
    assert crossover.smallest["four weeks"] == pytest.approx(crossover.smallest["a week"] / 2)
    assert by_user.smallest["four weeks"] > by_user.smallest["a week"] / 2
    assert crossover.chances["a week"][0.05] < crossover.chances["a week"][0.2]


def test_the_advice_names_settings_that_end_and_says_where_nothing_can_be_found() -> None:
    traffic = traffic_of(WEEK, 7.0)
    found = prospects(traffic, PLAN)
    lines = "\n".join(advice(found, traffic, PLAN))
    assert 'design = "crossover"' in lines and "max_seconds" in lines
    assert "finds +" in page(found, traffic, PLAN)
    lonely = traffic_of(replace(WEEK, users=3, each=30.0), 7.0)
    assert "No test finds" in "\n".join(advice(prospects(lonely, PLAN), lonely, PLAN))


def test_traffic_is_counted_by_user_and_block_as_a_test_would() -> None:
    store, settings = MemoryStore(), Settings(experiment=Experiment(min_history_requests=2, block_seconds=60))
    at = [NOW - 500, NOW - 490, NOW - 400]
    served = [completion(str(i), prefix=str(i), time=when) for i, when in enumerate(at)]
    served.append(completion("rare", user="v", prefix="rare", time=NOW - 300))
    store.put_rows("events/completions/date=2027-01-15/hour=08/a.parquet", served)
    store.put_rows("events/feedback/date=2027-01-15/hour=08/a.parquet", [feedback("f", prefix="0", time=NOW - 495)])
    days = 600 / 86_400
    traffic = read_traffic(store, settings, NOW, days)
    assert traffic.requests.tolist() == [[0, 2, 0, 1, 0, 0, 0, 0, 0, 0]]
    assert (traffic.accepted.sum(), traffic.labelled.sum(), traffic.days) == (1, 1, days)


def test_without_any_request_there_is_nothing_to_plan_from() -> None:
    assert read_traffic(MemoryStore(), Settings(), NOW, 7.0).labelled.sum() == 0
