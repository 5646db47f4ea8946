"""Gains of trained models on the base, by recipe, ground and number of interactions: intervals, figures and targets."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from evals.bench.figures import Figure, bound, figure
from evals.compare import gains
from evals.compare.gains import Sums
from evals.developers.grounds import Ground

SHIPPED, CONTROL = "settled", "control"
"""The recipe that the settings ship, and the one without developers."""
Metric = Literal["accepted", "kept"]
Runs = Mapping[str, Mapping[int, Sequence["Gain"]]]
"""For each recipe, the gains of each seed."""
TARGETS: Mapping[tuple[int, Ground], Mapping[str, float]] = {
    (7200, "later"): {"accepted": 2.0, "low": 0.0, "kept": 15.0},
    (7200, "new"): {"low": -0.5},
    (28800, "later"): {"accepted": 4.0, "low": 0.0, "kept": 30.0},
    (28800, "new"): {"accepted": 2.0, "low": 0.0},
}
"""Of the shipped recipe against the base at its best after so many interactions: points, and percent of kept characters."""


@dataclass(frozen=True)
class Outcomes:
    """Outcomes of a model's completions at the positions of a ground, [positions] each."""

    users: Sequence[str]
    accepted: Sequence[float]
    """Expected accepts."""
    kept: Sequence[float]
    """Expected kept characters."""


@dataclass(frozen=True)
class ModelOutcomes:
    """Outcomes of a model's completions at the same positions."""

    all_shown: Outcomes
    served: Outcomes
    """With the decision to show, fitted to the model."""


@dataclass(frozen=True)
class Gain:
    """Outcomes at the same positions."""

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


def sums(seeds: Sequence[Outcomes]) -> Sums:
    """Return the sums over the users of all seeds; the same name in two seeds is two users."""
    users = [f"{seed} {user}" for seed, one in enumerate(seeds) for user in one.users]
    accepted = [value for one in seeds for value in one.accepted]
    kept = [value for one in seeds for value in one.kept]
    return gains.by_user(users, {"accepted": accepted, "kept": kept})


def difference(seeds: Sequence[Gain], metric: Metric) -> tuple[float, float]:
    """Return the gain per request on the base at its best over all seeds, and half the width of its interval."""
    return gains.gain(sums([one.best for one in seeds]).per(metric), sums([one.trained for one in seeds]).per(metric))


def figures(runs: Runs) -> list[Figure]:
    """Return the figures of each recipe by ground and number of interactions, and the targets of the shipped one."""
    rows: list[Figure] = []
    for recipe, seeds in runs.items():
        cells: dict[tuple[Ground, int], list[Gain]] = defaultdict(list)
        for one in (one for found in seeds.values() for one in found):
            cells[one.ground, one.interactions].append(one)
        for (ground, interactions), found in cells.items():
            rows += cell_figures(recipe, ground, interactions, found)
    return [*rows, *(row for recipe in runs if recipe != SHIPPED for row in against_shipped(runs, recipe))]


def cell_figures(recipe: str, ground: Ground, interactions: int, seeds: Sequence[Gain]) -> list[Figure]:
    """Return the figures of a recipe on a ground after some interactions."""
    name = f"{recipe}: {ground} after {interactions}"
    best, served, trained = (sums(ones) for ones in zip(*((one.best, one.served, one.trained) for one in seeds), strict=True))
    (accepted, width), (characters, kept_width) = difference(seeds, "accepted"), difference(seeds, "kept")
    kept = best.mean("kept") or 1.0
    least = TARGETS.get((interactions, ground), {}) if recipe == SHIPPED else {}
    return [
        figure(f"{name}, seeds", len(seeds), ""),
        figure(f"{name}, places", int(best.requests.sum()), ""),
        figure(f"{name}, accepted of the base at its best", 100 * best.mean("accepted"), "%"),
        figure(f"{name}, accepted of the base as served", 100 * served.mean("accepted"), "%"),
        figure(f"{name}, accepted", 100 * accepted, "points", least=least.get("accepted")),
        bound(f"{name}, low", 100 * (accepted - width), "points", least=least.get("low")),
        figure(f"{name}, high", 100 * (accepted + width), "points"),
        figure(f"{name}, kept characters", 100 * characters / kept, "% of the base's", least=least.get("kept")),
        figure(f"{name}, half of their interval", 100 * kept_width / kept, "%"),
        *part_figures(f"{name}, of training alone", *(sums(ones) for ones in zip(*(g.weights for g in seeds), strict=True))),
        *part_figures(f"{name}, against the base as served", served, trained),
    ]


def part_figures(name: str, before: Sums, after: Sums) -> list[Figure]:
    """Return by how much the second outcomes are above the first."""
    rows, units = [], (("accepted", "points", "the", 1.0), ("kept", "%", "their", before.mean("kept") or 1.0))
    for metric, unit, whose, scale in units:
        value, width = gains.gain(before.per(metric), after.per(metric))
        title = "accepted" if metric == "accepted" else "kept characters"
        rows += [
            figure(f"{name}: {title}", 100 * value / scale, unit),
            figure(f"{name}: half of {whose} interval", 100 * width / scale, unit),
        ]
    return rows


def against_shipped(runs: Runs, recipe: str) -> list[Figure]:
    """Return by how much the shipped recipe gains more than another one on later code, over the seeds that both have."""
    seeds = sorted(runs.get(SHIPPED, {}).keys() & runs[recipe].keys())
    if not seeds:
        return []
    other, own = (
        sums([[g for g in runs[name][seed] if g.ground == "later"][-1].trained for seed in seeds]) for name in (recipe, SHIPPED)
    )
    name, rows = f"{SHIPPED} above {recipe}: later", []
    for metric, unit, scale in (("accepted", "points", 100.0), ("kept", "characters", 1.0)):
        value, width = gains.gain(other.per(metric), own.per(metric))
        least = 0.0 if recipe == CONTROL and metric == "accepted" else None
        rows += [
            figure(f"{name}, {metric}", scale * value, unit),
            bound(f"{name}, {metric}, low", scale * (value - width), unit, least=least),
        ]
    return rows
