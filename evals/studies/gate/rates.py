"""The gate's error rates, by simulation through its own code.

The pool holds the measures of two real models at the same places. A simulated evaluation draws files of the pool with replacement
and a part of each file's places, and gives each file's two models to candidate and champion at random: then neither is better,
and they differ as much as a real candidate differs from its champion.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from evals.bench.figures import Figure, figure
from evals.studies.gate.plants import worsened
from infra.settings.schema import Gate
from tasks.evaluation.gate.guardrails import checks_of, column_of
from tasks.evaluation.gate.values import Places, Values
from tasks.evaluation.gate.verdict import Check, differences_of, finding_of, gate_values
from tasks.evaluation.scores import PositionScore

PROMISED = 0.05
"""Largest share of candidates with a true loss of one margin that may pass."""
ALIKE = 0.5
"""Edit similarity from which on a completion passes the made-up tests of a place."""
TESTED = ("equal.passed", "equal.failed", ".passed")
"""Ends of the rows that tests change."""
FEW_DRAWS = 200
"""Draws of a row below which its rate has no target: slices that only some draws have."""


class Drawn(NamedTuple):
    """A simulated evaluation."""

    candidate: Values
    champion: Values
    places: Places


@dataclass(frozen=True, eq=False)
class Pool:
    """Measures of two models at the same places, [N], and which places are in each file."""

    one: Values
    other: Values
    places: Places
    members: tuple[np.ndarray, ...]

    @classmethod
    def of(cls, one: Sequence[PositionScore], other: Sequence[PositionScore]) -> "Pool":
        """Return the pool of two models' scores."""
        places = Places.of(one)
        members = tuple(np.flatnonzero(places.files == name) for name in np.unique(places.files))
        return cls(Values.of(one), Values.of(other), places, members)

    def mean(self, measure: str) -> float:
        """Return the mean of a measure over both models, each of which is a candidate as often."""
        return float(np.nanmean([self.one.by_measure[measure], self.other.by_measure[measure]]))

    def draw(self, count: int, rng: np.random.Generator) -> Drawn:
        """Return an equal candidate and its champion at about so many places at which something should be written, as in an
        evaluation, however long the drawn files are."""
        files = [self.members[index] for index in rng.integers(0, len(self.members), len(self.members))]
        share = count / sum(int(self.places.asks[members].sum()) for members in files)
        kept = [members[rng.random(len(members)) < share] for members in files]
        numbers = np.repeat(np.arange(len(kept)), [len(part) for part in kept])
        places, first = np.concatenate(kept), (rng.random(len(kept)) < 0.5)[numbers]
        slices = {name: within[places] for name, within in self.places.slices.items()}
        at = Places(numbers, self.places.asks[places], slices)
        return Drawn(mixed(self.one, self.other, places, first), mixed(self.other, self.one, places, first), at)


def mixed(one: Values, other: Values, places: np.ndarray, first: np.ndarray) -> Values:
    """Return the measures at some places, of `one` where `first` says so."""
    names = one.by_measure
    values = {name: np.where(first, one.by_measure[name][places], other.by_measure[name][places]) for name in names}
    answers = np.where(first, one.answers[places], other.answers[places])
    return Values(values, answers).answering(answers)


def run(
    pair: tuple[Sequence[PositionScore], Sequence[PositionScore]],
    places: int,
    settings: Gate,
    draws: int,
    drawn: Callable[[], None],
) -> list[Figure]:
    """Return how often equal candidates pass and fail, and how often each guardrail lets a loss of one margin through; then the
    same where places have tests.

    `pair`: scores of two models at the same places; `draws`: simulated evaluations of each of the two; `drawn`: called after
    each.
    """
    pool = Pool.of(*pair)
    found = figures_of("gate", pool, places, settings, draws, drawn)
    tested = figures_of("gate.tests", with_tests(pool), places, settings, draws, drawn)
    return [*found, *(one for one in tested if one.name.endswith(TESTED))]


def with_tests(pool: Pool) -> Pool:
    """Return the pool as if each place had tests that a completion passes which is at least half like the true text.

    The models then pass them about as often, and differ in them about as much, as one update makes models differ on a benchmark.
    """

    def tested(values: Values) -> Values:
        similar, known = values.by_measure["edit_similarity"] >= ALIKE, np.isfinite(values.by_measure["exact"])
        return values.changed("passed", np.where(known, similar, math.nan))

    return replace(pool, one=tested(pool.one), other=tested(pool.other))


def figures_of(
    name: str, pool: Pool, places: int, settings: Gate, draws: int, ended: Callable[[], None] = lambda: None
) -> list[Figure]:
    """Return the rates of one pool."""
    rng = np.random.default_rng(0)
    verdicts, blocked, passed, judged = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
    for _ in range(draws):
        drawn = pool.draw(places, rng)
        result = gate_values(*drawn, settings)
        verdicts[result.verdict] += 1
        blocked.update({row_of(finding.name) for finding in result.findings if finding.verdict != "passed"})
        for guardrail, let_through in planted(drawn, pool, settings, rng):
            judged[row_of(guardrail)] += 1
            passed[row_of(guardrail)] += let_through
        ended()
    figures = [
        figure(f"{name}.equal.passed", verdicts["passed"] / draws, f"of {draws} equal candidates at {places} places", least=0.9),
        figure(f"{name}.equal.failed", verdicts["failed"] / draws, f"of {draws}", most=settings.alpha),
        figure(f"{name}.equal.undecided", verdicts["undecided"] / draws, f"of {draws}"),
    ]
    for row, count in judged.items():
        most = PROMISED if count >= FEW_DRAWS else None
        figures.append(figure(f"{name}.equal.blocked_by.{row}", blocked[row] / draws, f"of {draws}"))
        figures.append(figure(f"{name}.one_margin_worse.{row}", passed[row] / count, f"of {count} let through", most=most))
    return figures


def row_of(name: str) -> str:
    """Return a guardrail's row: which projects are small depends on the draw, so they have one row, and so have the others."""
    small = re.sub(r": \d+ small ones", ": the small ones", name)
    return re.sub(r"project: (?!the small ones).*\)", "project: each)", small)


def planted(drawn: Drawn, pool: Pool, settings: Gate, rng: np.random.Generator) -> Iterator[tuple[str, bool]]:
    """Yield each guardrail with whether it alone passes the candidate with its loss; the gate passes no more of them than it."""
    changed: list[Check] = []
    for check in checks_of(*drawn, settings).checks:
        worse = worsened(check, pool.mean(check.guardrail.measure.name), drawn.candidate, rng)
        column = column_of(check.guardrail, worse, drawn.champion)
        changed.append(replace(check, column=replace(column, known=check.column.known)))
    for check, difference in zip(changed, differences_of(changed, drawn.places, settings), strict=True):
        finding = finding_of(check, difference, 0.0, 0.0)
        yield finding.name, finding.verdict == "passed"
