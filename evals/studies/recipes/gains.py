"""Gains of trained models on the base, by recipe, ground and number of requests: intervals, figures and targets.

Both serve with a decision to show of their own. Legend of a figure's name: KIND DIGEST RECIPE: GROUND after REQUESTS, MEASURE.
The digest names the rates of the simulated developers.

An interval over users holds for these teams and these updates alone: the same rows in another order teach otherwise. Of three
seeds or more, each with a team, developers and an update of its own, the interval is at least as wide as the one over seeds.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from evals.bench.figures import Figure, bound, figure
from evals.compare import gains
from evals.compare.gains import Sums, together
from evals.developers.grounds import Ground
from infra.model.time_saved import HOUR, KEY_SECONDS
from tasks.statistics.ratios import margin

SHIPPED, WRITTEN, CONTROL = "written_drawn", "written", "control"
"""The recipe that the settings ship, the one without rewards, and the one without developers."""
LEAST_SEEDS = 3
"""Fewest seeds whose own differences give an interval: of two it would be 12.7 standard errors wide."""
Runs = Mapping[str, Mapping[int, Sequence["Gain"]]]
"""For each recipe, the gains of each seed."""


@dataclass(frozen=True)
class Outcome:
    """An outcome of completions for a developer."""

    key: str
    """Of Sums.values."""
    name: str
    unit: str
    per: str = "requests"
    """Divides it: requests, or another key of Sums.values."""
    scale: float = 1.0
    """Times the ratio gives the unit; 0: percent of that before, which is the base's but where two recipes are compared."""


OUTCOMES = (
    Outcome("accepted", "accepted", "points", scale=100.0),
    Outcome("kept", "kept characters", "% of the base's", scale=0.0),
    Outcome("saved", "time saved", "s per hour of writing", per="written", scale=HOUR / KEY_SECONDS),
    Outcome("edit", "edit", "characters per request"),
    Outcome("reading", "reading", "s per request"),
    Outcome("shown", "shown", "points", scale=100.0),
)
JUDGED = ("accepted", "kept", "saved")
"""Outcomes in which the shipped update must not be surely worse than the written text alone."""
BETTER = ("kept", "saved")
"""In one of these it must be surely better."""
TARGETS: Mapping[tuple[int, Ground], Mapping[str, float]] = {
    (7200, "later"): {"accepted": 2.0, "low": 0.0, "kept": 15.0},
    (7200, "new"): {"low": -0.5},
    (28800, "later"): {"accepted": 4.0, "low": 0.0, "kept": 30.0},
    (28800, "new"): {"accepted": 2.0, "low": 0.0},
}
"""Of the shipped recipe with plain developers, against the base at its best with all of it shown: points, and percent of kept
characters."""


@dataclass(frozen=True)
class Gain:
    """Expected outcomes by user, of completions at the same places."""

    ground: Ground
    interactions: int  # requests that the trained model has learnt from
    best: Sums  # of the base at its best temperature, with a decision to show of its own
    best_all: Sums  # the same, all of it shown: what a team has without tabloop
    trained: Sums  # of the trained model as people are served
    trained_all: Sums  # the same, all of it shown: beside `best_all`, what the weights alone gain
    notes: Mapping[str, tuple[float, str]] = field(default_factory=dict)  # further figures with their units, averaged over seeds


def difference(before: Sums, after: Sums, outcome: Outcome) -> tuple[float, float]:
    """Return by how much an outcome rises, in its unit, and half the width of its interval."""
    value, width = gains.gain(before.per(outcome.key, outcome.per), after.per(outcome.key, outcome.per))
    scale = outcome.scale or 100.0 / (before.mean(outcome.key) or 1.0)
    return scale * value, scale * width


def over_seeds(before: Sequence[Sums], after: Sequence[Sums], outcome: Outcome) -> tuple[float, float]:
    """Return by how much an outcome rises over several seeds, in its unit, and half the width of its interval: the wider one of
    that over users and, of at least LEAST_SEEDS, Student's over the seeds' own differences."""
    value, width = difference(together(before), together(after), outcome)
    if len(before) < LEAST_SEEDS:
        return value, width
    each = np.array([difference(one, other, outcome)[0] for one, other in zip(before, after, strict=True)])
    return value, max(width, margin((each - each.mean()) / len(each)))


def figures(runs: Runs, label: str = "") -> list[Figure]:
    """Return the figures of each recipe by ground and number of requests, and the targets of the shipped one.

    `label`: kind and digest of the developers.
    """
    rows: list[Figure] = []
    for recipe, seeds in runs.items():
        cells: dict[tuple[Ground, int], list[Gain]] = defaultdict(list)
        for one in (one for found in seeds.values() for one in found):
            cells[one.ground, one.interactions].append(one)
        for (ground, interactions), found in cells.items():
            rows += cell_figures(f"{label} {recipe}: {ground} after {interactions}".strip(), found)
            if recipe == SHIPPED and label.startswith("plain"):
                rows += plain_targets(f"{label} {recipe}: {ground} after {interactions}", found)
    for recipe in runs:
        if recipe not in (WRITTEN, CONTROL):
            rows += against(runs, recipe, WRITTEN, label)
    return [*rows, *against(runs, WRITTEN, CONTROL, label)]


