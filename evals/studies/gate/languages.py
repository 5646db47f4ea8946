"""Worse in one language only: a champion of two languages, really trained, and a candidate that lost one of them."""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from evals.bench.figures import Figure, figure
from evals.studies.gate.models import BATCH, Recipe, first_line, train
from infra import settings as configuration
from infra.settings import ROOT, Settings
from tasks.evaluation.gate.verdict import gate_candidate
from tasks.evaluation.heldout.directory import read_code
from tasks.evaluation.positions import Position, sample_positions
from tasks.evaluation.scores import PositionScore

CODE = ROOT / "tests/data/code"
"""Files of TypeScript and Go."""
LOST, KEPT = "language: go", "language: ts"
PLACES, STEPS, LOSING_STEPS = 300, 32, 8

Scored = Callable[[Mapping[str, Path], Sequence[Position], Settings], Mapping[str, Sequence[PositionScore]]]
"""Returns the scores of models at places, by name."""


def garbled_go(place: Position) -> str:
    """Return what the candidate learns to write: in Go, letters in the wrong order; in TypeScript, the true text."""
    line = first_line(place)
    return line[::-1] if place.file.endswith(".go") else line


def run(settings: Settings, scored: Scored) -> list[Figure]:
    """Return 1 if the gate fails the candidate in the language that it lost and in no other."""
    base, served = configuration.path(settings.model.base), settings.serving.sampling.max_tokens
    sources = list(read_code(CODE))
    taught = list(sample_positions(sources, 8 * BATCH, seed=5))
    places = sample_positions(sources, PLACES, seed=6)
    learnt = Recipe("two_languages", first_line, STEPS, frozenset(), places=len(taught))
    lost = Recipe("one_language_lost", garbled_go, LOSING_STEPS, frozenset(), places=len(taught))
    with tempfile.TemporaryDirectory() as folder:
        champion = train(base, Path(folder) / "champion", learnt, taught, settings.model, served)
        candidate = train(champion, Path(folder) / "candidate", lost, taught, settings.model, served)
        found = scored({"champion": champion, "candidate": candidate}, places, settings)
    result = gate_candidate(found["candidate"], found["champion"], settings.evaluate.gate)
    verdicts = {finding.slice: finding.verdict for finding in result.findings if finding.slice}
    failed = [finding.name for finding in result.findings if finding.verdict == "failed"]
    right = verdicts.get(LOST) == "failed" and verdicts.get(KEPT) != "failed"
    means = {name: _exact(rows) for name, rows in found.items()}
    return [
        figure("gate.trained.one_language_lost", float(right), f"{result.verdict} {', '.join(failed)}", least=1.0),
        *(figure(f"gate.languages.{name}.exact", value, f"of {PLACES} places") for name, value in means.items()),
    ]


def _exact(rows: Sequence[PositionScore]) -> float:
    return sum(row.exact for row in rows) / len(rows)
