"""What a trained model gains on the base, by recipe, ground and number of interactions: intervals, figures and targets."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from evals.bench.figures import Figure, bound, figure
from evals.developers.grounds import Ground
from tasks.statistics.ratios import margin, ratio

SHIPPED, CONTROL = "settled", "control"
"""The recipe that the settings ship, and the one without developers."""
Measure = Literal["accepted", "kept"]
TARGETS: Mapping[tuple[int, Ground], Mapping[str, float]] = {
    (7200, "later"): {"accepted": 2.0, "low": 0.0, "kept": 15.0},
    (7200, "new"): {"low": -0.5},
    (28800, "later"): {"accepted": 4.0, "low": 0.0, "kept": 30.0},
    (28800, "new"): {"accepted": 2.0, "low": 0.0},
}
"""Of the shipped recipe against the base at its best after so many interactions: points, and percent of kept characters."""


@dataclass(frozen=True)
class Outcomes:
    """What developers do with a model's completions at the places of a ground, [places] each."""

    users: Sequence[str]
    accepted: Sequence[float]
    """Expected accepts."""
    kept: Sequence[float]
    """Expected kept characters."""


@dataclass(frozen=True)
class AtPlaces:
    """What developers do with a model's completions at the same places."""

    all_shown: Outcomes
    served: Outcomes
    """With the decision to show, fitted to the model."""


@dataclass(frozen=True)
class Gain:
    """Outcomes at the same places."""

    ground: Ground
    interactions: int
    """Interactions that the trained model has learnt from."""
    best: Outcomes
    """Of the base at its best temperature, all of it shown: what a team has without tabloop."""
    served: Outcomes
    """Of the base as people are served: at their temperature, with a decision to show."""
    trained: Outcomes
    """Of the trained model as people are served."""
    weights: tuple[Outcomes, Outcomes]
    """Of the base at its best and of the trained model at the served temperature, all shown: what the weights alone gain."""


def gain_of(ground: Ground, interactions: int, *, best: AtPlaces, base: AtPlaces, trained: AtPlaces) -> Gain:
    """Return the gain of a trained model.

    Args:
        best: of the base at its best temperature.
        base: of the base at the served temperature.
        trained: of the trained model at the served temperature.
    """
    every = (best.all_shown, base.served, trained.served)
    assert all(one.users == best.all_shown.users for one in every)
    return Gain(ground, interactions, *every, weights=(best.all_shown, trained.all_shown))


def difference(gains: Sequence[Gain], measure: Measure) -> tuple[float, float]:
    """Return the gain per request on the base at its best, and half the width of its confidence interval.

    Over the users of all seeds.
    """
    return paired([(gain.best, gain.trained) for gain in gains], measure)


def paired(pairs: Sequence[tuple[Outcomes, Outcomes]], measure: Measure) -> tuple[float, float]:
    """Return by how much the second is above the first per request, and half the width of its interval, clustered by user."""
    sums: dict[tuple[int, str], list[float]] = defaultdict(lambda: [0.0, 0.0])
    for seed, (before, after) in enumerate(pairs):
        for user, low, high in zip(before.users, getattr(before, measure), getattr(after, measure), strict=True):
            sums[seed, user][0] += high - low
            sums[seed, user][1] += 1
    changes, places = np.array(list(sums.values())).T
    estimate, influence = ratio(changes, places)
    return estimate, margin(influence)


def mean(outcomes: Iterable[Outcomes], measure: Measure) -> float:
    """Return the mean per request over all seeds."""
    return float(np.mean(np.concatenate([getattr(one, measure) for one in outcomes])))


def figures(runs: Mapping[str, Mapping[int, Sequence[Gain]]]) -> list[Figure]:
    """Return the figures of each recipe by ground and number of interactions, and the targets of the shipped one.

    Args:
        runs: for each recipe, the gains of each seed.
    """
    rows: list[Figure] = []
    for recipe, seeds in runs.items():
        cells: dict[tuple[Ground, int], list[Gain]] = defaultdict(list)
        for gain in (gain for gains in seeds.values() for gain in gains):
            cells[gain.ground, gain.interactions].append(gain)
        for (ground, interactions), gains in cells.items():
            rows += cell_figures(recipe, ground, interactions, gains)
    others = [recipe for recipe in runs if recipe != SHIPPED]
    return [*rows, *(row for recipe in others for row in against_shipped(runs, recipe))]


def cell_figures(recipe: str, ground: Ground, interactions: int, gains: Sequence[Gain]) -> list[Figure]:
    """Return the figures of a recipe on a ground after some interactions."""
    name = f"{recipe}: {ground} after {interactions}"
    (accepted, width), (characters, kept_width) = difference(gains, "accepted"), difference(gains, "kept")
    best, served = [gain.best for gain in gains], [gain.served for gain in gains]
    kept = mean(best, "kept") or 1.0
    least = TARGETS.get((interactions, ground), {}) if recipe == SHIPPED else {}
    return [
        figure(f"{name}, seeds", len(gains), ""),
        figure(f"{name}, places", sum(len(gain.best.users) for gain in gains), ""),
        figure(f"{name}, accepted of the base at its best", 100 * mean(best, "accepted"), "%"),
        figure(f"{name}, accepted of the base as served", 100 * mean(served, "accepted"), "%"),
        figure(f"{name}, accepted", 100 * accepted, "points", least=least.get("accepted")),
        bound(f"{name}, low", 100 * (accepted - width), "points", least=least.get("low")),
        figure(f"{name}, high", 100 * (accepted + width), "points"),
        figure(f"{name}, kept characters", 100 * characters / kept, "% of the base's", least=least.get("kept")),
        figure(f"{name}, half of their interval", 100 * kept_width / kept, "%"),
        *part_figures(f"{name}, of training alone", [gain.weights for gain in gains]),
        *part_figures(f"{name}, against the base as served", [(gain.served, gain.trained) for gain in gains]),
    ]


def part_figures(name: str, pairs: Sequence[tuple[Outcomes, Outcomes]]) -> list[Figure]:
    """Return by how much the second outcomes of each pair are above the first."""
    (accepted, width), (characters, kept_width) = paired(pairs, "accepted"), paired(pairs, "kept")
    kept = mean([before for before, _ in pairs], "kept") or 1.0
    return [
        figure(f"{name}: accepted", 100 * accepted, "points"),
        figure(f"{name}: half of the interval", 100 * width, "points"),
        figure(f"{name}: kept characters", 100 * characters / kept, "%"),
        figure(f"{name}: half of their interval", 100 * kept_width / kept, "%"),
    ]


def against_shipped(runs: Mapping[str, Mapping[int, Sequence[Gain]]], recipe: str) -> list[Figure]:
    """Return by how much the shipped recipe gains more than another one on later code, over the seeds that both have."""
    both = sorted(runs.get(SHIPPED, {}).keys() & runs[recipe].keys())
    last = [[[g for g in runs[one][seed] if g.ground == "later"][-1].trained for one in (recipe, SHIPPED)] for seed in both]
    if not last:
        return []
    name, target = f"{SHIPPED} above {recipe}: later", 0.0 if recipe == CONTROL else None
    rows = []
    measures: tuple[tuple[Measure, str, float], ...] = (("accepted", "points", 100.0), ("kept", "characters", 1.0))
    for measure, unit, scale in measures:
        estimate, width = paired([(other, own) for other, own in last], measure)
        rows += [
            figure(f"{name}, {measure}", scale * estimate, unit),
            bound(f"{name}, {measure}, low", scale * (estimate - width), unit, least=target if measure == "accepted" else None),
        ]
    return rows
