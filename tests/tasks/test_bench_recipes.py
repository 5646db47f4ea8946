"""The samples of each recipe at the same pauses, and the figures of a gain."""

from pathlib import Path

import numpy as np
import pytest

from evals import positions
from evals.bench.gains import Gain, difference, figures
from evals.developers import Pause, Quirks, Schedule
from evals.generation import SampledCompletion
from infra import settings as configuration
from infra.settings import Settings
from tasks import bench_recipes
from tasks.bench_recipes import RECIPES, Interactions, Plan
from tasks.trainer.job import Job
from tasks.trainer.update.targets import taught_by

CODE = positions.Code(
    [positions.Source("a.py", "def total(values):\n    result = sum(values) + offset\n    return result\n" * 20)]
)


def pauses_of(count: int) -> list[Pause]:
    schedule = Schedule(30, 0, CODE, Quirks(several_lines=0.0))
    return [schedule.first_pause(number) for number in range(count)]


@pytest.fixture(scope="module")
def settings() -> Settings:
    return configuration.load()


def interactions(settings: Settings, count: int) -> Interactions:
    return Interactions(pauses_of(count), configuration.path(settings.model.base), settings, "7", seed=1)


@pytest.mark.parametrize("recipe", [name for name in RECIPES if name != "control"])
def test_every_recipe_has_something_to_teach_under_its_own_training(settings: Settings, recipe: str) -> None:
    samples = RECIPES[recipe].samples(interactions(settings, 16))
    training = settings.train.model_copy(update=RECIPES[recipe].training)
    assert taught_by(samples, training)
    assert set(RECIPES[recipe].training) <= Job.model_fields.keys()


def test_settled_text_is_the_first_line_that_was_written_with_its_end(settings: Settings) -> None:
    given = interactions(settings, 40)
    samples, renderer = RECIPES["settled"].samples(given), given.renderer
    labels = {sample.completion_id: sample.settled_token_ids for sample in samples}
    whole = [
        (str(number), pause.settled.text.split("\n")[0])
        for number, pause in enumerate(given.pauses)
        if pause.settled and pause.settled.kind == "typed" and pause.settled.text and "\n" in pause.settled.text
    ]
    assert len(whole) > 5
    assert all(labels[number] == (*renderer.encode(line), renderer.end)[:24] for number, line in whole)
    untaught = {str(n) for n, p in enumerate(given.pauses) if p.settled and p.settled.kind in ("pasted", "unfinished", "deleted")}
    assert not untaught & labels.keys()
    third = RECIPES["settled_third"].samples(given)
    assert sum(sample.outcome != "standing" for sample in third) <= len(given.pauses) / 3 + 1
    assert any(sample.outcome == "standing" for sample in third)


def test_developers_teach_by_rejections_too_and_those_of_rlinf_do_not(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = interactions(settings, 60)
    # Every other completion is right.
    texts = [pause.position.truth if number % 2 else "zz" for number, pause in enumerate(given.pauses)]
    completions = [SampledCompletion((1, 2), (3, 4), (-1.0, -0.5), text) for text in texts]
    monkeypatch.setattr(Interactions, "complete", lambda self, temperature: completions)
    signed, both, binary = (RECIPES[recipe].samples(given) for recipe in ("ppo", "both", "rlinf"))
    assert {s.outcome for s in signed} == {"accepted", "rejected"}
    assert all((s.advantage > 0) == (s.outcome == "accepted") for s in signed)
    assert all(s.token_ids == (3, 4) and s.logprobs == (-1.0, -0.5) for s in signed)
    assert {(s.outcome, s.reward) for s in binary} == {("accepted", 1.0), ("rejected", 0.0)}
    assert {(s.outcome, s.advantage) for s in binary} == {("accepted", 1.0), ("rejected", 0.0)}
    assert all(s.token_ids != (3, 4) and s.logprobs != (-1.0, -0.5) and s.temperature == 1.0 for s in binary)
    assert any(s.settled_token_ids for s in both) and not any(s.settled_token_ids for s in signed)
    assert all(s.kept_characters == 0 for s in both[::2] if s.kept_characters is not None)


def test_groups_have_as_many_samples_at_fewer_places_and_need_no_developer(settings: Settings) -> None:
    samples = RECIPES["group"].samples(interactions(settings, 16))
    assert len(samples) == 16
    assert len({s.prompt_token_ids for s in samples[:8]}) == len({s.prompt_token_ids for s in samples[8:]}) == 1
    assert sum(s.advantage for s in samples[:8]) == pytest.approx(0, abs=1e-9)
    assert {(s.outcome, s.policy_version) for s in samples} == {("judged", "7")}


def gain(change: float, noise: float = 0.0, seed: int = 0, interactions: int = 7200) -> Gain:
    """The gain at 1,000 places of 50 users."""
    rng = np.random.default_rng(seed)
    base = rng.random(1000) * 0.2
    trained = base + change + rng.normal(0, noise, 1000)
    users = [f"u{i % 50}" for i in range(1000)]
    return Gain("later", interactions, users, (list(base), list(trained)), (list(10 * base), list(10 * trained)))


def test_a_gain_is_in_points_with_an_interval_over_the_users_of_all_seeds() -> None:
    seeds = [gain(0.03, 0.01, 1), gain(0.01, 0.01, 2)]
    estimate, width = difference(seeds, "accepted")
    assert estimate == pytest.approx(0.02, abs=0.002) and 0.004 > width > 0
    by_name = {f.name: f for f in figures({"settled": [[seeds[0]], [seeds[1]]]})}
    assert by_name["settled: later after 7200, accepted"].value == pytest.approx(100 * estimate, abs=1e-3)
    assert by_name["settled: later after 7200, kept characters"].value == pytest.approx(20, abs=3)


@pytest.mark.parametrize(("settled", "control", "met"), [(0.03, 0.01, True), (0.03, 0.03, False), (0.01, 0.0, False)])
def test_the_shipped_recipe_must_gain_two_points_and_more_than_the_control(settled: float, control: float, met: bool) -> None:
    rows = figures({"settled": [[gain(settled, 0.01, 1)]], "control": [[gain(control, 0.01, 2)]]})
    assert all(row.met for row in rows) == met


def test_other_recipes_and_fewer_interactions_have_no_target() -> None:
    rows = figures({"ppo": [[gain(-0.1)]], "settled": [[gain(-0.1, interactions=1800)]]})
    assert all(row.met for row in rows)


@pytest.mark.stack
def test_a_run_trains_compares_and_is_kept(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_recipes, "code_from", lambda: positions.Code(own_files()))
    plan = Plan("both", 0, 20, 32, 1, 8)
    gains = bench_recipes.kept_run(plan, settings, tmp_path)
    assert [(g.ground, g.interactions, len(g.users)) for g in gains] == [("later", 32, 8), ("new", 32, 8), ("seen", 32, 2)]
    monkeypatch.setattr(bench_recipes, "run_plan", lambda *_: pytest.fail("the run is kept"))
    assert bench_recipes.kept_run(plan, settings, tmp_path)[0].accepted == gains[0].accepted


def own_files() -> list[positions.Source]:
    root = Path(positions.__file__).parents[1]
    return positions.developer_sources(positions.read_sources(sorted((root / "infra").rglob("*.py")), [root]))
