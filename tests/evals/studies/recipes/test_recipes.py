"""The samples of each recipe at the same pauses, the parts of a run, and the figures of a gain."""

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from evals.base_model import update
from evals.compare.gains import Sums, by_user
from evals.developers import Schedule, code_from
from evals.studies.recipes import bench as bench_recipes
from evals.studies.recipes import cells, samples
from evals.studies.recipes.cells import Bench, Parts, Paused, Sizes
from evals.studies.recipes.gains import Gain, difference, figures, sums
from evals.studies.recipes.samples import RECIPES, Interactions, Recipe, matched
from evals.studies.showing.rules import CompletedPauses
from infra import settings as configuration
from infra.model.showing import Place
from infra.records import Sample
from infra.settings import Settings
from serving.slots.policy import EXPLORING_TEMPERATURE
from tasks.evaluation import positions
from tasks.evaluation.models.base import SampledCompletion
from tasks.showing.fit import Unfitted
from tasks.showing.labels import LabelledCompletion
from tasks.trainer.job import Job
from tasks.trainer.options import UpdateSettings
from tasks.trainer.update.targets import taught_by


@pytest.fixture(scope="module")
def settings() -> Settings:
    return configuration.load()


@pytest.fixture(scope="module")
def schedule() -> Schedule:
    """Developers who write this repository's own rooms."""
    return Schedule(30, 0, positions.Code(own_files()))


def own_files() -> list[positions.Source]:
    root = Path(positions.__file__).parents[2]
    return positions.developer_sources(positions.read_sources(sorted((root / "infra").rglob("*.py")), [root]))


def interactions(settings: Settings, schedule: Schedule, count: int) -> Interactions:
    return Interactions(schedule, 0, count, configuration.path(settings.model.base), settings, "7", seed=1)


@pytest.mark.parametrize("recipe", [name for name in RECIPES if name not in ("control", "both_groups")])
def test_every_recipe_has_something_to_teach_under_its_own_training(settings: Settings, schedule: Schedule, recipe: str) -> None:
    made = RECIPES[recipe].samples(interactions(settings, schedule, 24))
    training = UpdateSettings(
        **settings.train.model_dump(include=set(UpdateSettings.model_fields)) | dict(RECIPES[recipe].training)
    )
    assert taught_by(made, training)
    assert set(RECIPES[recipe].training) <= Job.model_fields.keys()


def test_settled_text_is_mined_from_later_requests_and_its_first_line_is_taught(settings: Settings, schedule: Schedule) -> None:
    given = interactions(settings, schedule, 120)
    taught = {s.completion_id: s.settled_token_ids for s in RECIPES["settled"].samples(given) if s.outcome != "standing"}
    wrote = {}
    for number, pause in enumerate(given.pauses):
        truth = pause.settled
        if truth and truth.text is not None:
            wrote[str(number)] = {text.split("\n")[0] for text in (truth.text, truth.first) if text is not None}
    renderer = given.renderer
    right = [any(ids[:24] == (*renderer.encode(t), renderer.end)[:24] for t in wrote.get(n, ())) for n, ids in taught.items()]
    assert len(right) > 60 and np.mean(right) > 0.97
    assert len(taught) < len(given.pauses), "what no later request shows is no label"
    third = RECIPES["settled_third"].samples(given)
    assert {s.completion_id for s in third if s.outcome != "standing"} == {n for n in taught if int(n) % 3 == 0}
    assert any(s.outcome == "standing" for s in third)


def test_a_team_whose_editors_report_nothing_teaches_the_same_settled_text(settings: Settings, schedule: Schedule) -> None:
    given = interactions(settings, schedule, 240)
    assert {pause.developer.silent for pause in given.pauses} == {True, False}
    assert RECIPES["silent"].samples(given) == RECIPES["settled"].samples(given)


def test_the_control_has_the_same_number_of_rows_and_tokens() -> None:
    pool = [sample_of(length, str(number)) for number, length in enumerate((5, 3, 3, 8, 4, 12, 5))]
    chosen = matched(pool, [5, 3, 9, 3])
    assert [len(s.settled_token_ids) for s in chosen] == [5, 3, 8, 3]
    assert len({s.completion_id for s in chosen}) == 4
    assert chosen[0].completion_id == "0", "the first of a length is taken first"


def sample_of(length: int, name: str) -> Sample:
    empty = {"user": "u", "policy_version": "1", "prompt_token_ids": (1,), "token_ids": (), "logprobs": ()}
    counts = {"temperature": 1.0, "outcome": "unjudged", "shown_characters": 0, "accepted_characters": 0}
    return Sample.model_validate({"completion_id": name, "settled_token_ids": (7,) * length, **empty, **counts})


