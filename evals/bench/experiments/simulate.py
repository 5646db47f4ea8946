"""Simulated A/B tests, block of time by block, through the gate's own decision: for the bench and for the planner.

A user u has a taste p_u, the chance that a shown completion is accepted, and an activity. In each block of time they make
requests, of which a part shows something, of which a part is judged, of which a part is accepted. A World says what differs
between the arms, and what goes wrong.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from infra.model import time_saved
from infra.records import Arm, ExperimentRecord, Plan, VerdictName
from infra.settings.schema import Collect, Experiment
from tasks.experiments.counting.metrics import SUMS
from tasks.experiments.counting.totals import ARMS, CROWD, MADE, NAMED, QUARTERS, TORN, UNCAPPED, ArmTotals
from tasks.experiments.planning.plan import make_plan
from tasks.experiments.verdict.decide import decide
from tasks.experiments.verdict.designs import compare_rates
from tasks.statistics.ratios import Difference, difference

CHARACTERS = 12.0  # mean accepted characters of an accept
UNPLEASANT = 0.05
"""Chance that a completion that is not accepted is dismissed, and that it is rejected before it can have been read."""
LABELS = ("judged", "decided", "accepted", "characters", "annoyed", "cancelled", "quick", "length", "saved")
"""Sums that are known with the labels."""
SHAPE = 2.5
"""Of the gamma distribution of accepted characters: their standard deviation is 0.63 of their mean, as with
`experiment.max_characters` on the demo's accepts (infra/docs/measurements.md)."""


@dataclass(frozen=True)
class World:
    """A team, a challenger, and what goes wrong. Factors are of the challenger over the champion."""

    users: int = 300
    each: float = 133.0  # requests of a user during the whole test, on average
    history: float = 133.0  # requests of a user before the test, on average
    shown: float = 0.6  # share of requests that show something
    taste: float = 0.27  # mean chance that a shown completion is accepted
    spread: float = 0.5  # standard deviation of the taste between users, as a share of its mean
    restless: float = 0.3  # standard deviation of log activity between history and test, and between blocks
    share: float = 0.5  # share of users on the challenger's arm; of a crossover, of their blocks of time
    blocks: int = 40  # blocks of time of the test; a crossover draws the arm anew for each
    accepted: float = 1.0  # factor of accepts per shown completion
    visible: float = 1.0  # factor of shown completions
    requests: float = 1.0  # factor of requests; accepts a user stay the same
    fading: bool = False  # whether the gain fades to nothing during the test
    answered: float = 0.9  # share of shown completions that are judged
    editors: tuple[tuple[float, float], ...] = ()  # share of users of each editor, and what it reports of `answered`; (): one
    judged: float = 1.0  # factor of it on the champion's arm
    lost_accepts: float = 0.0  # share of accepts on the champion's arm that no report reaches
    lost_rejections: float = 0.0  # the same of rejections on the challenger's arm
    late: float = 0.0  # part of the test by which the champion's labels come later
    liars: int = 0  # users who know their arm and accept all of the challenger; in a crossover, nothing of the champion
    named: bool = False  # whether users share a credential that names them; liars do
    lost: float = 0.0  # share of users, those with the lowest taste, who drop out when they meet the challenger
    both: int = 0  # users of the champion's arm who were served by both arms; in a crossover, within blocks of time
    cancels: float = 1.0  # factor of explicit cancels and of rejections under 750 ms
    silent: float = 0.0  # share of the challenger's requests that it answers with nothing
    failures: float = 0.0  # share of the challenger's requests that fail, and are not accepted
    slow: float = 0.0  # share of the challenger's requests that come later than the median, more than half
    carry_over: float = 0.0  # part of the previous block's version in the first half of a block


@dataclass(frozen=True)
class Outcome:
    """How a simulated test ended."""

    verdict: VerdictName
    share: float  # part of the planned time after which it ended
    promising: bool
    covered: bool  # whether the interval of acceptance, if there is one, holds zero
    fixed: bool  # whether a plain test of acceptance at the planned end, with all of alpha, finds a gain in the same requests
    reason: str