def cell_figures(name: str, seeds: Sequence[Gain]) -> Iterator[Figure]:
    """Yield the figures of a recipe on a ground after some requests."""
    best, best_all, trained, trained_all = (
        [getattr(one, side) for one in seeds] for side in ("best", "best_all", "trained", "trained_all")
    )
    every = together(best)
    yield figure(f"{name}, seeds", len(seeds), "")
    yield figure(f"{name}, places", int(every.requests.sum()), "")
    for outcome in OUTCOMES:
        unit = "characters per request" if not outcome.scale else outcome.unit.replace("points", "%")
        numerator, denominator = every.per(outcome.key, outcome.per)
        level = float(numerator.sum() / (denominator.sum() or 1.0))
        yield figure(f"{name}, {outcome.name} of the base", (outcome.scale or 1.0) * level, unit)
        yield from interval(f"{name}, {outcome.name}", outcome, best, trained)
    for part, before, after in (("of training alone", best_all, trained_all), ("with the decision to show", best_all, trained)):
        for outcome in OUTCOMES[:3]:
            yield from interval(f"{name}, {part}: {outcome.name}", outcome, before, after)
    for note in seeds[0].notes:
        values = [one.notes[note][0] for one in seeds if note in one.notes]
        yield figure(f"{name}, {note}", float(np.mean(values)), seeds[0].notes[note][1])


def interval(name: str, outcome: Outcome, before: Sequence[Sums], after: Sequence[Sums]) -> Iterator[Figure]:
    """Yield the rise of an outcome over seeds, and half the width of its interval."""
    value, width = over_seeds(before, after, outcome)
    yield figure(name, value, outcome.unit)
    yield figure(f"{name}, half of the interval", width, outcome.unit)


def plain_targets(name: str, seeds: Sequence[Gain]) -> Iterator[Figure]:
    """Yield the targets of the shipped recipe with plain developers."""
    least = TARGETS.get((seeds[0].interactions, seeds[0].ground), {})
    before, after = [one.best_all for one in seeds], [one.trained for one in seeds]
    for outcome in OUTCOMES[:2]:
        if outcome.key in least:
            value, _ = over_seeds(before, after, outcome)
            yield figure(f"{name}, target: {outcome.name}", value, outcome.unit, least=least[outcome.key])
    if "low" in least:
        value, width = over_seeds(before, after, OUTCOMES[0])
        yield bound(f"{name}, target: accepted, low", value - width, "points", least=least["low"])


def against(runs: Runs, recipe: str, other: str, label: str = "") -> Iterator[Figure]:
    """Yield by how much a recipe is above another on later code and new files, over the seeds that both have.

    The shipped recipe has targets: surely worse in nothing, and surely better in time saved or kept characters on later code.
    """
    seeds = sorted(runs.get(recipe, {}).keys() & runs.get(other, {}).keys())
    ours, theirs = (_trained([gain for seed in seeds for gain in runs[name][seed]] if seeds else ()) for name in (recipe, other))
    for (ground, interactions), after in ours.items():
        before = theirs.get((ground, interactions), [])
        if len(before) != len(after):
            continue
        name = f"{label} {recipe} above {other}: {ground} after {interactions}".strip()
        shipped, lows = (recipe, other) == (SHIPPED, WRITTEN), dict[str, float]()
        for outcome in OUTCOMES:
            value, width = over_seeds(before, after, outcome)
            lows[outcome.key] = value - width
            worst, unit = 0.0 if shipped and outcome.key in JUDGED else None, outcome.unit if outcome.scale else f"% of {other}'s"
            yield figure(f"{name}, {outcome.name}", value, unit)
            yield bound(f"{name}, {outcome.name}, low", value - width, unit)
            yield bound(f"{name}, {outcome.name}, high", value + width, unit, least=worst)
        if shipped and ground == "later":
            sure = float(any(lows[key] > 0 for key in BETTER))
            yield bound(f"{name}, surely better in time saved or kept characters", sure, "1: yes", least=1.0)
        if (recipe, other, ground) == (WRITTEN, CONTROL, "later"):
            yield bound(f"{name}, accepted, target: low", lows["accepted"], "points", least=0.0)


def _trained(found: Sequence[Gain]) -> dict[tuple[Ground, int], list[Sums]]:
    """Return the outcomes of the trained models by ground and number of requests, in the order of the gains."""
    cells: dict[tuple[Ground, int], list[Sums]] = defaultdict(list)
    for one in found:
        cells[one.ground, one.interactions].append(one.trained)
    return cells
