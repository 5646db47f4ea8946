"""The cost of a cycle's held-out evaluation: 1,000 places in all metrics without a judge, by part, beside the serving engines.

The same evaluation by transformers in a process of its own, as cycles did before they had an engine, stands beside it.
"""

import shutil
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from evals.bench.figures import Bench, Figure, Size, figure
from evals.bench.rigs.servers import in_new_process
from infra import settings as configuration
from infra.settings import Settings
from infra.settings.schema import Sampling
from tasks.evaluation.gate.intervals import estimates
from tasks.evaluation.gate.verdict import gate_candidate
from tasks.evaluation.heldout.build import held_out_positions
from tasks.evaluation.models.base import Models, Progress, Prompt
from tasks.evaluation.models.completions import set_of
from tasks.evaluation.models.engine import EngineModels, engine_models
from tasks.evaluation.scoring import Contestant, ScoredModels, score_models

SIZES = Size(full=(250, 500, 1000), quick=(50, 100, 200))
MOST_SECONDS = 0.09  # per place, at the largest size
MOST_GROWTH = 1.25  # of the time per place, from the smallest to the largest size: the cost is linear
MOST_COMPARED = Size(full=10_000, quick=60)  # most places at which both ways are compared
MOST_RATIO = 1.0  # time of a cycle's evaluation over that of transformers, at the demo's size


class Timed:
    """Models whose time is measured by part, so that they are used one after another."""

    together = False

    def __init__(self, models: Models) -> None:
        self.models, self.name, self.seconds = models, models.name, defaultdict[str, float](float)

    def sample(
        self, checkpoint: Path, prompts: Sequence[Prompt], sampling: Sampling, ends: Sequence[int], progress: Progress
    ) -> list[tuple[int, ...]]:
        """See models.Models."""
        began = time.monotonic()
        found = self.models.sample(checkpoint, prompts, sampling, ends, progress)
        self.seconds["greedy" if sampling.temperature == 0 else "sampled"] += time.monotonic() - began
        return found

    def score(self, checkpoint: Path, rows: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[tuple[float, ...]]:
        """See models.Models."""
        began = time.monotonic()
        found = self.models.score(checkpoint, rows)
        self.seconds["truths"] += time.monotonic() - began
        return found


def run(settings: Settings, bench: Bench) -> Iterator[Figure]:
    """Evaluate one model at each size, then two at the demo's size in both ways."""
    sizes, places = SIZES.of(bench.quick), min(settings.evaluate.samples, MOST_COMPARED.of(bench.quick))
    with tempfile.TemporaryDirectory() as folder, engine_models(settings, "") as engine:
        base, candidate = configuration.path(settings.model.base), Path(folder) / "candidate"
        shutil.copytree(base, candidate)  # the engine loads it like any candidate
        score(engine, [base], 50, settings)  # the engine's first prompts compile what the others use
        per_place = []
        for size in sizes:
            with bench.part(f"{size} places", share=0.5 * size / sum(sizes)):
                parts = one_model(engine, [base], size, settings)
            per_place.append(sum(parts.values()) / size)
            largest = size * MOST_SECONDS if size == sizes[-1] else None
            yield figure(f"evaluation.{size}_places", sum(parts.values()), "s", most=largest)
        for name, value in parts.items():
            yield figure(f"evaluation.{sizes[-1]}_places.{name}", value, "s")
        growth = per_place[-1] / per_place[0]
        yield figure("evaluation.growth_per_place", growth, f"{sizes[0]} to {sizes[-1]} places", most=MOST_GROWTH)
        with bench.part("two models, by the engine and by transformers", share=0.5):
            began = time.monotonic()
            scored = score(engine, [base, candidate], places, settings)
            finish(scored, settings)
            by_engine, began = time.monotonic() - began, time.monotonic()
            in_new_process(by_transformers, [base, candidate], places)
            others = time.monotonic() - began
        unit = f"s, two models at {places} places"
        yield figure("evaluation.cycle.engine", by_engine, unit)
        yield figure("evaluation.cycle.transformers", others, f"{unit}, sampled once, without truths")
        yield figure("evaluation.cycle.ratio", by_engine / others, "of transformers", most=MOST_RATIO)


def one_model(engine: EngineModels, checkpoints: Sequence[Path], size: int, settings: Settings) -> dict[str, float]:
    """Return the seconds of each part of one model's evaluation."""
    timed, began = Timed(engine), time.monotonic()
    scored = score(timed, checkpoints, size, settings)
    made = time.monotonic()
    finish(scored, settings)
    metrics = made - began - sum(timed.seconds.values())
    return dict(timed.seconds) | {"metrics": metrics, "intervals_and_gate": time.monotonic() - made}


def score(models: Models, checkpoints: Sequence[Path], size: int, settings: Settings) -> ScoredModels:
    """Complete and score places with each checkpoint, as a cycle does, and keep nothing."""
    contestants = {str(folder): Contestant(folder, settings.serving.sampling) for folder in checkpoints}
    places = set_of(held_out_positions(size, settings.evaluate.seed))
    return score_models(contestants, [places], settings, models, greedy=True)


def finish(scored: ScoredModels, settings: Settings) -> None:
    """Compute what evaluation.json holds beside the scores: intervals of all metrics, and the gate's verdict."""
    for scores in (*scored.scores.values(), *scored.greedy.values()):
        measured = [row.measured for row in scores.by_position if row.measured]
        estimates(measured, [row.cluster for row in scores.by_position])
    rows = [scores.by_position for scores in scored.scores.values()]
    gate_candidate(rows[-1], rows[0], settings.evaluate.gate)


def by_transformers(checkpoints: Sequence[Path], count: int) -> None:
    """Complete places with each checkpoint by transformers, each line up to its end, and score them."""
    from evals.compare.checkpoint import evaluate
    from tasks.evaluation.judge import ReferenceJudge

    settings = configuration.load()
    places = held_out_positions(count, settings.evaluate.seed)
    for folder in checkpoints:
        evaluate(folder, places, settings.model, settings.serving.sampling, ReferenceJudge(), seed=settings.evaluate.seed)
