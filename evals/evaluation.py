"""Held-out evaluation: how well a checkpoint writes the rest of a line in code that it never saw.

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
    """One position's result; the same positions in the same order make two Scores comparable in pairs."""

    file: str
    offset: int
    completion: str
    """First line of what was generated."""
    truth: str
    exact: bool
    edit_similarity: float
    """0 to 1."""
    matching_characters: int
    """Characters from the start that are right."""
    judged: float | None
    """The judge's score, 0 to 10; none where it failed."""


@dataclass(frozen=True)
class Mean:
    """A mean with its standard error."""

    value: float
    error: float
    n: int


@dataclass(frozen=True)
class Scores:
    """How a checkpoint did, as a whole and by position."""

    judge: str
    """Name of the judge behind `judged`."""
    temperature: float
    exact: Mean
    edit_similarity: Mean
    matching_characters: Mean
    """Characters from the start that are right, a position."""
    judged: Mean
    """The judge's score over what it could judge."""
    empty: Mean
    """Share of positions with nothing to show."""
    length: Mean
    """Characters of a completion."""
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
    temperature: float | None = None,
) -> Scores:
    """Complete every position with the checkpoint and score it.

    `temperature` replaces the served one; 0 is greedy. The same seed meets the same draws whichever checkpoint it is.
    """
    began = time.monotonic()
    used = sampling.temperature if temperature is None else temperature
    contexts = [(place.prefix, place.suffix) for place in held_out]
    completions = Generator(checkpoint, model).complete(contexts, sampling.max_tokens, used, seed)
    lines = [metrics.first_line(text) for text in completions]
    items = [judges.Item(p.prefix, p.suffix, line, p.truth) for p, line in zip(held_out, lines, strict=True)]
    scored = tuple(_score(p, line, j) for p, line, j in zip(held_out, lines, judge.score(items), strict=True))
    return summarise(scored, judge.name, used, time.monotonic() - began)


def summarise(scored: tuple[PositionScore, ...], judge: str, temperature: float, seconds: float = 0.0) -> Scores:
    """The means of many positions."""
    judged = [score.judged for score in scored if score.judged is not None]
    return Scores(
        judge=judge,
        temperature=temperature,
        exact=mean([float(score.exact) for score in scored]),
        edit_similarity=mean([score.edit_similarity for score in scored]),
        matching_characters=mean([float(score.matching_characters) for score in scored]),
        judged=mean(judged),
        empty=mean([float(not score.completion.strip()) for score in scored]),
        length=mean([float(len(score.completion)) for score in scored]),
        judge_failures=1 - len(judged) / len(scored) if scored else math.nan,
        seconds=seconds,
        by_position=scored,
    )


def mean(values: Sequence[float]) -> Mean:
    """Mean and its standard error; not a number where there are too few values to tell."""
    n = len(values)
    if n == 0:
        return Mean(math.nan, math.nan, 0)
    centre = sum(values) / n
    if n == 1:
        return Mean(centre, math.nan, 1)
    return Mean(centre, math.sqrt(sum((value - centre) ** 2 for value in values) / (n - 1) / n), n)


def held_out_positions(count: int, seed: int) -> tuple[positions.Position, ...]:
    """Rest-of-line positions in the held-out packages' files that no simulated developer opens."""
    sources = positions.read(held_out_files(), [site_packages()])
    return positions.sample(positions.for_scores(sources), count, seed)


def _score(place: positions.Position, line: str, judgement: judges.Judgement) -> PositionScore:
    return PositionScore(
        file=place.file,
        offset=place.offset,
        completion=line,
        truth=place.truth,
        exact=metrics.exact(line, place.truth),
        edit_similarity=metrics.edit_similarity(line, place.truth),
        matching_characters=metrics.matching_prefix(line, place.truth),
        judged=judgement.score if isinstance(judgement, judges.Scored) else None,
    )


def table(scores: Scores, title: str) -> Table:
    """The scores as a table for the terminal."""
    result = Table("measure", "mean", "standard error", title=title)
    rows = (
        ("exact match", scores.exact, 100, "%"),
        ("edit similarity", scores.edit_similarity, 100, "%"),
        ("right characters from the start", scores.matching_characters, 1, ""),
        (f"judge `{scores.judge}`, 0 to 10", scores.judged, 1, ""),
        ("nothing to show", scores.empty, 100, "%"),
        ("characters", scores.length, 1, ""),
    )
    for name, value, scale, unit in rows:
        result.add_row(name, f"{scale * value.value:.2f}{unit}", f"{scale * value.error:.2f}{unit}")
    result.caption = (
        f"{len(scores.by_position)} positions, temperature {scores.temperature:g}, judge failures "
        f"{scores.judge_failures:.1%}, {scores.seconds:.1f} s"
    )
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    """Score a checkpoint and print the table."""
    settings = configuration.load()
    parser = argparse.ArgumentParser(prog="python -m evals.evaluation", description=__doc__.split("\n")[0])
    parser.add_argument("checkpoint", type=Path, help="directory in Hugging Face layout")
    parser.add_argument("--samples", type=int, default=settings.evaluate.samples, help="positions (default %(default)s)")
    parser.add_argument("--temperature", type=float, default=0.0, help="0 is greedy (default); served: the settings' own")
    parser.add_argument("--seed", type=int, default=settings.evaluate.seed, help="choice of positions and draws")
    parser.add_argument("--order", choices=["psm", "spm"], default=settings.model.fim_order, help="FIM order of the checkpoint")
    parser.add_argument("--examples", type=int, default=0, help="positions to print")
    options = parser.parse_args(arguments)
    held_out = held_out_positions(options.samples, options.seed)
    model = settings.model.model_copy(update={"fim_order": options.order})
    judge = judges.build(settings.evaluate.judge)
    scores = evaluate(
        options.checkpoint, held_out, model, settings.serving.sampling, judge, seed=options.seed, temperature=options.temperature
    )
    console = Console()
    for place, score in list(zip(held_out, scores.by_position, strict=True))[: options.examples]:
        line = place.prefix.rsplit("\n", 1)[-1]
        console.print(f"{line!r} -> {score.completion!r}, was {score.truth!r}", markup=False, highlight=False)
    console.print(table(scores, options.checkpoint.name))
    return 0


if __name__ == "__main__":
    sys.exit(main())
