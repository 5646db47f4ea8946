"""Compare models at the same held-out places: python -m evals.compare BASELINE MODEL...

A model is a directory in Hugging Face layout, a version's number, `champion` or `challenger`; the first is the baseline. Versions
need the stack (`make up`), and what was evaluated before is not generated again.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from evals.compare import report, runs
from evals.compare.comparison import compare
from evals.compare.models import find_models, in_registry
from evals.compare.places import named_sets
from evals.progress import Progress
from infra import settings as configuration
from infra.settings import Settings
from infra.storage.store import ObjectStore
from tasks.evaluation.heldout.sets import Places, position_of
from tasks.evaluation.models.completions import set_of
from tasks.evaluation.models.in_process import InProcess
from tasks.evaluation.positions import Position
from tasks.evaluation.sandbox.scored import with_tests
from tasks.evaluation.scoring import Contestant, ScoredModels, score_models


def parse(settings: Settings, arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the command's options."""
    parser = argparse.ArgumentParser(prog="python -m evals.compare", description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "models", nargs="+", metavar="MODEL", help="directory, version, champion or challenger; the baseline first"
    )
    names = ", ".join(one.name for one in settings.evaluate.sets if one.kind != "team")
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME", help=f"held-out set, may be repeated (default all of: {names})"
    )
    parser.add_argument("--language", action="append", default=[], help="language (extension) of the places, may be repeated")
    parser.add_argument("--samples", type=int, help="number of places of each set (default: as the settings say)")
    parser.add_argument("--seed", type=int, default=settings.evaluate.seed, help="seed of the places and of the draws")
    parser.add_argument(
        "--temperature",
        type=float,
        default=settings.serving.sampling.temperature,
        help="sampling temperature (default %(default)s, as served); 0 is greedy",
    )
    parser.add_argument("--examples", type=int, default=3, help="best and worst places to show per model (default %(default)s)")
    parser.add_argument("--html", type=Path, help="file to write the report to")
    parser.add_argument("--mlflow", action="store_true", help="log the comparison as a run in MLflow")
    options = parser.parse_args(arguments)
    if len(options.models) < 2:
        parser.error(f"expected a baseline and at least one model to compare with it, got only {options.models[0]!r}")
    return options


def with_options(settings: Settings, options: argparse.Namespace) -> Settings:
    """Return the settings with the options' values."""
    sampling = settings.serving.sampling.model_copy(update={"temperature": options.temperature})
    return settings.model_copy(
        update={
            "serving": settings.serving.model_copy(update={"sampling": sampling}),
            "evaluate": settings.evaluate.model_copy(update={"seed": options.seed}),
        }
    )


def score_with_progress(
    models: dict[str, Path], found: Sequence[Places], settings: Settings, store: ObjectStore | None
) -> ScoredModels:
    """Score the models, with their progress on stderr."""
    total = len(models) * sum(len(one.places) for one in found)
    with Progress(Console(stderr=True)) as progress, progress.part("compare: places", total) as part:
        contestants = {name: Contestant(folder, settings.serving.sampling) for name, folder in models.items()}
        sets, local = [set_of(positions(one), one.name) for one in found], InProcess(settings.model)
        scored = score_models(contestants, sets, settings, local, store, part.advance)
        programs = {(one.name, place.id): place for one in found for place in one.places if place.program}
        part.rename("compare: tests of the completions; places")
        return with_tests(scored, programs, settings.evaluate.test_workers)


def positions(found: Places) -> tuple[Position, ...]:
    """Return the places of a set as positions to complete."""
    return tuple(map(position_of, found.places))


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare the models and print the report."""
    settings = configuration.load()
    options = parse(settings, arguments)
    settings = with_options(settings, options)
    store = ObjectStore.connect(settings.store) if any(map(in_registry, options.models)) else None
    try:
        models = find_models(options.models, settings, store)
        sets = named_sets(settings.evaluate, options.set, options.language, options.samples)
    except ValueError as error:
        sys.exit(f"compare: {error}")
    scored = score_with_progress(models, sets, settings, store)
    places = [position for one in sets for position in positions(one)]
    comparison = compare(scored, places, settings.evaluate.gate, options.examples)
    report.show(comparison, Console())
    for reason in scored.untested:
        Console().print(reason, markup=False, highlight=False, soft_wrap=True)
    if options.html:
        options.html.parent.mkdir(parents=True, exist_ok=True)
        options.html.write_text(report.page(comparison))
    if options.mlflow:
        Console().print(f"MLflow: run {runs.log_run(settings.registry, comparison, scored)} at {settings.registry.uri}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
