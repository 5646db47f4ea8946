"""Gains of trained models on the base, by recipe, ground and number of interactions: intervals, figures and targets."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from evals.bench.figures import Figure, bound, figure
from evals.compare import gains
from evals.compare.gains import Sums, together
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
class Gain:
    """Expected accepts and kept characters by user, of completions at the same positions."""

    ground: Ground
    interactions: int  # that the trained model has learnt from
    best: Sums  # of the base at its best temperature, all of it shown: what a team has without tabloop
    served: Sums  # of the base as people are served: at their temperature, with a decision to show
    trained: Sums  # of the trained model as people are served
    trained_all: Sums  # the same with all of it shown: beside `best`, what the weights alone gain


def sums(seeds: Sequence[Gain]) -> tuple[Sums, Sums, Sums, Sums]:
    """Return best, served, trained and trained_all over the users of all seeds."""
    best, served, trained = ([getattr(one, name) for one in seeds] for name in ("best", "served", "trained"))
    return together(best), together(served), together(trained), together([one.trained_all for one in seeds])


def difference(seeds: Sequence[Gain], metric: Metric) -> tuple[float, float]:
    """Return the gain per request on the base at its best over all seeds, and half the width of its interval."""
    best, _, trained, _ = sums(seeds)
    return gains.gain(best.per(metric), trained.per(metric))


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
    best, served, trained, trained_all = sums(seeds)
    accepted, width, characters, kept_width = in_points(best, trained)
    least = TARGETS.get((interactions, ground), {}) if recipe == SHIPPED else {}
    rows = [
        figure(f"{name}, seeds", len(seeds), ""),
        figure(f"{name}, places", int(best.requests.sum()), ""),
        figure(f"{name}, accepted of the base at its best", 100 * best.mean("accepted"), "%"),
        figure(f"{name}, accepted of the base as served", 100 * served.mean("accepted"), "%"),
        figure(f"{name}, accepted", accepted, "points", least=least.get("accepted")),
        bound(f"{name}, low", accepted - width, "points", least=least.get("low")),
        figure(f"{name}, high", accepted + width, "points"),
        figure(f"{name}, kept characters", characters, "% of the base's", least=least.get("kept")),
        figure(f"{name}, half of their interval", kept_width, "%"),
    ]
    for part, before, after in (("of training alone", best, trained_all), ("against the base as served", served, trained)):
        accepted, width, characters, kept_width = in_points(before, after)
        rows += [
            figure(f"{name}, {part}: accepted", accepted, "points"),
            figure(f"{name}, {part}: half of the interval", width, "points"),
            figure(f"{name}, {part}: kept characters", characters, "%"),
            figure(f"{name}, {part}: half of their interval", kept_width, "%"),
        ]
    return rows


def in_points(before: Sums, after: Sums) -> tuple[float, float, float, float]:
    """Return the gain in accepts in points, in kept characters in percent, each with half the width of its interval."""
    accepted = gains.gain(before.per("accepted"), after.per("accepted"))
    kept = gains.gain(before.per("kept"), after.per("kept"))
    scale = before.mean("kept") or 1.0
    return 100 * accepted[0], 100 * accepted[1], 100 * kept[0] / scale, 100 * kept[1] / scale


def against_shipped(runs: Runs, recipe: str) -> list[Figure]:
    """Return by how much the shipped recipe gains more than another one on later code, over the seeds that both have."""
    seeds = sorted(runs.get(SHIPPED, {}).keys() & runs[recipe].keys())
    if not seeds:
        return []
    last = {name: [[g for g in runs[name][seed] if g.ground == "later"][-1] for seed in seeds] for name in (recipe, SHIPPED)}
    other, own = (together([one.trained for one in found]) for found in last.values())
    name, rows = f"{SHIPPED} above {recipe}: later", []
    for metric, unit, scale in (("accepted", "points", 100.0), ("kept", "characters", 1.0)):
        value, width = gains.gain(other.per(metric), own.per(metric))
        least = 0.0 if recipe == CONTROL and metric == "accepted" else None
        low = bound(f"{name}, {metric}, low", scale * (value - width), unit, least=least)
        rows += [figure(f"{name}, {metric}", scale * value, unit), low]
    return rows
