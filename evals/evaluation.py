"""Held-out evaluation: scores of a checkpoint that completes lines of code which were not in its training data.

python -m evals.evaluation infra/base_model --samples 400 --temperature 0
"""

import argparse
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from evals import judge as judges
from evals import metrics, positions
from evals.generation import Generator
from evals.heldout import held_out_files, site_packages
from infra import settings as configuration
from infra.settings import schema


@dataclass(frozen=True)
class PositionScore:
    """The result at one position. Two Scores over the same positions can be compared in pairs."""

    file: str
    offset: int
    completion: str
    """First line of the generated text."""
    truth: str
    exact: bool
    edit_similarity: float
    """0 to 1."""
    matching_characters: int
    """Right characters from the start."""
    judged: float | None
    """The judge's score, 0 to 10; None where the judge failed."""


@dataclass(frozen=True)
class Mean:
    """A mean with its standard error."""

    value: float
    error: float
    n: int


@dataclass(frozen=True)
class Scores:
    """The means over all positions, and the score of each position."""

    judge: str
    """Name of the judge that gave `judged`."""
    temperature: float
    exact: Mean
    edit_similarity: Mean
    matching_characters: Mean
    """Right characters from the start, per position."""
    judged: Mean
    """The judge's score over the positions that it could judge."""
    empty: Mean
    """Share of positions with an empty completion."""
    length: Mean
    """Characters per completion."""
    judge_failures: float
    """Share of positions that the judge could not score."""
    seconds: float
    by_position: tuple[PositionScore, ...]


def evaluate(
    checkpoint: Path,
    held_out: Sequence[positions.Position],
    model: schema.Model,
    sampling: schema.Sampling,
    judge: judges.Judge,
    *,
    seed: int = 0,
) -> Scores:
    """Complete every position with the checkpoint and score the completions. `seed` fixes the draws for any checkpoint."""
    began = time.monotonic()
    contexts = [(position.prefix, position.suffix) for position in held_out]
    completions = Generator(checkpoint, model).complete(contexts, sampling.max_tokens, sampling.temperature, seed)
    lines = [metrics.first_line(text) for text in completions]
    items = [judges.Item(p.prefix, p.suffix, line, p.truth) for p, line in zip(held_out, lines, strict=True)]
    by_position = tuple(_score(p, line, j) for p, line, j in zip(held_out, lines, judge.score(items), strict=True))
    return summarise(by_position, judge.name, sampling.temperature, time.monotonic() - began)


def summarise(by_position: tuple[PositionScore, ...], judge: str, temperature: float, seconds: float = 0.0) -> Scores:
    """Return the means over the positions."""
    judged = [score.judged for score in by_position if score.judged is not None]
    return Scores(
        judge=judge,
        temperature=temperature,
        exact=mean([float(score.exact) for score in by_position]),
        edit_similarity=mean([score.edit_similarity for score in by_position]),
        matching_characters=mean([float(score.matching_characters) for score in by_position]),
        judged=mean(judged),
        empty=mean([float(not score.completion.strip()) for score in by_position]),
        length=mean([float(len(score.completion)) for score in by_position]),
        judge_failures=1 - len(judged) / len(by_position) if by_position else math.nan,
        seconds=seconds,
        by_position=by_position,
    )


def mean(values: Sequence[float]) -> Mean:
    """Return the mean and its standard error; NaN where there are too few values."""
    n = len(values)
    if n == 0:
        return Mean(math.nan, math.nan, 0)
    average = sum(values) / n
    if n == 1:
        return Mean(average, math.nan, 1)
    return Mean(average, math.sqrt(sum((value - average) ** 2 for value in values) / (n - 1) / n), n)


def held_out_positions(count: int, seed: int) -> tuple[positions.Position, ...]:
    """Return rest-of-line positions in files of the held-out packages that no simulated developer opens."""
    sources = positions.read_sources(held_out_files(), [site_packages()])
    return positions.sample_positions(positions.scored_sources(sources), count, seed)


def _score(position: positions.Position, line: str, judgement: judges.Judgement) -> PositionScore:
    return PositionScore(
        file=position.file,
        offset=position.offset,
        completion=line,
        truth=position.truth,
        exact=metrics.exact(line, position.truth),
        edit_similarity=metrics.edit_similarity(line, position.truth),
        matching_characters=metrics.matching_prefix(line, position.truth),
        judged=judgement.score if isinstance(judgement, judges.Scored) else None,
    )


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
    parser = argparse.ArgumentParser(prog="python -m evals.evaluation", description=__doc__.split("\n")[0])
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
