"""Simulated A/B tests, block of time by block, through the gate's own decision: for the bench and for the planner.

A user u has a taste p_u, the chance that a shown completion is accepted, and an activity. In each block of time they make
requests, of which a part shows something, of which a part is judged, of which a part is accepted. A World says what differs
between the arms, and what goes wrong.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from evals.statistics import Difference, difference
from infra.records import Arm, ExperimentRecord, Plan, VerdictName
from infra.settings.schema import Collect, Experiment
from tasks.experiments.decide import decide
from tasks.experiments.designs import compare_rates
from tasks.experiments.metrics import SUMS
from tasks.experiments.plan import make_plan, plan_of
from tasks.experiments.totals import ARMS, MADE, ArmTotals

CHARACTERS = 12.0
"""Mean accepted characters of an accept."""
SHAPE = 2.5
"""Of the gamma distribution of accepted characters: their standard deviation is 0.63 of their mean, as with
`experiment.max_characters` on the demo's accepts (infra/docs/measurements.md)."""


@dataclass(frozen=True)
class World:
    """A team, a challenger, and what goes wrong. Factors are of the challenger over the champion."""

    users: int = 300
    each: float = 133.0
    """Requests of a user during the whole test, on average."""
    history: float = 133.0
    """Requests of a user before the test, on average."""
    shown: float = 0.6
    """Share of requests that show something."""
    taste: float = 0.27
    """Mean chance that a shown completion is accepted."""
    spread: float = 0.5
    """Standard deviation of the taste between users, as a share of its mean."""
    restless: float = 0.3
    """Standard deviation of the logarithm of a user's activity between history and test, and between blocks."""
    blocks: int = 40
    """Blocks of time of the test; a crossover draws the arm anew for each."""
    accepted: float = 1.0
    """Factor of accepts per shown completion."""
    visible: float = 1.0
    """Factor of shown completions."""
    requests: float = 1.0
    """Factor of requests; accepts a user stay the same."""
    fading: bool = False
    """Whether the gain fades to nothing during the test."""
    judged: float = 1.0
    """Share of the champion's shown completions that are judged; the challenger's are all."""
    late: float = 0.0
    """Part of the test by which the champion's labels come later."""
    liars: int = 0
    """Made-up users on the challenger's arm, who accept everything."""
    lost: float = 0.0
    """Share of the challenger's users who drop out: those with the lowest taste."""
    both: int = 0
    """Users of the champion's arm who were served by both arms."""
    failures: float = 0.0
    """Share of the challenger's requests that fail, and are not accepted."""
    slow: float = 0.0
    """Share of the challenger's requests that come later than the median, more than half."""
    carry_over: float = 0.0
    """Part of the previous block's version in the first half of a block."""


@dataclass(frozen=True)
class Outcome:
    """How a simulated test ended."""

    verdict: VerdictName
    share: float
    """Part of the planned time after which it ended."""
    promising: bool
    covered: bool
    """Whether the interval of acceptance, if there is one, holds zero."""
    fixed: bool
    """Whether a plain test of acceptance at the planned end, with all of alpha, finds a gain in the same requests."""
    reason: str


