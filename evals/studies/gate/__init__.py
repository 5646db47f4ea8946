"""The offline gate: its error rates by simulation, and what it says of really trained models (no stack).

rates.py    equal candidates, and candidates that are worse by one margin (plants.py), through the gate's own code
trained.py  a better model, one for each way to get worse, one of the opposite reward, one that lost one of two languages
"""

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from evals.bench.figures import Bench, Figure, Size, figure
from evals.studies.gate import rates, trained
from infra import settings as configuration
from infra.settings import Settings
from infra.settings.schema import HeldOut
from tasks.evaluation import positions
from tasks.evaluation.gate.verdict import GateResult, gate_candidate
from tasks.evaluation.heldout import sets
from tasks.evaluation.heldout.build import build, typed_sources
from tasks.evaluation.scores import PositionScore

POOL_PLACES = Size(full=900, quick=300)
"""Places at which the two models of the simulation are scored."""
DRAWS = Size(full=1000, quick=40)
CHAMPION = "champion"
LOST, KEPT = "language: go", "language: ts"


def run(settings: Settings, bench: Bench) -> Iterator[Figure]:
    """Train and score every model, judge each against the base, and simulate with the scores of the better one."""
    base, places, gate = configuration.path(settings.model.base), settings.evaluate.samples, settings.evaluate.gate
    recipes = [one for one in trained.RECIPES if not bench.quick or not one.guardrails]
    wanted = HeldOut(name="packages", kind="packages", places=POOL_PLACES.of(bench.quick))
    pool = [sets.position_of(place) for place in build(wanted, settings.evaluate).places]  # begins with those of an evaluation
    typed = typed_sources()  # no model is scored there
    taught = list(positions.sample_positions(typed, max(recipe.steps for recipe in recipes) * trained.BATCH, seed=3))
    better = next(recipe.name for recipe in recipes if not recipe.guardrails)
    with tempfile.TemporaryDirectory() as made:
        folders, folder = {}, Path(made)
        with bench.part("models are trained, steps", sum(recipe.steps for recipe in recipes), share=0.2) as part:
            for recipe in recipes:
                folders[recipe.name] = trained.train(base, folder / recipe.name, recipe, taught, settings)
                part.advance(recipe.steps)
        if not bench.quick:
            with bench.part("models of the reward and of its opposite", share=0.1):
                grouped = positions.sample_positions(typed, trained.FLIPPED_PLACES, seed=0)
                folders |= trained.train_by_reward(base, folder, grouped, settings)
        with bench.part("models are scored", share=0.3):
            first = trained.scores_of({CHAMPION: base, better: folders.pop(better)}, pool, settings).scores
            scored = trained.scores_of({CHAMPION: base, **folders}, pool[:places], settings).scores
        scores = {name: one.by_position for name, one in scored.items()} | {better: first[better].by_position[:places]}
        results = {name: gate_candidate(one, scores[CHAMPION], gate) for name, one in scores.items()}
        guardrails = {CHAMPION: frozenset[str](), **{recipe.name: recipe.guardrails for recipe in recipes}}
        yield from (verdict_figure(name, one, results[name]) for name, one in guardrails.items())
        if not bench.quick:
            yield verdict_figure(trained.FLIPPED, trained.SIGN, results[trained.FLIPPED])
            control = results[trained.CONTROL].verdict
            yield figure(f"gate.trained.{trained.CONTROL}", float(control != "failed"), control, least=1.0)
            with bench.part("a model of two languages", share=0.1):
                of_languages = trained.score_languages(folder / "languages", settings)
            yield from language_figures(of_languages["candidate"], of_languages["champion"], settings)
    draws, pair = DRAWS.of(bench.quick), (first[CHAMPION].by_position, first[better].by_position)
    with bench.part("simulated evaluations", 2 * draws, share=0.3) as part:
        simulated = rates.run(pair, places, gate, draws, part.advance)
    yield from simulated


def language_figures(
    candidate: Sequence[PositionScore], champion: Sequence[PositionScore], settings: Settings
) -> Iterator[Figure]:
    """Yield 1 if the gate fails the candidate in the language that it lost and in no other, and the share of exact places."""
    result = gate_candidate(candidate, champion, settings.evaluate.gate)
    verdicts = {finding.slice: finding.verdict for finding in result.findings if finding.slice}
    right = verdicts.get(LOST) == "failed" and verdicts.get(KEPT) != "failed"
    yield figure("gate.trained.one_language_lost", float(right), f"{result.verdict} {', '.join(failed_by(result))}", least=1.0)
    for name, rows in (("champion", champion), ("candidate", candidate)):
        exact = sum(row.exact for row in rows) / len(rows)
        yield figure(f"gate.languages.{name}.exact", exact, f"of {trained.LANGUAGE_PLACES} places")


def verdict_figure(name: str, guardrails: frozenset[str], result: GateResult) -> Figure:
    """Return 1 if a model passes, or one of the guardrails that must see it fails it; the unit names those that fail it."""
    failed = failed_by(result)
    right = bool(guardrails.intersection(failed)) if guardrails else result.verdict == "passed"
    return figure(f"gate.trained.{name}", float(right), f"{result.verdict} {', '.join(failed)}".strip(), least=1.0)


def failed_by(result: GateResult) -> list[str]:
    """Return the guardrails that fail a candidate."""
    return [finding.name for finding in result.findings if finding.verdict == "failed"]
