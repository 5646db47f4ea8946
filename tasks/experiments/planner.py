"""What a team can find out: python -m tasks.experiments.planner [--days N]

The smallest gain of acceptance that an A/B test finds with a chance of 80 % in a day, a week and four weeks, by each design, from
recent traffic. No model is compared: users, or blocks of time, are divided at random many times, as a test of equal versions
would, and the gate's own comparison tells the error.

    within      what a user's requests differ by chance: falls with time as 1 / sqrt(t)
    between     what users differ beyond their history: stays, in a test by user; is not there in a crossover
"""

import argparse
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import polars as pl

from evals.statistics import Regression, by_user, deciders, power, weighted_fit, widen, within_user
from infra import settings as configuration
from infra.records import Plan
from infra.records.experiments import Design
from infra.settings import Settings
from infra.store import ObjectStore
from tasks.experiments.decide import TOLERATED_SHARE, Look
from tasks.experiments.metrics import values
from tasks.experiments.plan import make_plan
from tasks.labels.partitions import join_partition, merge_partitions, plan_window
from tasks.labels.window import Window

DAY = 86_400.0
DURATIONS = {"a day": 1.0, "a week": 7.0, "four weeks": 28.0}
"""Days of the tests that are planned."""
GAINS = (0.05, 0.1, 0.2)
CHANCE = 0.8
DRAWS = 30
"""Random divisions from which an error is estimated."""
HOPELESS = 0.5
"""Smallest gain, as a share, beyond which no test is worth its time."""
MOST_DAYS = 28.0


@dataclass(frozen=True, eq=False)
class Traffic:
    """Recent requests: a row for each user, a column for each block of time."""

    accepted: np.ndarray
    """[U, B]"""
    labelled: np.ndarray
    """[U, B], requests that were judged or had nothing to show."""
    requests: np.ndarray
    """[U, B]"""
    days: float
    """Length of all blocks."""

    @property
    def acceptance(self) -> float:
        """Accepts per labelled request."""
        return float(self.accepted.sum() / max(self.labelled.sum(), 1.0))


@dataclass(frozen=True)
class Prospect:
    """What a test by one design finds."""

    design: Design
    users: int
    obstacle: str
    """Why such a test cannot end with a verdict; empty where it can."""
    smallest: dict[str, float]
    """By duration, the gain found with a chance of 80 %, as a share of the acceptance."""
    chances: dict[str, dict[float, float]]
    """By duration, the chance to find each of GAINS."""