class Simulation:
    """One test: all of its requests, drawn at once."""

    def __init__(self, world: World, design: str, draw: np.random.Generator, team: np.random.Generator | None = None) -> None:
        """Draw the requests; `team`: what the users' tastes are drawn by, for several tests of the same users."""
        self.world, self.design, users, blocks = world, design, world.users, world.blocks
        concentration = (1 - world.taste) / world.taste / world.spread**2 - 1
        self.taste = (team or draw).beta(world.taste * concentration, (1 - world.taste) * concentration, users)
        activity = draw.gamma(2.0, 0.5, users)
        self.arm, self.editor = self._assign(draw), np.zeros(users, dtype=int)
        reported = np.ones((users, 1))
        if world.editors:
            shares, reports = np.array(world.editors).T
            self.editor = draw.choice(len(shares), users, p=shares)
            reported = reports[self.editor][:, None]
        self.answered = world.answered * reported
        then = activity * np.exp(draw.normal(0, world.restless, users))
        rate = then[:, None] * np.exp(draw.normal(0, world.restless, (users, blocks))) / blocks
        factor = np.where(self.arm, world.requests, 1.0) * ~self._lost()
        self.requests = draw.poisson(world.each * rate * factor)
        nobody = np.zeros((users, 1), dtype=bool)
        earlier = draw.poisson(world.history * activity)[:, None]
        self.before = _draw(draw, world, earlier, self.taste[:, None], world.shown, self.answered, nobody)
        first, later = self._halves(draw)
        self.halves = {name: np.stack([first[name], later[name]]) for name in first}
        self.sums = self._summed()

    def _assign(self, draw: np.random.Generator) -> np.ndarray:
        """Return whether the challenger serves, [U, B]."""
        shape = self.world.users, self.world.blocks
        if self.design == "crossover":
            return draw.random(shape) < self.world.share
        arm = np.repeat((draw.random(self.world.users) < self.world.share)[:, None], shape[1], axis=1)
        (champions,) = np.nonzero(~arm[:, 0])
        arm[champions[: self.world.both], ::2] = True
        return arm

    def _lost(self) -> np.ndarray:
        """Return where a user makes no request, [U, B]."""
        among = self.taste[self.arm.any(axis=1)]
        lowest = np.quantile(among, self.world.lost) if self.world.lost and among.size else -1.0
        return self.arm & (self.taste < lowest)[:, None]

    def _halves(self, draw: np.random.Generator) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Return the sums of the first and of the second half of every block, [U, B] each."""
        world, arm = self.world, self.arm
        early = draw.binomial(self.requests, 0.5)
        previous = np.concatenate([arm[:, :1], arm[:, :-1]], axis=1)
        halves = []
        for requests, carried in ((early, world.carry_over), (self.requests - early, 0.0)):
            treated = (1 - carried) * arm + carried * previous
            age = np.linspace(0, 1, world.blocks)[None, :] if world.fading else 0.0
            gain = 1 + (world.accepted - 1) * (1 - age) * treated
            chance = self.taste[:, None] * gain * (1 - world.failures * arm) / np.where(arm, world.requests, 1.0)
            (liars,) = np.nonzero(arm.any(axis=1) if self.design == "crossover" else arm[:, 0])
            chance[liars[: world.liars]] = arm[liars[: world.liars]]
            shown = world.shown * (1 + (world.visible - 1) * treated) * (1 - world.silent * arm)
            judged = self.answered * np.where(arm, 1.0, world.judged)
            lost = world.lost_accepts * ~arm, world.lost_rejections * arm
            halves.append(_draw(draw, world, requests, chance, shown, judged, arm, lost))
        return halves[0], halves[1]

    def _summed(self) -> dict[str, np.ndarray]:
        """Return every sum after each number of blocks, [arm, half of a block, B + 1, U]."""
        turns = self.requests > 0
        torn = turns * (np.arange(self.world.users) < self.world.both)[:, None]
        whole = {name: turns * (np.arange(self.world.blocks) % len(QUARTERS) == n) for n, name in enumerate(QUARTERS)}
        whole |= {TORN: torn * (self.design == "crossover"), NAMED: self.requests * self.world.named}
        whole |= {CROWD: np.zeros_like(self.requests)}
        parts = self.halves | {name: np.stack([values, np.zeros_like(values)]) for name, values in whole.items()}
        arms = np.stack([~self.arm, self.arm])[:, None]
        sums = {}
        for name, values in parts.items():
            sums[name] = np.zeros((2, 2, self.world.blocks + 1, self.world.users))
            np.cumsum(np.swapaxes(values[None] * arms, -1, -2), axis=2, out=sums[name][:, :, 1:])
        return sums

    def totals(self, until: int) -> ArmTotals:
        """Return the totals after so many blocks."""
        late = round(self.world.late * self.world.blocks)  # blocks by which the champion's labels come later
        middle, present = (until + 1) // 2, self.requests[:, :until].any(axis=1)
        met = slice(None) if present.all() else np.flatnonzero(present)
        during: dict[Arm, dict[str, np.ndarray]] = {arm: {} for arm in ARMS}
        later: dict[Arm, dict[str, np.ndarray]] = {arm: {} for arm in ARMS}
        in_block: dict[Arm, dict[str, np.ndarray]] = {arm: {} for arm in ARMS}
        for number, arm in enumerate(ARMS):
            for name, sums in self.sums.items():
                known = max(until - late, 0) if arm == "champion" and name in LABELS else until
                first, second = sums[number, :, known][:, met]
                during[arm][name] = first + second
                if name not in UNCAPPED:
                    later[arm][name] = first + second - sums[number, :, min(middle, known)][:, met].sum(axis=0)
                    in_block[arm][name] = second
            for part in (during, later, in_block):
                part[arm]["labelled"] = part[arm]["requests"] - part[arm]["visible"] + part[arm]["judged"]
        before = {name: values[met, 0] for name, values in self.before.items()}
        for arms in (during.values(), later.values(), in_block.values(), (before,)):
            for of_arm, lacking in zip(arms, unanswered(tuple(arms), self.editor[met]), strict=True):
                of_arm["unanswered"] = lacking
        return ArmTotals(during, later, before, self._absent(present), in_block=in_block)

    def _absent(self, met: np.ndarray) -> dict[Arm, int]:
        if self.design == "crossover":
            return {}
        known, treated = ~met & (self.before["requests"][:, 0] > 0), self.arm[:, 0]
        return {"champion": int((known & ~treated).sum()), "challenger": int((known & treated).sum())}


def unanswered(arms: Sequence[Mapping[str, np.ndarray]], client: np.ndarray) -> list[np.ndarray]:
    """Return the sum `unanswered` of metrics.CHECKED of each arm, [U], from its `visible` and `judged`.

    Args:
        client: the number of each user's client, [U].
    """
    reports = np.sum([sums["judged"] for sums in arms], axis=0) > 0
    due = [np.where(reports, sums["visible"], 0.0) for sums in arms]
    missing = [np.where(reports, sums["visible"] - sums["judged"], 0.0) for sums in arms]
    usual = np.bincount(client, np.sum(missing, axis=0)) / np.maximum(np.bincount(client, np.sum(due, axis=0)), 1.0)
    return [lacking - usual[client] * shown for lacking, shown in zip(missing, due, strict=True)]


def _draw(
    draw: np.random.Generator,
    world: World,
    requests: np.ndarray,
    chance: np.ndarray,
    shown: np.ndarray | float,
    judged: np.ndarray | float,
    arm: np.ndarray,
    lost: tuple[np.ndarray, np.ndarray] | None = None,
) -> dict[str, np.ndarray]:
    """Return every sum of requests, [U, B]; `lost`: the shares of accepts and of rejections that no report reaches."""
    visible = draw.binomial(requests, np.minimum(shown, 1.0))
    answers = draw.binomial(visible, judged)
    accepted = draw.binomial(answers, np.clip(chance, 0, 1))
    annoyed = answers - accepted
    if lost and (world.lost_accepts or world.lost_rejections):
        accepted, annoyed = draw.binomial(accepted, 1 - lost[0]), draw.binomial(annoyed, 1 - lost[1])
        answers = accepted + annoyed
    unpleasant = np.minimum(UNPLEASANT * np.where(arm, world.cancels, 1.0), 1.0)
    slow = world.slow * arm
    early, late = draw.binomial(requests, 0.5 + slow), draw.binomial(requests, 0.05 + 0.2 * slow)
    zeros = np.zeros(requests.shape)
    sums = {
        **{"requests": requests, MADE: requests, "labelled": answers + requests - visible},
        **{"judged": answers, "decided": answers, "visible": visible, "accepted": accepted, "annoyed": annoyed, "shown": visible},
        "characters": np.where(accepted > 0, draw.standard_gamma(SHAPE * np.maximum(accepted, 1)) * (CHARACTERS / SHAPE), 0.0),
        **{"cancelled": draw.binomial(annoyed, unpleasant), "quick": draw.binomial(annoyed, unpleasant)},
        **{"empty": requests - visible, "failed": draw.binomial(requests, world.failures * arm) if world.failures else zeros},
        **{"ttft_p50": early, "ttft_p95": late, "total_p50": early, "total_p95": late, "closed": zeros, "unanswered": zeros},
        "length": answers * 20.0 + np.sqrt(answers) * 20.0 * draw.standard_normal(requests.shape),
    }
    sums["saved"] = time_saved.accepting(sums["characters"], 0.0) - time_saved.reading(20.0) * answers
    return {name: np.asarray(values, dtype=float) for name, values in sums.items()}


assert {*SUMS, *UNCAPPED} == {*Simulation(World(users=4, blocks=2), "by_user", np.random.default_rng(0)).sums}


def simulate(world: World, plan: Plan, seed: int, *, looks: int = 10) -> Outcome:
    """Return how the gate ends a simulated test that it looks at so many times."""
    simulation = Simulation(world, plan.design, np.random.default_rng(seed))
    test = ExperimentRecord(id="e", champion="1", challenger="2", share=0.5, started=0.0, plan=plan)
    for look in range(1, looks + 1):
        until = round(look * world.blocks / looks)
        verdict = decide(test, plan, simulation.totals(until), plan.max_seconds * look / looks)
        if verdict.verdict != "undecided":
            covered = verdict.low is None or verdict.high is None or verdict.low <= 0 <= verdict.high
            fixed = found_at_once(simulation, plan)
            return Outcome(verdict.verdict, look / looks, verdict.promising, covered, fixed, verdict.reason)
    raise AssertionError("the last look ends a test")


def chance_bound(level: float, count: int) -> float:
    """Return the share of `count` tests that chance exceeds once in a thousand times: three errors above its level."""
    return level + 3 * (level * (1 - level) / count) ** 0.5


def found_at_once(simulation: Simulation, plan: Plan) -> bool:
    """Return whether one look at the end, at acceptance alone, finds a gain."""
    totals = simulation.totals(simulation.world.blocks)
    found = difference(compare_rates(totals.during, totals, "accepted", "shown", plan), plan.alpha, 1.0, last_look=True)
    return isinstance(found, Difference) and found.low > 0


def plan_for(world: World, settings: Experiment) -> Plan:
    """Return the plan of a test of the world's size, which its time ends."""
    sized = settings.model_copy(update={"planned_requests": max(round(world.users * world.each / 2), 1)})
    return make_plan(sized, Collect())
