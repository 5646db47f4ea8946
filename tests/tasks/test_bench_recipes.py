"""The samples of each recipe at the same pauses, and the figures of a gain."""

import numpy as np
import pytest

from evals import positions
from evals.developers import Quirks, Schedule
from evals.generation import SampledCompletion
from infra import settings as configuration
from tasks.bench_recipes import Gain, difference, figures, group_samples, rlinf_samples, tabloop_samples

CODE = positions.Code(
    [positions.Source("a.py", "def total(values):\n    result = sum(values) + offset\n    return result\n" * 20)]
)


def test_tabloop_trains_on_rejections_and_rlinf_does_not():
    settings = configuration.load()
    schedule = Schedule(30, 0, CODE, Quirks(several_lines=0.0), "live")
    pauses = [schedule.first_pause(number) for number in range(60)]
    # Every other completion is right.
    texts = [pause.position.truth if number % 2 else "zz" for number, pause in enumerate(pauses)]
    completions = [SampledCompletion((1, 2), (3, 4), (-1.0, -0.5), text) for text in texts]
    base = configuration.path(settings.model.base)
    signed, binary = tabloop_samples(pauses, completions, settings, "1"), rlinf_samples(pauses, completions, base, settings, "1")
    assert {s.outcome for s in signed} == {"accepted", "rejected"}
    assert all((s.advantage > 0) == (s.outcome == "accepted") for s in signed)
    assert all(s.token_ids == (3, 4) and s.logprobs == (-1.0, -0.5) for s in signed)
    assert {(s.outcome, s.reward) for s in binary} == {("accepted", 1.0), ("rejected", 0.0)}
    assert {(s.outcome, s.advantage) for s in binary} == {("accepted", 1.0), ("rejected", 0.0)}
    assert all(s.token_ids != (3, 4) and s.logprobs != (-1.0, -0.5) and s.temperature == 1.0 for s in binary)


def test_groups_have_as_many_samples_at_fewer_places_and_need_no_developer():
    settings = configuration.load()
    schedule = Schedule(30, 0, CODE, Quirks(several_lines=0.0), "live")
    pauses = [schedule.first_pause(number) for number in range(16)]
    samples = group_samples(pauses, configuration.path(settings.model.base), settings, "7", seed=1)
    assert len(samples) == 16
    assert len({s.prompt_token_ids for s in samples[:8]}) == len({s.prompt_token_ids for s in samples[8:]}) == 1
    assert sum(s.advantage for s in samples[:8]) == pytest.approx(0, abs=1e-9)
    assert {(s.outcome, s.policy_version) for s in samples} == {("judged", "7")}


@pytest.mark.parametrize(
    ("tabloop_gain", "rlinf_gain", "met"),
    [(0.02, 0.01, True), (0.02, 0.011, False), (0.01, -0.01, True), (-0.01, -0.02, False), (0.0, -0.02, False)],
)
def test_the_target_is_twice_the_gain_of_rlinf_if_that_is_positive(tabloop_gain, rlinf_gain, met):
    def gains(change: float) -> list[Gain]:
        zeros = np.zeros(3)
        return [Gain(("a", "b", "c"), (zeros, np.full(3, change)), (zeros, zeros))]

    rows = figures({"tabloop": gains(tabloop_gain), "rlinf": gains(rlinf_gain)}, [0])
    assert rows[-1].met == met


def test_a_gain_is_in_points_with_an_interval_over_the_users_of_all_seeds():
    rng = np.random.default_rng(0)
    users = tuple(f"u{i % 50}" for i in range(1000))

    def random_gain(change: float) -> Gain:
        base = rng.random(1000) * 0.2
        trained = base + change + rng.normal(0, 0.01, 1000)
        return Gain(users, (base, trained), (10 * base, 10 * trained))

    tabloop_gains, rlinf_gains = [random_gain(0.03), random_gain(0.01)], [random_gain(0.0), random_gain(0.01)]
    estimate, half_width = difference(tabloop_gains, "accepted")
    assert (
        estimate == pytest.approx(0.02, abs=half_width) and 0 < half_width < difference(tabloop_gains[:1], "accepted")[1] + 0.005
    )
    by_name = {f.name: f for f in figures({"tabloop": tabloop_gains, "rlinf": rlinf_gains}, [0, 7])}
    assert by_name["tabloop: gain, seed 7"].value == pytest.approx(1.0, abs=0.2)
    assert by_name["tabloop: accepted characters gained"].value == pytest.approx(10 * estimate, abs=1e-4)
    assert by_name["tabloop's gain less twice rlinf's, if that is one"].met