def read_traffic(store: ObjectStore, settings: Settings, now: float, days: float) -> Traffic:
    """Read the requests of the last days that a test would count; users with less history than a test asks for are left out."""
    experiment, collect = settings.experiment, settings.collect
    plan = make_plan(experiment, collect)
    begin, until = now - days * DAY, now - collect.settle_seconds
    listed = plan_window(store, Window(since=begin, until=until, oldest=begin, known={}), now, collect.join_seconds)
    rows, _ = merge_partitions([join_partition(store, partition, tokens=False) for partition in listed.partitions])
    rows = rows.filter(~pl.col("opted_out"), ~pl.col("pinned"), ~pl.col("exploring"), pl.col("time").is_between(begin, until))
    rows = rows.filter(pl.len().over("user") >= experiment.min_history_requests).with_columns(served=pl.lit(True))
    block = ((pl.col("time") - begin) // experiment.block_seconds).cast(pl.Int64)
    names = ("accepted", "labelled", "requests")
    sums = rows.select("user", block=block, **{name: values(plan)[name] for name in names})
    sums = sums.group_by("user", "block").agg(pl.col(names).sum())
    users = sums["user"].unique().sort()
    at = np.searchsorted(users.to_numpy(), sums["user"].to_numpy()), sums["block"].to_numpy()
    table = np.zeros((len(names), users.len(), math.ceil(days * DAY / experiment.block_seconds)))
    for number, name in enumerate(names):
        table[number][at] = sums[name].to_numpy()
    return Traffic(table[0], table[1], table[2], days)


def prospects(traffic: Traffic, plan: Plan, seed: int = 0) -> tuple[Prospect, Prospect]:
    """Return what a test by user and what a crossover of this team finds."""
    draw = np.random.default_rng(seed)
    count = min(plan.tolerated_users, math.ceil(len(traffic.accepted) * TOLERATED_SHARE))
    within = _error([_crossover(traffic, draw) for _ in range(DRAWS)], count)
    apart = _error([_by_user(traffic, draw) for _ in range(DRAWS)], count)
    # The second half of the traffic has half of its time: there, what is within users has twice its variance.
    between = math.sqrt(max(0.0, apart.error**2 - 2 * within.error**2))
    return (
        _prospect("by_user", traffic, plan, within.error, between, apart.shift),
        _prospect("crossover", traffic, plan, within.error, 0.0, within.shift),
    )


@dataclass(frozen=True)
class _Error:
    error: float
    """Standard error of the difference of acceptance."""
    shift: float
    """Standard errors by which the users who favour a difference most move it."""


def _by_user(traffic: Traffic, draw: np.random.Generator) -> Regression:
    half = traffic.accepted.shape[1] // 2
    before, during = ([table.sum(axis=1) for table in (y, n)] for y, n in (_part(traffic, 0, half), _part(traffic, half, None)))
    treated = draw.permutation(len(traffic.accepted)) % 2 == 1
    return by_user(treated, during[0], during[1], before[0], before[1])


def _part(traffic: Traffic, begin: int, end: int | None) -> tuple[np.ndarray, np.ndarray]:
    return traffic.accepted[:, begin:end], traffic.labelled[:, begin:end]


def _crossover(traffic: Traffic, draw: np.random.Generator) -> Regression:
    arm = draw.random(traffic.accepted.shape) < 0.5
    counted, requests = (((table * ~arm).sum(axis=1), (table * arm).sum(axis=1)) for table in _part(traffic, 0, None))
    return within_user(counted, requests)


def _error(divisions: Sequence[Regression], count: int) -> _Error:
    found = [(rows, fit) for rows in divisions if (fit := weighted_fit(rows))]
    if not found:
        return _Error(math.inf, 0.0)
    shifts = []
    for rows, (estimate, error) in found:
        without = weighted_fit(rows.without(deciders(rows, count, 1)))
        shifts.append((estimate - without[0]) / error if without else 0.0)
    return _Error(math.sqrt(float(np.mean([fit[1] ** 2 for _, fit in found]))), float(np.mean(shifts)))


def _prospect(design: Design, traffic: Traffic, plan: Plan, within: float, between: float, shift: float) -> Prospect:
    users = len(traffic.accepted)
    units = users if design == "crossover" else users // 2
    errors = widen(NormalDist().inv_cdf(1 - Look(plan, last=True).gain_alpha / 2), max(users - 2, 1))
    found = {name: math.sqrt(between**2 + within**2 * traffic.days / days) for name, days in DURATIONS.items()}
    base = max(traffic.acceptance, 1e-9)
    smallest = {name: (errors + shift + NormalDist().inv_cdf(CHANCE)) * error / base for name, error in found.items()}
    chances = {
        name: {gain: power(gain * base - shift * error, error, errors) if math.isfinite(error) else 0.0 for gain in GAINS}
        for name, error in found.items()
    }
    lacks = f"{units} users{'' if design == 'crossover' else ' an arm'}, experiment.min_users asks for {plan.min_users}"
    return Prospect(design, users, lacks if units < plan.min_users else "", smallest, chances)


def advice(found: Sequence[Prospect], traffic: Traffic, plan: Plan) -> list[str]:
    """Return what to set, in lines."""
    possible = [p for p in found if not p.obstacle]
    best = min(possible, key=lambda p: p.smallest["four weeks"], default=None)
    if best is None or not best.smallest["four weeks"] <= HOPELESS:
        return [
            f"No test finds a gain of {HOPELESS:.0%} in four weeks. Let more developers take part (serving.terms.experiments),",
            'or ship what is surely not much worse: experiment.mode = "non_inferiority", with margins above these figures.',
        ]
    by_user_test = next((p for p in possible if p.design == "by_user"), None)
    if by_user_test and by_user_test.smallest["a week"] <= 1.25 * best.smallest["a week"]:
        best = by_user_test  # the simpler design, where it finds nearly as much
    days = next((days for name, days in DURATIONS.items() if best.smallest[name] <= max(GAINS)), MOST_DAYS)
    share_of_day = traffic.requests.sum() / max(traffic.days, 1e-9) / 2
    return [
        "Set, or leave what is there already:",
        "    [experiment]",
        f'    design = "{best.design}"',
        f"    planned_requests = {max(round(0.9 * days * share_of_day), plan.min_requests)}",
        f"    max_seconds = {days * DAY:.0f}",
    ]


def page(found: Sequence[Prospect], traffic: Traffic, plan: Plan) -> str:
    """Return the prospects and the advice as text."""
    per_day = traffic.requests.sum() / max(traffic.days, 1e-9)
    lines = [
        f"{len(traffic.accepted)} users with a history, {per_day:.0f} requests a day in {traffic.days:g} days, "
        f"acceptance {traffic.acceptance:.1%}; level {plan.alpha:g}, mode {plan.mode}"
    ]
    for prospect in found:
        lines.append(f"\n{prospect.design}{': no verdict: ' + prospect.obstacle if prospect.obstacle else ''}")
        for name in DURATIONS if not prospect.obstacle else ():
            chances = ", ".join(f"+{gain:.0%} in {chance:.0%}" for gain, chance in prospect.chances[name].items())
            lines.append(f"    in {name:<10} finds +{prospect.smallest[name]:.0%} in {CHANCE:.0%} of the tests; {chances}")
    return "\n".join([*lines, "", *advice(found, traffic, plan)])


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what the team can find out. Exit code 1 without requests to plan from."""
    parser = argparse.ArgumentParser(prog="python -m tasks.experiments.planner", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--days", type=float, default=7.0, help="days of recent traffic to plan from (default %(default)s)")
    options = parser.parse_args(arguments)
    settings = configuration.load()
    traffic = read_traffic(ObjectStore.connect(settings.store), settings, time.time(), options.days)
    if not traffic.labelled.sum():
        print(f"planner: no request of the last {options.days:g} days that a test would count; try --days 28", file=sys.stderr)
        return 1
    plan = make_plan(settings.experiment, settings.collect)
    print(page(prospects(traffic, plan), traffic, plan))
    return 0


if __name__ == "__main__":
    sys.exit(main())
