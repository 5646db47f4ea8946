"""The offline gate: its error rates by simulation, and what it says of really trained models (no stack).

rates.py     equal candidates, and candidates that are worse by one margin (plants.py), through the gate's own code
models.py    a better model, and one for each way to get worse
flipped.py   a model that the project's trainer made of the opposite reward
languages.py a model that lost one of two languages
"""

import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path

from evals.bench.figures import Bench, Figure, Size, figure, in_thread
from evals.compare.in_process import InProcess
from evals.studies.gate import flipped, languages, rates
from evals.studies.gate.models import BATCH, RECIPES, Recipe, train
from infra import settings as configuration
from infra.settings import Settings
from infra.settings.schema import HeldOut
from tasks.evaluation import positions
from tasks.evaluation.gate.verdict import GateResult, gate_candidate
from tasks.evaluation.heldout import held_out_files, sets, site_packages
from tasks.evaluation.heldout.build import build
from tasks.evaluation.models.completions import set_of
from tasks.evaluation.positions import Position
from tasks.evaluation.scores import PositionScore
from tasks.evaluation.scoring import Contestant, ScoredModels, score_models

POOL_PLACES = Size(full=900, quick=300)
"""Places at which the two models of the simulation are scored."""
DRAWS = Size(full=1000, quick=40)
QUICK_RECIPES = frozenset({"sign_flipped"})
"""Trained models of a quick run, beside the better one."""
CHAMPION = "champion"


async def run(settings: Settings, bench: Bench) -> AsyncIterator[Figure]:
    """Run the benchmark and yield its figures."""
    async for one in in_thread(measure(settings, bench)):
        yield one


def measure(settings: Settings, bench: Bench) -> Iterator[Figure]:
    """Train and score every model, judge each against the base, and simulate with the scores of the better one."""
    base, model, places = configuration.path(settings.model.base), settings.model, settings.evaluate.samples
    recipes = [one for one in RECIPES if not bench.quick or not one.guardrails or one.name in QUICK_RECIPES]
    pool = pool_places(settings, POOL_PLACES.of(bench.quick))  # begins with the places of an evaluation
    taught = training_places(max(recipe.steps for recipe in recipes) * BATCH)
    better = next(recipe for recipe in recipes if not recipe.guardrails)
    with tempfile.TemporaryDirectory() as folder:
        folders = {}
        with bench.part("models are trained, steps", sum(recipe.steps for recipe in recipes), share=0.2) as part:
            for recipe in recipes:
                path = Path(folder) / recipe.name
                folders[recipe.name] = train(base, path, recipe, taught, model, settings.serving.sampling.max_tokens)
                part.advance(recipe.steps)
        if not bench.quick:
            with bench.part("models of the reward and of its opposite", share=0.1):
                folders |= flipped.train(
                    Path(folder), positions.sample_positions(developer_sources(), flipped.PLACES, seed=0), settings
                )
        with bench.part("models are scored", share=0.3):
            scored = scores_of({CHAMPION: base, better.name: folders.pop(better.name)}, pool, settings)
            rows = {name: list(scores.by_position) for name, scores in scored.scores.items()}
            others = scores_of({CHAMPION: base, **folders}, pool[:places], settings)
    candidates = {name: scores.by_position for name, scores in others.scores.items()} | {better.name: rows[better.name][:places]}
    champion = others.scores[CHAMPION].by_position
    yield verdict_figure(CHAMPION, frozenset(), gate_candidate(champion, champion, settings.evaluate.gate))
    for recipe in recipes:
        yield recipe_figure(recipe, list(candidates[recipe.name]), list(champion), settings)
    if not bench.quick:
        yield from flipped_figures(candidates, champion, settings)
        with bench.part("a model of two languages", share=0.1):
            found = languages.run(settings, rows_of)
        yield from found
    draws = DRAWS.of(bench.quick)
    with bench.part("simulated evaluations", 2 * draws, share=0.3) as part:
        simulated = rates.run((rows[CHAMPION], rows[better.name]), places, settings.evaluate.gate, draws, part.advance)
    yield from simulated


def pool_places(settings: Settings, count: int) -> list[Position]:
    """Return places as a cycle scores them, with their projects."""
    wanted = HeldOut(name="packages", kind="packages", places=count)
    return [sets.position_of(place) for place in build(wanted, settings.evaluate).places]


def rows_of(folders: Mapping[str, Path], places: Sequence[Position], settings: Settings) -> dict[str, tuple[PositionScore, ...]]:
    """Return the scores of each place, by the model's name."""
    return {name: scores.by_position for name, scores in scores_of(folders, places, settings).scores.items()}


def scores_of(folders: Mapping[str, Path], places: Sequence[Position], settings: Settings) -> ScoredModels:
    """Return the scores of models at places, completed in this process, as a cycle scores them."""
    contestants = {name: Contestant(folder, settings.serving.sampling) for name, folder in folders.items()}
    return score_models(contestants, [set_of(places)], settings, InProcess(settings.model))


def training_places(count: int) -> list[positions.Position]:
    """Return places in the files of simulated developers, where no model is scored."""
    return list(positions.sample_positions(developer_sources(), count, seed=3))


def developer_sources() -> Sequence[positions.Source]:
    """Return the files in which simulated developers type."""
    return positions.developer_sources(positions.read_sources(held_out_files(), [site_packages()]))


def recipe_figure(recipe: Recipe, candidate: list[PositionScore], champion: list[PositionScore], settings: Settings) -> Figure:
    """Return whether the gate says of a trained model what it must."""
    return verdict_figure(recipe.name, recipe.guardrails, gate_candidate(candidate, champion, settings.evaluate.gate))


def flipped_figures(
    candidates: Mapping[str, Sequence[PositionScore]], champion: Sequence[PositionScore], settings: Settings
) -> list[Figure]:
    """Return whether the gate fails the opposite reward and does not fail the reward as it is."""
    seen, control = (
        gate_candidate(candidates[name], champion, settings.evaluate.gate) for name in (flipped.FLIPPED, flipped.CONTROL)
    )
    return [
        verdict_figure(flipped.FLIPPED, flipped.GUARDRAILS, seen),
        figure(f"gate.trained.{flipped.CONTROL}", float(control.verdict != "failed"), control.verdict, least=1.0),
    ]


def verdict_figure(name: str, guardrails: frozenset[str], result: GateResult) -> Figure:
    """Return 1 if a model passes, or one of the guardrails that must see it fails it; the unit names those that fail it."""
    failed = [finding.name for finding in result.findings if finding.verdict == "failed"]
    right = bool(guardrails.intersection(failed)) if guardrails else result.verdict == "passed"
    return figure(f"gate.trained.{name}", float(right), f"{result.verdict} {', '.join(failed)}".strip(), least=1.0)
