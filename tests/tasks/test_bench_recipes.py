"""What the two recipes make of the same looks, and how a gain is told."""

import numpy as np
import pytest

from evals import positions
from evals.developers import Quirks, Schedule
from evals.generation import SampledCompletion
from infra import settings as configuration
from tasks.bench_recipes import Gain, difference, figures, grouped, ours, rlinfs

CODE = positions.Code(
    [positions.Source("a.py", "def total(values):\n    result = sum(values) + offset\n    return result\n" * 20)]
)


def test_a_rejection_teaches_ours_and_not_rlinfs():
    settings = configuration.load()
    schedule = Schedule(30, 0, CODE, Quirks(several_lines=0.0))
    looks = [schedule.first_pause(number) for number in range(60)]
    # Every other one is right.
    texts = [look.position.truth if number % 2 else "zz" for number, look in enumerate(looks)]
    drawn = [SampledCompletion((1, 2), (3, 4), (-1.0, -0.5), text) for text in texts]
    base = configuration.path(settings.model.base)
    mine, theirs = ours(looks, drawn, settings, "1"), rlinfs(looks, drawn, base, settings, "1")
    assert {s.outcome for s in mine} == {"accepted", "rejected"}
    assert all((s.advantage > 0) == (s.outcome == "accepted") for s in mine)
    assert all(s.token_ids == (3, 4) and s.logprobs == (-1.0, -0.5) for s in mine)
    assert {(s.outcome, s.reward) for s in theirs} == {("accepted", 1.0), ("rejected", 0.0)}
    assert {(s.outcome, s.advantage) for s in theirs} == {("accepted", 1.0), ("rejected", 0.0)}
    assert all(s.token_ids != (3, 4) and s.logprobs != (-1.0, -0.5) and s.temperature == 1.0 for s in theirs)


def test_groups_are_as_many_samples_at_fewer_places_and_nobody_judges_them():
    settings = configuration.load()
    schedule = Schedule(30, 0, CODE, Quirks(several_lines=0.0))
    looks = [schedule.first_pause(number) for number in range(16)]
    made = grouped(looks, configuration.path(settings.model.base), settings, "7", seed=1)
    assert len(made) == 16
    assert len({s.prompt_token_ids for s in made[:8]}) == len({s.prompt_token_ids for s in made[8:]}) == 1
    assert sum(s.advantage for s in made[:8]) == pytest.approx(0, abs=1e-9)
    assert {(s.outcome, s.policy_version) for s in made} == {("judged", "7")}


@pytest.mark.parametrize(
    ("ours_gains", "rlinf_gains", "met"),
    [(0.02, 0.01, True), (0.02, 0.011, False), (0.01, -0.01, True), (-0.01, -0.02, False), (0.0, -0.02, False)],
)
def test_twice_the_gain_is_asked_of_a_gain(ours_gains, rlinf_gains, met):
    def made(change: float) -> list[Gain]:
        none = np.zeros(3)
        return [Gain(("a", "b", "c"), (none, np.full(3, change)), (none, none))]

    found = figures({"tabloop": made(ours_gains), "rlinf": made(rlinf_gains)}, [0])
    assert found[-1].met == met


def test_a_gain_is_told_in_points_with_its_interval_over_the_users_of_all_seeds():
    rng = np.random.default_rng(0)
    users = tuple(f"u{i % 50}" for i in range(1000))

    def made(change: float) -> Gain:
        base = rng.random(1000) * 0.2
        learnt = base + change + rng.normal(0, 0.01, 1000)
        return Gain(users, (base, learnt), (10 * base, 10 * learnt))

    ahead, behind = [made(0.03), made(0.01)], [made(0.0), made(0.01)]
    estimate, width = difference(ahead, "accepted")
    assert estimate == pytest.approx(0.02, abs=width) and 0 < width < difference(ahead[:1], "accepted")[1] + 0.005
    found = {f.name: f for f in figures({"tabloop": ahead, "rlinf": behind}, [0, 7])}
    assert found["tabloop: gain, seed 7"].value == pytest.approx(1.0, abs=0.2)
    assert found["tabloop: accepted characters gained"].value == pytest.approx(10 * estimate, abs=1e-4)
    assert found["tabloop's gain less twice rlinf's, if that is one"].met
