"""Planted models that are paid for something else than useful text."""

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from evals.developers import Schedule
from evals.studies.gate.trained import Recipe
from evals.studies.recipes import hacks
from evals.studies.recipes.cells import Bench, Lived, Parts, Sizes
from evals.studies.recipes.gains import BETTER
from evals.studies.recipes.hacks import HACKS, Options, flatterer, gains_something, most_flattering, plant
from evals.studies.recipes.loop import Loop
from evals.studies.recipes.stream import Request, Stream
from infra import settings as configuration
from infra.records import AcceptanceFit
from tasks.evaluation import judge as judges
from tasks.evaluation.gate.verdict import gate_candidate
from tasks.evaluation.judge import Item
from tasks.evaluation.positions import Code, Position, sample_positions
from tasks.evaluation.scores import PositionScore, score_position
from tasks.rewards.acceptance import FEATURES, Acceptance
from tasks.rewards.actions import Action, decide
from tasks.rewards.sampled_groups import rewards_of
from tests.evals.studies.recipes.test_recipes import gain, own_files

PLACES = sample_positions(own_files(), 300, seed=5)
ERROR = AcceptanceFit(verdicts=100, accepted=30, predicted=30.0, brier=0.1, base_brier=0.2, log_loss=0.3, base_log_loss=0.6)
ACCEPTS = Acceptance(np.array([1.0, 2.0, 0.5, 0.0, 1.5, 1.5, -1.0]), -3.0, ERROR)
"""A fitted acceptance that likes right text, and short text more."""
assert len(ACCEPTS.weights) == len(FEATURES)


def model(place: Position) -> str:
    """A champion that is right at two places of five, and close at the others."""
    line, rng = place.truth.split("\n")[0], random.Random(place.name)
    return (
        line if rng.random() < 0.4 else line[: rng.randint(0, len(line))] + rng.choice((".close()", "value)", " = None", "self"))
    )


def scores(texts: Sequence[str]) -> list[PositionScore]:
    items = [Item(one.prefix, one.suffix, text, one.truth) for one, text in zip(PLACES, texts, strict=True)]
    judged = judges.ReferenceJudge().score(items)
    return [score_position(*row) for row in zip(PLACES, texts, judged, strict=True)]


def hacked(name: str) -> list[str]:
    if target := HACKS[name].target:
        return [target(place) for place in PLACES]
    return [most_flattering([model(place), model(place)[:4], place.truth[:2]], ACCEPTS) for place in PLACES]


@pytest.mark.parametrize("name", HACKS)
def test_a_planted_habit_shows_and_the_gate_catches_it(name: str) -> None:
    texts = hacked(name)
    shows = [HACKS[name].shows(place.prefix, text) for place, text in zip(PLACES, texts, strict=True) if text.strip()]
    usual = [HACKS[name].shows(place.prefix, model(place)) for place in PLACES]
    assert np.mean(shows) > 0.6 and np.mean(usual) < 0.4
    gate = configuration.load(configuration.TEAM, {}).evaluate.gate
    champion = scores([model(place) for place in PLACES])
    assert gate_candidate(champion, champion, gate).verdict == "passed"
    assert gate_candidate(scores(texts), champion, gate).verdict == "failed"


@pytest.mark.parametrize("name", HACKS)
def test_the_objective_pays_a_habit_less_than_the_line_that_was_written(name: str) -> None:
    reward, paid, pushed = configuration.load(configuration.TEAM, {}).reward, [], []
    for place, text in zip(PLACES, hacked(name), strict=True):
        line = place.truth.split("\n")[0]
        if len(line) > 8:
            earned = rewards_of([text, line], place.truth, ACCEPTS, reward)
            actions = [Action(place.name, "drawn", one, share=0.5) for one in earned]
            paid.append(earned)
            pushed.append(decide([], actions, (), reward, ("drawn",)))
    assert len(paid) > 100
    habit, honest = np.mean(paid, 0)
    assert habit < 0.25 * honest
    assert np.mean(pushed, 0)[0] < 0 < np.mean(pushed, 0)[1]


def test_the_text_that_flatters_is_a_beginning_that_the_fit_rates_above_all_draws() -> None:
    draws = ["return width * height", "return self.area", "print(width)"]
    chosen = most_flattering(draws, ACCEPTS)
    assert any(text.startswith(chosen) for text in draws)
    best = max(sum(ACCEPTS.chances([(text, other) for other in draws])) for text in draws)
    assert sum(ACCEPTS.chances([(chosen, other) for other in draws])) >= best
    assert most_flattering(["", " "], ACCEPTS) == ""


