"""Compare models at the same held-out places: `tabloop compare BASELINE MODEL...`

A model is a directory in Hugging Face layout, a version's number, `champion` or `challenger`; the first is the baseline. Versions
need the stack (`tabloop up`), and what was evaluated before is not generated again.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from evals.compare import mlflow_run, report
from evals.compare.comparison import compare
from evals.compare.in_process import InProcess
from evals.compare.inputs import find_models, in_registry, named_sets
from evals.progress import Progress
from infra.settings import Settings
from infra.storage.store import ObjectStore
from tasks.evaluation.heldout.sets import Places, position_of
from tasks.evaluation.models.completions import set_of
from tasks.evaluation.sandbox.scored import with_tests
from tasks.evaluation.scoring import Contestant, ScoredModels, score_models


@dataclass(frozen=True)
class Options:
    """Frozen options of a comparison; None and empty ones leave the settings' values."""

    sets: Sequence[str] = ()  # names of held-out sets; empty: all but the team's own
    languages: Sequence[str] = ()  # languages (extensions) of the positions; empty: all
    samples: int | None = None  # number of positions of each set
    seed: int | None = None  # of the positions and of the draws
    temperature: float | None = None  # of sampling; 0 is greedy
    examples: int = 3  # best and worst positions to show per model
    html: Path | None = None  # file to write the report to
    mlflow: bool = False  # whether the comparison is logged as a run in MLflow
    as_json: bool = False  # whether JSON is printed in place of tables


def score_with_progress(
    models: dict[str, Path], found: Sequence[Places], settings: Settings, store: ObjectStore | None
) -> ScoredModels:
    """Score the models, with their progress on stderr."""
    total = len(models) * sum(len(one.places) for one in found)
    with Progress(Console(stderr=True)) as progress, progress.part("compare: places", total) as part:
        contestants = {name: Contestant(folder, settings.serving.sampling) for name, folder in models.items()}
        sets, local = [set_of([*map(position_of, one.places)], one.name) for one in found], InProcess(settings.model)
        scored = score_models(contestants, sets, settings, local, store, part.advance)
        programs = {(one.name, place.id): place for one in found for place in one.places if place.program}
        part.rename("compare: tests of the completions; places")
        return with_tests(scored, programs)


def run(settings: Settings, names: Sequence[str], options: Options) -> None:
    """Compare models and print the report; the first of the names is the baseline.

    Raises ValueError where there is no model to compare with the baseline, or a model or set is not found.
    """
    if len(names) < 2:
        raise ValueError(f"expected a baseline and at least one model to compare with it, got only {names[0]!r}")
    serving, evaluate = settings.serving, settings.evaluate
    if options.temperature is not None:
        sampling = serving.sampling.model_copy(update={"temperature": options.temperature})
        serving = serving.model_copy(update={"sampling": sampling})
    if options.seed is not None:
        evaluate = evaluate.model_copy(update={"seed": options.seed})
    settings = settings.model_copy(update={"serving": serving, "evaluate": evaluate})
    store = ObjectStore.connect(settings.store) if any(map(in_registry, names)) else None
    models = find_models(names, settings, store)
    sets = named_sets(settings.evaluate, options.sets, options.languages, options.samples)
    scored = score_with_progress(models, sets, settings, store)
    places = [position_of(place) for one in sets for place in one.places]
    comparison = compare(scored, places, settings.evaluate.gate, options.examples)
    if options.as_json:
        print(json.dumps(report.values(comparison), indent=2, ensure_ascii=False))
    else:
        report.show(comparison, Console())
    notes = sys.stderr if options.as_json else sys.stdout
    for reason in scored.untested:
        print(reason, file=notes)
    if options.html:
        options.html.parent.mkdir(parents=True, exist_ok=True)
        options.html.write_text(report.page(comparison))
    if options.mlflow:
        print(f"MLflow: run {mlflow_run.log_run(settings.registry, comparison, scored)} at {settings.registry.uri}", file=notes)