class Simulation:
    """One test: all of its requests, drawn at once."""

    def __init__(self, world: World, design: str, draw: np.random.Generator) -> None:
        self.world, self.design, users, blocks = world, design, world.users, world.blocks
        concentration = (1 - world.taste) / world.taste / world.spread**2 - 1
        self.taste = draw.beta(world.taste * concentration, (1 - world.taste) * concentration, users)
        activity = draw.gamma(2.0, 0.5, users)
        self.arm = self._assign(draw)
        self.lost = self._lost()
        then = activity * np.exp(draw.normal(0, world.restless, users))
        rate = then[:, None] * np.exp(draw.normal(0, world.restless, (users, blocks))) / blocks
        factor = np.where(self.arm, world.requests, 1.0)
        self.requests = draw.poisson(world.each * rate * factor) * ~self.lost[:, None]
        self.before = self._draw(draw, draw.poisson(world.history * activity)[:, None], self.taste[:, None], world.shown, 1.0)
        first, later = self._halves(draw)
        self.halves = {name: np.stack([first[name], later[name]]) for name in first}

    def _assign(self, draw: np.random.Generator) -> np.ndarray:
        """Return whether the challenger serves, [U, B]."""
        shape = self.world.users, self.world.blocks
        if self.design == "crossover":
            return draw.random(shape) < 0.5
        arm = np.repeat((draw.random(self.world.users) < 0.5)[:, None], shape[1], axis=1)
        (champions,) = np.nonzero(~arm[:, 0])
        arm[champions[: self.world.both], ::2] = True
        return arm

    def _lost(self) -> np.ndarray:
        challengers = self.arm[:, 0]
        lowest = np.quantile(self.taste[challengers], self.world.lost) if self.world.lost and challengers.any() else -1.0
        return challengers & (self.taste < lowest)

    def _halves(self, draw: np.random.Generator) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Return the sums of the first and of the second half of every block, [U, B] each."""
        world, arm = self.world, self.arm
        early = draw.binomial(self.requests, 0.5)
        previous = np.concatenate([arm[:, :1], arm[:, :-1]], axis=1)
        halves = []
        for requests, carried in ((early, world.carry_over), (self.requests - early, 0.0)):
            treated = (1 - carried) * arm + carried * previous
            age = np.linspace(0, 1, world.blocks)[None, :] if world.fading else 0.0
            chance = self.taste[:, None] * (1 + (world.accepted - 1) * (1 - age) * treated) / np.where(arm, world.requests, 1.0)
            (challengers,) = np.nonzero(arm[:, 0] & ~self.lost)
            chance[challengers[: world.liars]] = 1.0
            shown = world.shown * (1 + (world.visible - 1) * treated)
            halves.append(
                self._draw(draw, requests, chance * (1 - world.failures * arm), shown, np.where(arm, 1.0, world.judged))
            )
        return halves[0], halves[1]

    def _draw(
        self,
        draw: np.random.Generator,
        requests: np.ndarray,
        chance: np.ndarray,
        shown: np.ndarray | float,
        judged: np.ndarray | float,
    ) -> dict[str, np.ndarray]:
        """Return every sum of these requests."""
        arm = self.arm if requests.shape == self.arm.shape else np.zeros(requests.shape, dtype=bool)
        visible = draw.binomial(requests, np.minimum(shown, 1.0))
        answers = draw.binomial(visible, judged)
        accepted = draw.binomial(answers, np.clip(chance, 0, 1))
        characters = np.where(accepted > 0, draw.gamma(SHAPE * np.maximum(accepted, 1), CHARACTERS / SHAPE), 0.0)
        slow = self.world.slow * arm
        sums = {
            **{
                "requests": requests,
                MADE: requests,
                "labelled": answers + requests - visible,
                "judged": answers,
                "visible": visible,
            },
            **{"accepted": accepted, "characters": characters, "annoyed": answers - accepted, "shown": visible},
            **{"empty": requests - visible, "failed": draw.binomial(requests, self.world.failures * arm)},
            **{"ttft_p50": draw.binomial(requests, 0.5 + slow), "ttft_p95": draw.binomial(requests, 0.05 + 0.2 * slow)},
            **{"total_p50": draw.binomial(requests, 0.5 + slow), "total_p95": draw.binomial(requests, 0.05 + 0.2 * slow)},
            "length": draw.gamma(np.maximum(answers, 1), 20.0) * (answers > 0),
        }
        return {name: np.asarray(values, dtype=float) for name, values in sums.items()}

    @cached_property
    def late(self) -> int:
        """Blocks by which the champion's labels come later."""
        return round(self.world.late * self.world.blocks)

    def totals(self, until: int) -> ArmTotals:
        """Return the totals after so many blocks."""
        known = np.arange(self.world.blocks) < until - self.late
        labelled = self.arm | known[None, :]
        parts = {name: self._labelled(name, halves, labelled)[..., :until] for name, halves in self.halves.items()}
        later = np.arange(until) >= until / 2
        during: dict[Arm, dict[str, np.ndarray]] = {arm: {} for arm in ARMS}
        newer: dict[Arm, dict[str, np.ndarray]] = {arm: {} for arm in ARMS}
        for arm in ARMS:
            mine = self.arm[:, :until] == (arm == "challenger")
            for name, (first, second) in parts.items():
                whole = (first + second) * mine
                during[arm][name] = whole.sum(axis=1)
                newer[arm][name] = (second * mine).sum(axis=1) if self.design == "crossover" else (whole * later).sum(axis=1)
        absent = self._absent(during)
        met = sum(sums["requests"] for sums in during.values()) > 0
        cut = {name: values[met, 0] for name, values in self.before.items()}
        during, newer = (
            {arm: {name: v[met] for name, v in sums.items()} for arm, sums in each.items()} for each in (during, newer)
        )
        return ArmTotals(during, newer, cut, absent)

    def _labelled(self, name: str, halves: np.ndarray, labelled: np.ndarray) -> np.ndarray:
        """Return a sum without what is not judged yet."""
        if name == "labelled":
            return halves - self.halves["judged"] * ~labelled
        return halves * labelled if name in ("judged", "accepted", "characters", "annoyed", "length") else halves

    def _absent(self, during: dict[Arm, dict[str, np.ndarray]]) -> dict[Arm, int]:
        if self.design == "crossover":
            return {}
        met = sum(sums["requests"] for sums in during.values()) > 0
        known = ~met & (self.before["requests"][:, 0] > 0)
        treated = self.arm[:, 0]
        return {"champion": int((known & ~treated).sum()), "challenger": int((known & treated).sum())}


