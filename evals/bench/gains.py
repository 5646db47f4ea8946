"""What a trained model gains on the base, by recipe, ground and number of interactions: intervals, figures and targets."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from evals.bench.figures import Figure, figure
from evals.developers import ExpectedOutcome, Pause
from evals.grounds import Ground
from evals.statistics import margin, ratio

SHIPPED, CONTROL = "settled", "control"
"""The recipe that the settings ship, and the one without developers."""
MEASURED_AFTER = 7200
"""Interactions from which on the shipped recipe has targets."""
Measure = Literal["accepted", "kept"]


@dataclass(frozen=True)
class Gain:
    """Outcomes at the same places of the base at its best temperature and of the trained model as served, [places] each."""

    ground: Ground
    interactions: int
    """Interactions that the model has learnt from."""
    users: Sequence[str]
    accepted: tuple[Sequence[float], Sequence[float]]
    """Expected accepts."""
    kept: tuple[Sequence[float], Sequence[float]]
    """Expected kept characters."""


def gain_of(
    ground: Ground,
    interactions: int,
    pauses: Sequence[Pause],
    before: Sequence[ExpectedOutcome],
    after: Sequence[ExpectedOutcome],
) -> Gain:
    """Return the outcomes of base and trained model at the same pauses."""
    users = [pause.developer.name for pause in pauses]
    accepted = [o.accepted for o in before], [o.accepted for o in after]
    return Gain(ground, interactions, users, accepted, ([o.kept_characters for o in before], [o.kept_characters for o in after]))


def difference(gains: Sequence[Gain], measure: Measure) -> tuple[float, float]:
    """Return the gain per request over the users of all seeds, and half the width of its confidence interval."""
    sums: dict[tuple[int, str], list[float]] = defaultdict(lambda: [0.0, 0.0])
    for seed, gain in enumerate(gains):
        for user, before, after in zip(gain.users, *getattr(gain, measure), strict=True):
            sums[seed, user][0] += after - before
            sums[seed, user][1] += 1
    changes, places = np.array(list(sums.values())).T
    estimate, influence = ratio(changes, places)
    return estimate, margin(influence)


def base_mean(gains: Sequence[Gain], measure: Measure) -> float:
    """Return the base's mean per request over all seeds."""
    return float(np.mean(np.concatenate([getattr(gain, measure)[0] for gain in gains])))


def figures(runs: Mapping[str, Sequence[Sequence[Gain]]]) -> list[Figure]:
    """Return the figures of each recipe by ground and number of interactions, and the targets of the shipped one.

    Args:
        runs: for each recipe, the gains of each seed.
    """
    rows: list[Figure] = []
    for recipe, seeds in runs.items():
        cells: dict[tuple[Ground, int], list[Gain]] = defaultdict(list)
        for gain in (gain for gains in seeds for gain in gains):
            cells[gain.ground, gain.interactions].append(gain)
        for (ground, interactions), gains in cells.items():
            rows += cell_figures(recipe, ground, interactions, gains)
    return [*rows, *against_control(runs)]


def cell_figures(recipe: str, ground: Ground, interactions: int, gains: Sequence[Gain]) -> list[Figure]:
    """Return the figures of a recipe on a ground after some interactions."""
    name = f"{recipe}: {ground} after {interactions}"
    (accepted, width), (characters, kept_width) = difference(gains, "accepted"), difference(gains, "kept")
    more = 100 * characters / (base_mean(gains, "kept") or 1.0)
    target = recipe == SHIPPED and interactions >= MEASURED_AFTER
    later, new = target and ground == "later", target and ground == "new"
    return [
        figure(f"{name}, accepted by the base", 100 * base_mean(gains, "accepted"), "%"),
        figure(f"{name}, accepted", 100 * accepted, "points", least=2.0 if later else None),
        figure(f"{name}, low", 100 * (accepted - width), "points", least=0.0 if later else -0.5 if new else None),
        figure(f"{name}, high", 100 * (accepted + width), "points"),
        figure(f"{name}, kept characters", more, "% of the base's", least=15.0 if later else None),
        figure(f"{name}, half of their interval", 100 * kept_width / (base_mean(gains, "kept") or 1.0), "%"),
    ]


def against_control(runs: Mapping[str, Sequence[Sequence[Gain]]]) -> list[Figure]:
    """Return by how much the shipped recipe gains more than the control on later code; nothing without both."""
    if not {SHIPPED, CONTROL} <= runs.keys():
        return []
    last = [[[g for g in gains if g.ground == "later"][-1] for gains in runs[recipe]] for recipe in (SHIPPED, CONTROL)]
    pairs = [
        Gain("later", a.interactions, a.users, (b.accepted[1], a.accepted[1]), (b.kept[1], a.kept[1]))
        for a, b in zip(*last, strict=True)
    ]
    estimate, width = difference(pairs, "accepted")
    return [
        figure(f"{SHIPPED} above {CONTROL}: later, accepted", 100 * estimate, "points"),
        figure(f"{SHIPPED} above {CONTROL}: later, low", 100 * (estimate - width), "points", least=0.0),
    ]