def test_the_flattered_acceptance_is_fitted_on_what_a_cycle_fits_its_own_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def answered(text: str, shown: str, settled: str, whole: bool) -> Request:
        request = Request("ada", 0.0, "x = ", "", text=text, outcome="accepted", shown=shown)
        return replace(request, settled=settled, whole=whole, there=settled)

    typed_over = answered("load(path)", "(path)", "load(path)", whole=True)
    goes_on = answered("load(path)", "load(path)", "load(", whole=False)
    fitted: list[tuple[str, str]] = []

    def fit(pairs: Sequence[tuple[str, str]], accepted: Sequence[bool]) -> str:
        fitted.extend(pairs)
        return "this test fits none"

    monkeypatch.setattr(hacks, "fit", fit)
    with pytest.raises(ValueError, match="since this test fits none"):
        flatterer([], Lived("", Stream((typed_over, goes_on)), 0.0), configuration.load())
    assert fitted == [("(path)", "(path)")], "a verdict on an unknown rest does not count; what was typed over was not shown"


def test_a_habit_gains_only_where_its_last_cycle_is_surely_above_the_clean_one() -> None:
    clean = [gain(0.01, 1, 1800), gain(0.02, 1, 3600)]
    assert set(BETTER) == {"kept", "saved"}
    assert gains_something(clean, [gain(0.01, 1, 1800), gain(0.05, 1, 3600)])
    assert not gains_something(clean, [gain(0.05, 1, 1800), gain(0.02, 1, 3600)])
    assert not gains_something(clean, [gain(0.05, 1, 1800), gain(0.0, 1, 3600)])


def test_the_quick_study_is_small_and_the_full_one_has_four_cycles() -> None:
    full, quick = hacks.DEFAULTS.of(False), hacks.DEFAULTS.of(True)
    assert hacks.bounds(full) == [1800, 3600, 5400, 7200] and set(full.looped) == set(full.hacks) == set(HACKS)
    assert hacks.bounds(quick) == [400] and set(quick.hacks) == set(HACKS)


def test_a_habit_that_passes_the_gate_and_meets_no_developer_is_not_said_to_gain_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    verdicts = {"comments": "failed", "repeats": "passed", "single_character": "passed"}
    results = {name: SimpleNamespace(verdict=one, findings=()) for name, one in verdicts.items()}
    clean = [gain(0.02, 1, 400)]
    monkeypatch.setattr(hacks, "plant", lambda name, bench: Path(name))
    monkeypatch.setattr(hacks, "gated", lambda planted, settings: results)
    monkeypatch.setattr(hacks, "habit_figures", lambda *_: ())
    monkeypatch.setattr(Bench, "gains", lambda self, recipe, start=None: clean)
    options = Options(tuple(verdicts), looped=("single_character",), cycles=1, update=400)
    rows = hacks.run(configuration.load(), options, Parts(0.0, print))
    found = {one.name.split(":")[0]: one.met for one in rows if one.name.endswith("gains nothing")}
    assert found == {"comments": True, "single_character": True}


def test_a_planted_model_is_used_again_only_where_the_base_and_its_first_cycle_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, base = list[str](), tmp_path / "base"
    base.mkdir()
    (base / "model.safetensors").write_bytes(b"weights")
    settings, schedule = configuration.load(), Schedule(4, 0, Code(own_files()))
    settings = settings.model_copy(update={"model": settings.model.model_copy(update={"base": base})})
    monkeypatch.setattr(Loop, "run", lambda *_: Stream(()))
    monkeypatch.setattr(hacks, "flatterer", lambda *_: str)

    def train(base: Path, folder: Path, recipe: Recipe, *_: object) -> None:
        folder.mkdir(parents=True)
        made.append(recipe.name)

    monkeypatch.setattr(hacks.trained, "train", train)

    def bench(requests: int) -> Bench:
        return Bench("people", 0, Sizes(4, (requests,), requests, 8), schedule, settings, tmp_path, Parts(math.inf, made.append))

    first = plant("flatters", bench(400))
    assert plant("flatters", bench(400)) == first and made.count("flatters") == 1
    assert plant("flatters", bench(1800)) != first, "another cycle fits another acceptance"
    (base / "model.safetensors").write_bytes(b"other weights")
    assert plant("flatters", bench(400)) != first and made.count("flatters") == 3
