"""What a team's traffic is too little for: a cycle, a test, both or neither."""

from evals.bench.experiments.tests import WORLDS, traffic_of
from infra.settings import Settings
from infra.settings.schema import Collect, Experiment
from infra.storage import few as log
from tasks.experiments.planning.few import page, too_few
from tests.tasks.made import NOW

TRAFFIC = traffic_of(WORLDS["twenty"], 7.0)
ENOUGH = Collect(min_samples=1)


def test_enough_traffic_lacks_nothing() -> None:
    assert too_few(TRAFFIC, Settings(collect=ENOUGH), NOW) == ()


def test_a_gain_that_the_longest_test_misses_has_a_date_and_another_gain() -> None:
    (few,) = too_few(TRAFFIC, Settings(collect=ENOUGH, experiment=Experiment(gain=0.02)), NOW)
    assert few.what == "test" and few.possible is not None and few.possible > NOW + 28 * 86_400
    assert "experiment.gain asks for a test that finds +2%, and 28 days are the longest" in few.reason
    assert few.change.startswith("Set experiment.gain to 0.") and "non_inferiority" in few.change


def test_too_few_users_and_too_few_requests_are_two_lines() -> None:
    asked = round(TRAFFIC.per_day * 7 * 10)
    settings = Settings(collect=Collect(min_samples=asked, max_samples=asked), experiment=Experiment(min_users=50))
    found = too_few(TRAFFIC, settings, NOW)
    assert [few.what for few in found] == ["cycle", "test"] and all(few.possible is None for few in found)
    assert "experiment.min_users asks for 50" in log.in_words(found[1])
    assert page(found).count("\n") == 1
