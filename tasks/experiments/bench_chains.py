"""Chains of simulated cycles: whether a long series of tests makes champions worse than the base it began with."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import repeat

import numpy as np

from evals.bench.figures import Figure, figure
from evals.multiple import budgeted_level
from infra.settings.schema import Collect, Experiment
from tasks.experiments.plan import make_plan
from tasks.experiments.simulate import Outcome, World, simulate

CYCLES = 200
TEAM = World(users=40, each=100.0, history=100.0, blocks=16)
LOOKS = 4
SETTINGS = Experiment(design="crossover", planned_requests=2000, max_seconds=86_400, min_requests=200, min_users=5)
MOST_LOST = SETTINGS.max_lost_children


@dataclass(frozen=True)
class Drift:
    """What an update does to a version, as a share of its acceptance."""

    name: str
    mean: float
    spread: float
    budget: bool = False
    """Whether the tests share an error budget."""


DRIFTS = (
    Drift("noise", 0.0, 0.01),
    Drift("one_percent_worse", -0.01, 0.005),
    Drift("one_percent_worse_with_budget", -0.01, 0.005, budget=True),
)


@dataclass(frozen=True)
class End:
    """The end of a chain."""

    quality: float
    """Acceptance of the last champion over that of the base."""
    promotions: int
    surely_worse: bool
    """Whether a last test, of the same size, finds the champion surely worse than the base."""


@dataclass
class _Line:
    """The versions of a chain by number, the base being 0."""

    quality: list[float]
    parent: list[int]
    promising: list[bool]
    """Whether a version may be trained further while its champion serves."""
    tested: list[int]
    """The champion that each was tested against."""


def run_chain(drift: Drift, seed: int) -> End:
    """Return the end of a chain of CYCLES tests through the gate's own decision."""
    draw, line, champion = np.random.default_rng(seed), _Line([1.0], [-1], [False], [-1]), 0
    found: list[bool] = []
    for cycle in range(CYCLES):
        parent = _parent(line, champion)
        quality = line.quality[parent] * (1 + drift.mean + drift.spread * draw.standard_normal())
        alpha = budgeted_level(found, SETTINGS.alpha) if drift.budget else SETTINGS.alpha
        ended = _test(quality / line.quality[champion], alpha, seed * 10_007 + cycle)
        line.quality.append(quality)
        line.parent.append(parent)
        line.promising.append(ended.promising)
        line.tested.append(champion)
        found.append(ended.verdict == "promote")
        if found[-1]:
            champion = len(line.quality) - 1
    last = _test(1 / line.quality[champion], SETTINGS.alpha, seed * 10_007 + CYCLES)
    return End(line.quality[champion], sum(found), last.fixed)


def _test(ratio: float, alpha: float, seed: int) -> Outcome:
    plan = make_plan(SETTINGS.model_copy(update={"alpha": alpha}), Collect())
    return simulate(replace(TEAM, accepted=ratio), plan, seed, looks=LOOKS)


def _parent(line: _Line, champion: int) -> int:
    """Return the version that training goes on from, as tasks/labels/parent.py chooses it."""
    for version in range(len(line.quality) - 1, champion, -1):
        children = [child for child, parent in enumerate(line.parent) if parent == version][-MOST_LOST:]
        lost = len(children) == MOST_LOST and not any(line.promising[child] for child in children)
        if line.promising[version] and line.tested[version] == champion and not lost:
            return version
    return champion


def chains(pool: ProcessPoolExecutor, count: int) -> Iterator[list[Figure]]:
    """Run chains of every drift; yield the figures of each."""
    for drift in DRIFTS:
        yield _figures(drift, list(pool.map(run_chain, repeat(drift), range(count))))


def _figures(drift: Drift, ends: Sequence[End]) -> list[Figure]:
    name, count, level = f"experiments.chain.{drift.name}", len(ends), SETTINGS.alpha
    bound = level + 3 * (level * (1 - level) / count) ** 0.5
    worse = sum(end.surely_worse for end in ends) / count
    quality = np.array([end.quality for end in ends])
    return [
        figure(f"{name}.surely_worse", worse, f"of {count} chains of {CYCLES} cycles", most=bound),
        figure(f"{name}.quality", float(quality.mean()), "of the base's acceptance, mean of the last champions"),
        figure(f"{name}.lowest", float(np.quantile(quality, 0.05)), "of the base's acceptance, 5 % of the chains end below"),
        figure(f"{name}.promotions", float(np.mean([end.promotions for end in ends])), f"of {CYCLES} tests, mean"),
    ]
