"""The gate's error rates, by simulation through its own code.

The pool holds the scores of two real models at the same places. A simulated evaluation draws files of the pool with replacement
and a part of each file's places, and gives each file's two scores to candidate and champion at random: then neither is better,
and they differ as much as a real candidate differs from its champion.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from evals.bench.figures import Figure, figure
from evals.bench.gate.plants import plant_of
from evals.compare.paired import Levels, differences
from evals.gate import Check, finding_of, judge_candidate
from evals.guardrails import checks_of
from evals.scores import PositionScore
from infra.settings.schema import Gate

Scores = list[PositionScore]
PROMISED = 0.05
"""Largest share of candidates with a true loss of one margin that may pass."""


@dataclass(frozen=True)
class Pool:
    """Scores of two models at the same places, by file."""

    one: tuple[Scores, ...]
    other: tuple[Scores, ...]

    @classmethod
    def of(cls, one: Sequence[PositionScore], other: Sequence[PositionScore]) -> "Pool":
        """Group scores by file."""
        files: dict[str, tuple[Scores, Scores]] = defaultdict(lambda: ([], []))
        for a, b in zip(one, other, strict=True):
            files[a.file][0].append(a)
            files[a.file][1].append(b)
        return cls(tuple(a for a, _ in files.values()), tuple(b for _, b in files.values()))

    def draw(self, places: int, rng: np.random.Generator) -> tuple[Scores, Scores]:
        """Return an equal candidate and its champion at about so many places."""
        share = places / sum(map(len, self.one))
        candidate: Scores = []
        champion: Scores = []
        for number, index in enumerate(rng.integers(0, len(self.one), len(self.one))):
            arms = (self.one[index], self.other[index])
            first = int(rng.integers(2))
            for place in np.flatnonzero(rng.random(len(arms[0])) < share):
                candidate.append(replace(arms[first][place], file=f"file {number}"))
                champion.append(replace(arms[1 - first][place], file=f"file {number}"))
        return candidate, champion


def run(
    pair: tuple[Sequence[PositionScore], Sequence[PositionScore]],
    places: int,
    settings: Gate,
    draws: int,
    drawn: Callable[[], None] = lambda: None,
) -> list[Figure]:
    """Return how often equal candidates pass and fail, and how often each guardrail lets a loss of one margin through.

    Args:
        pair: scores of two models at the same places.
        draws: simulated evaluations.
        drawn: called after each.
    """
    pool, rng = Pool.of(*pair), np.random.default_rng(0)
    verdicts: dict[str, int] = defaultdict(int)
    blocked: dict[str, int] = defaultdict(int)
    passed: dict[str, int] = defaultdict(int)
    judged: dict[str, int] = defaultdict(int)
    for _ in range(draws):
        candidate, champion = pool.draw(places, rng)
        result = judge_candidate(candidate, champion, settings)
        verdicts[result.verdict] += 1
        for finding in result.findings:
            blocked[finding.name] += finding.verdict != "passed"
        for check in planted(candidate, champion, pair[0], settings, rng):
            judged[check.name] += 1
            passed[check.name] += check.passed
        drawn()
    figures = [
        figure("gate.equal.passed", verdicts["passed"] / draws, f"of {draws} equal candidates at {places} places", least=0.9),
        figure("gate.equal.failed", verdicts["failed"] / draws, f"of {draws}", most=settings.alpha),
        figure("gate.equal.undecided", verdicts["undecided"] / draws, f"of {draws}"),
    ]
    for name, count in judged.items():
        figures.append(figure(f"gate.equal.blocked_by.{name}", blocked[name] / draws, f"of {draws}"))
        figures.append(figure(f"gate.one_margin_worse.{name}", passed[name] / count, f"of {count} let through", most=PROMISED))
    return figures


@dataclass(frozen=True)
class PlantedCheck:
    """What a guardrail says of a candidate that is worse by its margin."""

    name: str
    passed: bool


def planted(
    candidate: Scores, champion: Scores, pool: Sequence[PositionScore], settings: Gate, rng: np.random.Generator
) -> list[PlantedCheck]:
    """Return what each guardrail alone says of a candidate with its loss; the gate passes no more of them than it does."""
    checks = checks_of(candidate, champion, settings).checks
    changed: list[Check] = []
    for check in checks:
        worse = plant_of(check, pool)(candidate, rng)
        column = check.guardrail.measure.column(worse, champion)
        changed.append(replace(check, column=replace(column, known=check.column.known)))
    levels = Levels(settings.alpha, settings.alpha / len(checks))
    found = differences([check.column for check in changed], [score.file for score in champion], levels)
    findings = [finding_of(check, difference, 0.0, 0.0) for check, difference in zip(changed, found, strict=True)]
    return [PlantedCheck(finding.name, finding.verdict == "passed") for finding in findings]
