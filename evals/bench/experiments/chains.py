"""Chains of simulated cycles: whether a long series of tests makes champions worse than the base it began with.

Where versions ship without inferiority, the base is the anchor: after each test its champion is compared with it on a small share
of half as many requests as a test has, by tasks/experiments/verdict/anchor.py; while they lean to a loss, a test asks for a gain.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import repeat
from typing import NamedTuple

import numpy as np

from evals.bench.experiments.simulate import Outcome, Simulation, World, chance_bound, simulate
from evals.bench.figures import Figure, Size, figure
from infra.records import Arm, ExperimentRecord, Plan
from infra.records.experiments import Mode
from infra.settings import Settings
from infra.settings.schema import Collect, Experiment
from tasks.experiments.counting.metrics import SUMS
from tasks.experiments.counting.totals import ARMS, UNCAPPED, ArmTotals
from tasks.experiments.moves.succession import plan_of_comparison
from tasks.experiments.planning.plan import make_plan
from tasks.experiments.verdict import anchor
from tasks.labels.parent import MAX_LOST_CHILDREN

CYCLES = Size(full=200, quick=20)  # tests of a chain
TEAM = World(users=40, each=100.0, history=100.0, blocks=16)
LOOKS = 4
SETTINGS = Experiment(design="crossover", planned_requests=2000, max_seconds=86_400, min_requests=200, min_users=5)


@dataclass(frozen=True)
class Drift:
    """What an update does to a version, as a share of its acceptance."""

    name: str
    mean: float
    spread: float
    mode: Mode = "superiority"  # mode of the tests
    anchor: bool = False  # whether champions are compared with the base


DRIFTS = (
    Drift("noise", 0.0, 0.01),
    Drift("one_percent_worse", -0.01, 0.005),
    Drift("noise_without_inferiority", 0.0, 0.01, mode="non_inferiority", anchor=True),
    Drift("one_percent_worse_without_inferiority", -0.01, 0.005, mode="non_inferiority", anchor=True),
)


@dataclass(frozen=True)
class End:
    """The end of a chain."""

    quality: float  # acceptance of the last champion over that of the base
    promotions: int
    surely_worse: bool  # whether a last test, of the same size, finds the champion surely worse than the base
    returns: int = 0  # how often the anchor came back


class _Version(NamedTuple):
    """A version of a chain; its number is its place, the base being 0."""

    quality: float = 1.0
    parent: int = -1
    promising: bool = False  # whether it may be trained further while its champion serves
    tested: int = -1  # the champion that it was tested against


class _Anchored:
    """The champions of a chain beside the base: their requests so far, each user's sums."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._plan: Plan = plan_of_comparison(Settings(experiment=SETTINGS))
        self._newest, self._sums = 0, dict[tuple[str, Arm, str], np.ndarray]()
        self.returns, self.leaning = 0, False

    def gives_way(self, champion: int, quality: float, cycle: int) -> bool:
        """Return whether the base is champion again after the requests of one more cycle."""
        self.leaning = False
        if not champion:
            return False
        world = replace(TEAM, accepted=quality, share=1 - self._plan.anchor_share, each=TEAM.each / 2)
        draw = np.random.default_rng((self._seed, cycle))
        totals = self._added(Simulation(world, "crossover", draw, np.random.default_rng(self._seed)), champion)
        record = ExperimentRecord(id="a", champion="0", challenger=str(champion), share=world.share, started=0.0)
        verdict = anchor.verdict_of(record, self._plan, totals)
        if verdict.verdict == "undecided":
            self.leaning = verdict.leaning
            return False
        self._newest, self._sums, self.returns = 0, {}, self.returns + 1
        return True

    def _added(self, found: Simulation, champion: int) -> ArmTotals:
        """Return the totals with these requests; the later part is that of the newest champion."""
        totals, met = found.totals(found.world.blocks), found.requests.any(axis=1)
        if champion != self._newest:
            self._sums = {key: sums for key, sums in self._sums.items() if key[0] != "later"}
        for part, by_arm in {"during": totals.during, "in_block": totals.in_block, "later": totals.during}.items():
            for arm in ARMS:
                for name, values in by_arm[arm].items():
                    sums = self._sums.setdefault((part, arm, name), np.zeros(len(met)))
                    sums[met] += values
        before = {name: np.zeros(len(met)) for name in totals.before}
        self._newest = champion

        def of(part: str, names: Sequence[str]) -> dict[Arm, dict[str, np.ndarray]]:
            return {arm: {name: self._sums[part, arm, name].copy() for name in names} for arm in ARMS}

        return ArmTotals(of("during", (*SUMS, *UNCAPPED)), of("later", SUMS), before, {}, in_block=of("in_block", SUMS))


