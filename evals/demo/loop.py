"""The loop in motion: developers type, and the deployments run whenever there is something for them to do.

Schedules are paused from the start of the stack on, since a run that finds nothing to do still costs seconds of a small machine's
time; the same deployments are started through Prefect's API as soon as their turn has come. While one of them computes,
developers type slowly.
"""

import asyncio
import time
from dataclasses import dataclass

from rich.console import Console

from evals.demo import history
from evals.demo.orchestration import FlowRun, Orchestration
from evals.developers import Counts, Tally
from infra.records import ExperimentRecord
from infra.registry import Registry, RegistryError
from infra.store import ObjectStore

CYCLE, WATCH = "cycle", "experiment"
POLL_SECONDS, RETRY_SECONDS = 2.0, 15.0
SETTLING = 1.02
"""Requests of a test at which it is looked at, for each that the gate counts. It does not count the youngest, which may still
get a label; while its run starts they grow old enough."""
QUIET_RATE = 1.0
"""Requests a second while a flow computes: two cores serve a busy team or train, and would do both at a third of the speed."""


@dataclass(frozen=True)
class Plan:
    """How far the demo goes."""

    cycles: int
    """Cycles to have been run, earlier demos counted in."""
    labels: int
    """Answered requests since the last cycle began, an A/B test's included, that a cycle waits for."""
    verdict_requests: int
    """Answered requests an arm after which an experiment is looked at."""
    verdict_seconds: float
    """Age at which it is looked at in any case: there its gate ends it (experiment.max_seconds)."""
    deadline: float
    """time.monotonic() after which no cycle is begun; one that was begun is followed to its verdict."""


class Traffic:
    """The developers' latest sums, and how fast they may type."""

    def __init__(self, rate: float) -> None:
        self.tally = Tally({}, (), 0.0)
        self._rate, self.quiet = rate, False

    def rate(self) -> float:
        """Most requests a second; 0: no bound (evals.developers.run's rate hook)."""
        return min(self._rate or QUIET_RATE, QUIET_RATE) if self.quiet else self._rate

    def __call__(self, tally: Tally) -> None:
        """Take the newest sums (evals.developers.run's progress hook)."""
        self.tally = tally

    def of(self, version: str) -> Counts:
        """Sums of a version."""
        return self.tally.by_version().get(version, Counts())


class Loop:
    """Drives cycles and experiments until the plan is fulfilled."""

    def __init__(
        self, plan: Plan, store: ObjectStore, registry: Registry, prefect: Orchestration, traffic: Traffic, console: Console
    ) -> None:
        self._plan, self._store, self._registry, self._prefect = plan, store, registry, prefect
        self._traffic, self._console = traffic, console
        self._began = time.monotonic()

    async def run(self) -> history.LoopState:
        """Run cycles and experiments; gives back the world at the end."""
        world = await self._world()
        labelled = 0
        while True:
            if world.aliases.experiment:
                world = await self._experiment(world)
            enough = len(world.ended) >= self._plan.cycles and world.promotions > 0
            if enough or self._late:
                return world
            await self._until_labelled(labelled + self._plan.labels)
            if self._late:
                continue
            ended, answered = len(world.ended), self._traffic.tally.total.answered
            world = await self._cycle(world)
            if len(world.ended) == ended:
                await asyncio.sleep(RETRY_SECONDS)  # another run of it is under way, or it found too few samples
                continue
            labelled = answered

    @property
    def _late(self) -> bool:
        return time.monotonic() > self._plan.deadline

    async def _world(self) -> history.LoopState:
        for _ in range(30):
            try:
                return await asyncio.to_thread(history.read_state, self._store, self._registry)
            except (RegistryError, OSError) as error:
                self.say(f"waiting for the registry: {error}")
                await asyncio.sleep(POLL_SECONDS)
        raise RuntimeError("the registry did not answer for a minute; `make status` tells which part is down, and its log")

    async def _until_labelled(self, labels: int) -> None:
        told = 0.0
        while not self._late and (total := self._traffic.tally.total).answered < labels:
            if time.monotonic() - told > 15:
                self.say(f"developers at work: {total.answered} of {labels} requests answered, {total.accepted} accepted")
                told = time.monotonic()
            await asyncio.sleep(POLL_SECONDS)

    async def _cycle(self, before: history.LoopState) -> history.LoopState:
        self.say("cycle: collect, validate, reward, train, evaluate, register")
        run = await self._deployment(CYCLE)
        world = await self._world()
        for cycle in world.ended.keys() - before.ended.keys():
            outcome = world.ended[cycle]
            self.say(f"{cycle}: {outcome['result']}: {outcome['reason']}")
        if world.ended.keys() == before.ended.keys():
            self.say(f"cycle: {run.state}: {run.message}")
        return world

    async def _experiment(self, world: history.LoopState) -> history.LoopState:
        experiment = world.aliases.experiment
        assert experiment is not None
        self.say(f"A/B test: version {experiment.challenger} against {experiment.champion}, {experiment.share:.0%} of developers")
        before = self._traffic.of(experiment.champion).answered
        wanted, told = SETTLING * self._plan.verdict_requests, time.monotonic()
        while world.aliases.experiment:
            count = min(self._traffic.of(experiment.challenger).answered, self._traffic.of(experiment.champion).answered - before)
            if count < wanted and time.time() < experiment.started + self._plan.verdict_seconds:
                if time.monotonic() - told > 15:
                    self.say(f"A/B test: {self._arms(experiment)}")
                    told = time.monotonic()
                await asyncio.sleep(POLL_SECONDS)
                continue
            wanted = count + (SETTLING - 1) * self._plan.verdict_requests
            run = await self._deployment(WATCH)
            self.say(f"A/B test: {run.state}: {run.message[:220]} ({self._arms(experiment)})")
            world = await self._world()
            if world.aliases.experiment:
                await asyncio.sleep(POLL_SECONDS)
        return await self._world()

    async def _deployment(self, name: str) -> FlowRun:
        """Start a deployment and wait for its end, telling where it is; developers leave it the machine meanwhile."""
        self._traffic.quiet = True
        try:
            run = await self._prefect.start(name)
            told, found = time.monotonic(), await self._prefect.run(run)
            while not found.ended:
                await asyncio.sleep(1.0)
                found = await self._prefect.run(run)
                if time.monotonic() - told > 15:
                    self.say(f"{name}: {found.state.lower()}{await self._prefect.step(run)}")
                    told = time.monotonic()
        finally:
            self._traffic.quiet = False
        return found

    def _arms(self, experiment: ExperimentRecord) -> str:
        return f"challenger {self._accepted(experiment.challenger)}, champion {self._accepted(experiment.champion)}"

    def _accepted(self, version: str) -> str:
        counts = self._traffic.of(version)
        return f"{counts.accepted} of {counts.answered} accepted" + (f" ({counts.acceptance:.1%})" if counts.answered else "")

    def say(self, text: str) -> None:
        """A line with the seconds since the loop began."""
        self._console.print(f"[{time.monotonic() - self._began:5.0f} s] {text}", markup=False, highlight=False)
