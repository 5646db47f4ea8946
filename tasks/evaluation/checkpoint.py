"""Scores of one checkpoint on lines of code that are not in its training data.

python -m tasks.evaluation.checkpoint infra/base_model --samples 400 --temperature 0
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from infra import settings as configuration
from infra.records import HeldOutCompletion
from infra.settings import schema
from tasks.evaluation import judge as judges
from tasks.evaluation import positions
from tasks.evaluation.heldout import held_out_files, site_packages
from tasks.evaluation.models.completions import Conditions, PlaceSet, completions_of, set_of
from tasks.evaluation.models.in_process import InProcess
from tasks.evaluation.scores import PositionScore, Scores, score_position, summarise


def evaluate(
    checkpoint: Path,
    held_out: Sequence[positions.Position],
    model: schema.Model,
    sampling: schema.Sampling,
    judge: judges.Judge,
    *,
    seed: int = 0,
) -> Scores:
    """Complete every position with the checkpoint, in this process, and score the completions. `seed` fixes the draws for any
    checkpoint."""
    places, conditions = set_of(held_out), Conditions(sampling, model, seed)
    made = completions_of(InProcess(model), checkpoint, places, conditions)
    return summarise(score_rows(places, made.rows, judge), judge.name, sampling.temperature, made.seconds)


def score_rows(
    places: PlaceSet, rows: Sequence[HeldOutCompletion], judge: judges.Judge, drifts: Sequence[float] | None = None
) -> tuple[PositionScore, ...]:
    """Score each completion of a set as it is served; `drifts`: the drift of each completion (drift.py)."""
    pairs = list(zip(places.places, rows, strict=True))
    judged = judge.score([judges.Item(p.prefix, p.suffix, row.text, p.truth) for p, row in pairs])
    moved: Sequence[float | None] = drifts or [None] * len(pairs)
    return tuple(
        score_position(place, row.text, judgement, drift, set=places.name, truth_logprob=row.truth_logprob)
        for (place, row), judgement, drift in zip(pairs, judged, moved, strict=True)
    )


def held_out_positions(count: int, seed: int) -> tuple[positions.Position, ...]:
    """Return rest-of-line positions in files of the held-out packages that no simulated developer opens."""
    sources = positions.read_sources(held_out_files(), [site_packages()])
    return positions.sample_positions(positions.scored_sources(sources), count, seed)


def scores_table(scores: Scores, title: str) -> Table:
    """Return the scores as a table for the terminal."""
    table = Table("metric", "mean", "standard error", title=title)
    rows = (
        ("exact match", scores.exact, 100, "%"),
        ("edit similarity", scores.edit_similarity, 100, "%"),
        ("right characters from the start", scores.matching_characters, 1, ""),
        (f"judge `{scores.judge}`, 0 to 10", scores.judged, 1, ""),
        ("empty completions", scores.empty, 100, "%"),
        ("characters", scores.length, 1, ""),
    )
    for name, value, scale, unit in rows:
        table.add_row(name, f"{scale * value.value:.2f}{unit}", f"{scale * value.error:.2f}{unit}")
    table.caption = (
        f"{len(scores.by_position)} positions, temperature {scores.temperature:g}, judge failures "
        f"{scores.judge_failures:.1%}, {scores.seconds:.1f} s"
    )
    return table


def main(arguments: Sequence[str] | None = None) -> int:
    """Score a checkpoint and print the table."""
    settings = configuration.load()
    parser = argparse.ArgumentParser(prog="python -m tasks.evaluation.checkpoint", description=__doc__.split("\n")[0])
    parser.add_argument("checkpoint", type=Path, help="directory in Hugging Face layout")
    parser.add_argument(
        "--samples", type=int, default=settings.evaluate.samples, help="number of positions (default %(default)s)"
    )
    parser.add_argument("--temperature", type=float, default=0.0, help="sampling temperature; 0 is greedy (default)")
    parser.add_argument("--seed", type=int, default=settings.evaluate.seed, help="seed of the positions and of the draws")
    parser.add_argument("--order", choices=["psm", "spm"], default=settings.model.fim_order, help="FIM order of the checkpoint")
    parser.add_argument("--examples", type=int, default=0, help="number of positions to print")
    options = parser.parse_args(arguments)
    held_out = held_out_positions(options.samples, options.seed)
    model = settings.model.model_copy(update={"fim_order": options.order})
    judge = judges.build(settings.evaluate.judge)
    sampling = settings.serving.sampling.model_copy(update={"temperature": options.temperature})
    scores = evaluate(options.checkpoint, held_out, model, sampling, judge, seed=options.seed)
    console = Console()
    for position, score in list(zip(held_out, scores.by_position, strict=True))[: options.examples]:
        line = position.prefix.rsplit("\n", 1)[-1]
        console.print(f"{line!r} -> {score.completion!r}, real text {score.truth!r}", markup=False, highlight=False)
    console.print(scores_table(scores, options.checkpoint.name))
    return 0


if __name__ == "__main__":
    sys.exit(main())