def test_developers_teach_by_what_their_editor_reports_and_those_of_rlinf_by_accepts_alone(
    settings: Settings, schedule: Schedule, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = interactions(settings, schedule, 80)
    # Every other completion is right.
    texts = [pause.position.truth if number % 2 else "zz" for number, pause in enumerate(given.pauses)]
    completions = [SampledCompletion((1, 2), (3, 4), (-1.0, -0.5), text) for text in texts]
    monkeypatch.setattr(Interactions, "complete", lambda self, temperature: completions)
    signed, both, binary = (RECIPES[recipe].samples(given) for recipe in ("accepts", "both", "rlinf"))
    assert {s.outcome for s in signed} >= {"accepted", "rejected"}
    assert all((s.advantage > 0) == (s.outcome == "accepted") for s in signed if s.outcome != "nothing")
    assert all(s.token_ids == (3, 4) and s.logprobs == (-1.0, -0.5) for s in signed)
    unheard = {str(n) for n, p in enumerate(given.pauses) if p.developer.silent or p.draws.superseded}
    assert unheard and not unheard & {s.completion_id for s in (*signed, *binary)}
    assert {(s.outcome, s.reward) for s in binary} == {("accepted", 1.0), ("rejected", 0.0)}
    assert {(s.outcome, s.advantage) for s in binary} == {("accepted", 1.0), ("rejected", 0.0)}
    assert all(s.token_ids != (3, 4) and s.logprobs != (-1.0, -0.5) and s.temperature == 1.0 for s in binary)
    assert any(s.settled_token_ids for s in both) and not any(s.settled_token_ids for s in signed)
    silent = [s for s in both if s.completion_id in unheard]
    assert {s.outcome for s in silent} == {"unjudged"} and any(s.reward for s in silent)


def test_groups_have_as_many_samples_at_fewer_places_and_need_no_developer(settings: Settings, schedule: Schedule) -> None:
    made = RECIPES["group"].samples(interactions(settings, schedule, 16))
    assert len(made) == 16
    assert len({s.prompt_token_ids for s in made[:8]}) == len({s.prompt_token_ids for s in made[8:]}) == 1
    assert sum(s.advantage for s in made[:8]) == pytest.approx(0, abs=1e-9)
    assert {(s.outcome, s.policy_version) for s in made} == {("judged", "7")}


def test_groups_that_nobody_saw_stand_beside_what_was_shown(
    settings: Settings, schedule: Schedule, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = interactions(settings, schedule, 400)
    renderer = given.renderer
    texts = [pause.position.truth.split("\n")[0] if number % 2 else "zz" for number, pause in enumerate(given.pauses)]
    tokens = [tuple(renderer.encode(text)) for text in texts]
    shown = [SampledCompletion((1, 2), ids, (-1.0,) * len(ids), text) for ids, text in zip(tokens, texts, strict=True)]
    monkeypatch.setattr(Interactions, "complete", lambda self, temperature: shown)
    made = RECIPES["both_groups"].samples(given)
    drawn = [s for s in made if s.outcome == "judged"]
    same = {"advantage": 0.0}
    own = [s.model_copy(update=same) for s in made if s.outcome != "judged"]
    assert own == [s.model_copy(update=same) for s in RECIPES["both"].samples(given)]
    assert {s.temperature for s in drawn if not s.completion_id.endswith("/silence")} == {EXPLORING_TEMPERATURE}
    assert {s.completion_id.split("/")[0] for s in drawn} <= {str(number) for number in given.labels}


def gain(change: float, seed: int = 0, interactions: int = 7200, ground: str = "later") -> Gain:
    """The gain at 1,000 places of 50 users."""
    rng = np.random.default_rng(seed)
    base = rng.random(1000) * 0.2
    trained = base + change + rng.normal(0, 0.01, 1000)
    users = [f"u{i % 50}" for i in range(1000)]
    best, served, after = (by_user(users, {"accepted": v, "kept": 10 * v}) for v in (base, base - 0.01, trained))
    return Gain(ground, interactions, best, served, after, after)  # type: ignore[arg-type]


def test_a_gain_is_in_points_with_an_interval_over_the_users_of_all_seeds() -> None:
    seeds = [gain(0.03, 1), gain(0.01, 2)]
    estimate, width = difference(seeds, "accepted")
    assert estimate == pytest.approx(0.02, abs=0.002) and 0.004 > width > 0
    by_name = {f.name: f.value for f in figures({"settled": {0: [seeds[0]], 1: [seeds[1]]}})}
    assert by_name["settled: later after 7200, accepted"] == pytest.approx(100 * estimate, abs=1e-3)
    assert by_name["settled: later after 7200, kept characters"] == pytest.approx(20, abs=3)
    best, served = (by_name[f"settled: later after 7200, accepted of the base {which}"] for which in ("at its best", "as served"))
    assert best - served == pytest.approx(1.0)
    assert by_name["settled: later after 7200, seeds"] == 2 and by_name["settled: later after 7200, places"] == 2000


@pytest.mark.parametrize(("settled", "control", "met"), [(0.03, 0.01, True), (0.03, 0.03, False), (0.01, 0.0, False)])
def test_the_shipped_recipe_must_gain_two_points_and_more_than_the_control(settled: float, control: float, met: bool) -> None:
    rows = figures({"settled": {0: [gain(settled, 1)]}, "control": {0: [gain(control, 2)]}})
    assert all(row.met for row in rows) == met


@pytest.mark.parametrize(("change", "met"), [(0.045, True), (0.03, False)])
def test_after_four_times_the_interactions_the_targets_are_higher(change: float, met: bool) -> None:
    rows = figures({"settled": {0: [gain(change, 1, 28_800), gain(0.03, 2, 28_800, "new")]}})
    assert all(row.met for row in rows) == met


def test_other_recipes_and_fewer_interactions_have_no_target() -> None:
    rows = figures({"ppo": {0: [gain(-0.1)]}, "settled": {0: [gain(-0.1, interactions=1800)]}})
    assert all(row.met for row in rows)


def test_the_updates_between_the_comparisons_are_as_large_as_a_cycle() -> None:
    assert bench_recipes.counts("1800..28800") == [1800, 3600, 7200, 14_400, 28_800]
    assert bench_recipes.counts("1800,5000") == [1800, 5000]
    with pytest.raises(Exception, match=r"1800\.\.28800, got '7200,1800'"):
        bench_recipes.counts("7200,1800")
    assert Sizes(1, (1800, 7200, 28_800), 7200, 8).updates == [
        *((0, 1800), (1800, 7200), (7200, 14_400)),
        *((14_400, 21_600), (21_600, 28_800)),
    ]


def test_a_run_that_was_stopped_goes_on_and_equal_rows_make_one_model(
    settings: Settings, schedule: Schedule, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: Counter[str] = Counter()

    def trained(job: tuple[str, ...], log: Path, *_: object) -> None:
        base = configuration.path(settings.model.base)
        (log.parent / "checkpoint").symlink_to(base)
        made["trained"] += 1

    monkeypatch.setattr(update, "follow", trained)
    monkeypatch.setattr(samples, "context_line_samples", lambda *_: [])
    same = Recipe("", lambda given: [sample_of(3, "a")], {"surrogate_weight": 0.0})
    monkeypatch.setattr(cells, "RECIPES", {"settled": same, "silent": same})
    said: list[str] = []
    times = iter((100.0, 105.0, 111.0))
    parts = Parts(10.0, said.append, lambda: next(times))
    bench = Bench(0, Sizes(30, (8,), 8, 4), schedule, settings, tmp_path, parts)
    with pytest.raises(Paused):
        bench.gains("settled")
    assert [line.split(": ")[1].split(" ")[0] for line in said] == ["samples", "update"]
    rest = replace(bench, parts=Parts(math.inf, said.append))
    first = rest.gains("settled")
    assert [(g.ground, g.interactions, g.trained.requests.sum()) for g in first] == [
        ("later", 8, 4),
        ("new", 8, 2),
        ("seen", 8, 1),
    ]
    assert values(first[0].trained) == values(first[0].served), "the model that was copied is the base"
    assert values(first[0].trained_all) == values(first[0].best), "too few places for an estimate: all is shown"
    done = len(said)
    again = rest.gains("silent")
    assert [[values(s) for s in sums([g])] for g in again] == [[values(s) for s in sums([g])] for g in first]
    assert [(g.ground, g.interactions) for g in again] == [(g.ground, g.interactions) for g in first] and made["trained"] == 1
    assert said[done:] == ["seed 0, silent: samples 0 to 8"]


def values(found: Sums) -> dict[str, list[float]]:
    return {"requests": found.requests.tolist()} | {name: column.tolist() for name, column in found.values.items()}


def test_nobody_meets_a_decision_that_was_fitted_on_what_they_wrote(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    users, fitted_on = [f"u{number}" for number in range(40)], []
    rows = [LabelledCompletion(Place(user, ""), 0.1, [-0.1, -3.0], [1, 2], np.array([1.0, 0.0]), None) for user in users]
    pauses = [SimpleNamespace(developer=SimpleNamespace(name=user)) for user in users]
    places = CompletedPauses(pauses, ["ab"] * 40, rows)  # type: ignore[arg-type]

    def fit(completions: list[LabelledCompletion]) -> Unfitted:
        fitted_on.append({completion.place.prefix for completion in completions})
        return Unfitted(reason="too few")

    monkeypatch.setattr(cells, "fit", fit)
    estimates = cells.cross_fitted(places)
    assert all(user not in fitted_on[cells.half_of(user)] for user in users) and set.union(*fitted_on) == {*users}
    assert cells.shown_of(estimates, places, settings.serving.showing, settings.serving.sampling) == [2] * 40


@pytest.mark.stack
def test_a_recipe_trains_and_is_compared(settings: Settings, tmp_path: Path) -> None:
    bench = Bench(0, Sizes(20, (32,), 32, 8), Schedule(20, 0, code_from()), settings, tmp_path, Parts(math.inf, print))
    trained = {gain.ground: values(gain.trained_all) != values(gain.best) for gain in bench.gains("both")}
    assert trained.keys() == {"later", "new", "seen"}
    assert len(list((tmp_path / "models").glob("*/checkpoint/model.safetensors"))) == 1