def run_chain(drift: Drift, cycles: int, seed: int) -> End:
    """Return the end of a chain of tests through the gate's own decision."""
    draw, line, champion = np.random.default_rng(seed), [_Version()], 0
    found, beside = list[bool](), _Anchored(seed)
    for cycle in range(cycles):
        parent = _parent(line, champion)
        quality = line[parent].quality * (1 + drift.mean + drift.spread * draw.standard_normal())
        mode = "superiority" if beside.leaning else drift.mode
        ended = _test(quality / line[champion].quality, seed * 10_007 + cycle, mode)
        line.append(_Version(quality, parent, ended.promising, champion))
        found.append(ended.verdict == "promote")
        if found[-1]:
            champion = len(line) - 1
        if drift.anchor and beside.gives_way(champion, line[champion].quality, cycle):
            champion = 0
    last = _test(1 / line[champion].quality, seed * 10_007 + cycles)
    return End(line[champion].quality, sum(found), last.fixed, beside.returns)


def _test(ratio: float, seed: int, mode: Mode = "superiority") -> Outcome:
    plan = make_plan(SETTINGS.model_copy(update={"mode": mode}), Collect())
    return simulate(replace(TEAM, accepted=ratio), plan, seed, looks=LOOKS)


def _parent(line: Sequence[_Version], champion: int) -> int:
    """Return the version that training goes on from, as tasks/labels/parent.py chooses it."""
    for number in range(len(line) - 1, champion, -1):
        children = [child for child in line if child.parent == number][-MAX_LOST_CHILDREN:]
        lost = len(children) == MAX_LOST_CHILDREN and not any(child.promising for child in children)
        if line[number].promising and line[number].tested == champion and not lost:
            return number
    return champion


def chains(
    pool: ProcessPoolExecutor, count: int, cycles: int, ended: Callable[[Iterable[End]], Iterable[End]]
) -> Iterator[Figure]:
    """Run chains of every drift and yield their figures; `ended` passes on each end when it is known."""
    for drift in DRIFTS:
        yield from _figures(drift, list(ended(pool.map(run_chain, repeat(drift), repeat(cycles), range(count)))), cycles)


def _figures(drift: Drift, ends: Sequence[End], cycles: int) -> list[Figure]:
    name, count, level = f"experiments.chain.{drift.name}", len(ends), SETTINGS.alpha
    bound = chance_bound(level, count)
    worse = sum(end.surely_worse for end in ends) / count
    quality = np.array([end.quality for end in ends])
    return [
        figure(f"{name}.surely_worse", worse, f"of {count} chains of {cycles} cycles", most=bound),
        figure(f"{name}.quality", float(quality.mean()), "of the base's acceptance, mean of the last champions"),
        figure(f"{name}.lowest", float(np.quantile(quality, 0.05)), "of the base's acceptance, 5 % of the chains end below"),
        figure(f"{name}.promotions", float(np.mean([end.promotions for end in ends])), f"of {cycles} tests, mean"),
        figure(f"{name}.returns", float(np.mean([end.returns for end in ends])), "times the anchor came back, mean"),
    ]