assert {*SUMS, MADE} == {*Simulation(World(users=4, blocks=2), "by_user", np.random.default_rng(0)).before}


def simulate(world: World, settings: Experiment, seed: int, *, looks: int = 10, legacy: bool = False) -> Outcome:
    """Return how the gate ends a simulated test that it looks at so many times.

    Args:
        legacy: judge by the rule before plans were recorded.
    """
    simulation = Simulation(world, settings.design, np.random.default_rng(seed))
    plan = plan_for(world, settings, legacy)
    test = ExperimentRecord(id="e", champion="1", challenger="2", share=0.5, started=0.0, plan=plan)
    for look in range(1, looks + 1):
        until = round(look * world.blocks / looks)
        verdict = decide(test, plan, simulation.totals(until), plan.max_seconds * look / looks)
        if verdict.verdict != "undecided":
            covered = verdict.low is None or verdict.high is None or verdict.low <= 0 <= verdict.high
            fixed = found_at_once(simulation, plan)
            return Outcome(verdict.verdict, look / looks, verdict.promising, covered, fixed, verdict.reason)
    raise AssertionError("the last look ends a test")


def found_at_once(simulation: Simulation, plan: Plan) -> bool:
    """Return whether one look at the end, at acceptance alone, finds a gain."""
    totals = simulation.totals(simulation.world.blocks)
    found = difference(compare_rates(totals.during, totals, "accepted", "labelled", plan), plan.alpha, 1.0, last_look=True)
    return isinstance(found, Difference) and found.low > 0


def plan_for(world: World, settings: Experiment, legacy: bool) -> Plan:
    """Return the plan of a test of the world's size, which its time ends."""
    sized = settings.model_copy(update={"planned_requests": max(round(world.users * world.each / 2), 1)})
    unplanned = ExperimentRecord(id="e", champion="1", challenger="2", share=0.5, started=0.0)
    return plan_of(unplanned, sized, Collect()) if legacy else make_plan(sized, Collect())
