"""The arm of a request: by user for good, in a crossover by block of time."""

from infra.assignment import assigned_arm
from infra.records import ExperimentRecord
from infra.settings.schema import Collect, Experiment
from tasks.experiments.planning.plan import make_plan

BY_USER = ExperimentRecord(id="e", champion="1", challenger="2", share=0.3, started=0)
CROSSOVER = BY_USER.model_copy(update={"plan": make_plan(Experiment(design="crossover", block_seconds=60), Collect())})
USERS = [f"u{number}" for number in range(2000)]


def arms(experiment: ExperimentRecord, now: float) -> list[bool]:
    return [assigned_arm(experiment, user, now) == "challenger" for user in USERS]


def test_a_user_has_one_arm_at_any_time_in_the_planned_share() -> None:
    assert arms(BY_USER, 0) == arms(BY_USER, 1e9)
    assert abs(sum(arms(BY_USER, 0)) / len(USERS) - 0.3) < 0.04


def test_a_plan_by_user_does_not_move_the_users_of_a_test_without_a_plan() -> None:
    planned = BY_USER.model_copy(update={"plan": make_plan(Experiment(), Collect())})
    assert arms(planned, 5) == arms(BY_USER, 5)


def test_in_a_crossover_the_arm_lasts_for_a_block_and_the_next_is_drawn_anew() -> None:
    first, within, second = arms(CROSSOVER, 600), arms(CROSSOVER, 659.9), arms(CROSSOVER, 660)
    assert first == within
    assert abs(sum(first) / len(USERS) - 0.3) < 0.04
    both = sum(a and b for a, b in zip(first, second, strict=True)) / len(USERS)
    assert abs(both - 0.09) < 0.03, "the next block is independent of this one"
