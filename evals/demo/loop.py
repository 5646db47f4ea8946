"""The loop in motion: developers type, and the demo starts the deployments as soon as they have work.

The schedules stay paused from the start of the stack, because a run that finds no work still costs a small machine seconds. The
demo starts the same deployments through Prefect's API. While one of them computes, developers type slowly.
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
POLL_SECONDS, RETRY_SECONDS, MESSAGE_SECONDS = 2.0, 15.0, 15.0
SETTLING = 1.02
"""Answered requests at which the demo starts the gate, per request that the gate counts. The gate skips the youngest requests,
whose labels may still change; they become old enough while its run starts."""
QUIET_RATE = 1.0
"""Requests a second while a flow computes. Two cores can serve a busy team or train; both at once run at a third of the speed."""


@dataclass(frozen=True)
class Plan:
    """The end of the demo and the size of its cycles and tests."""

    cycles: int
    """Cycles to run, including those of earlier demos."""
    labels: int
    """Requests since the last cycle began that a cycle waits for, of which events or later requests tell; those of an A/B test
    count."""
    verdict_requests: int
    """Answered requests per arm after which the gate looks at an experiment."""
    verdict_seconds: float
    """Age of an experiment at which the gate ends it in any case (experiment.max_seconds)."""
    deadline: float
    """Value of time.monotonic() after which no cycle begins; a running cycle is followed to its verdict."""


class Traffic:
    """The current sums of the developers, and the limit of their rate."""

    def __init__(self, rate: float) -> None:
        self.tally = Tally({}, (), 0.0)
        self._rate, self.quiet = rate, False

    def rate(self) -> float:
        """Return the maximum requests a second; 0: no limit (the `rate` hook of evals.developers.run)."""
        return min(self._rate or QUIET_RATE, QUIET_RATE) if self.quiet else self._rate

    def __call__(self, tally: Tally) -> None:
        """Store the newest sums (the `progress` hook of evals.developers.run)."""
        self.tally = tally

    def of_version(self, version: str) -> Counts:
        """Return the sums of a version."""
        return self.tally.by_version().get(version, Counts())


class Interval:
    """Limits progress messages to one every MESSAGE_SECONDS."""

    def __init__(self, due_at_once: bool = False) -> None:
        self._last = 0.0 if due_at_once else time.monotonic()

    def due(self) -> bool:
        """Return whether a message is due, and start the next interval if so."""
        if time.monotonic() - self._last <= MESSAGE_SECONDS:
            return False
        self._last = time.monotonic()
        return True


class Loop:
    """Runs cycles and experiments until the plan is complete."""

    def __init__(
        self, plan: Plan, store: ObjectStore, registry: Registry, prefect: Orchestration, traffic: Traffic, console: Console
    ) -> None:
        self._plan, self._store, self._registry, self._prefect = plan, store, registry, prefect
        self._traffic, self._console = traffic, console
        self._began = time.monotonic()

    async def run(self) -> history.LoopState:
        """Run cycles and experiments. Return the final state.

        Raises:
            RuntimeError: the registry does not answer.
        """
        state = await self._state()
        answered_before = 0
        while True:
            if state.aliases.experiment:
                state = await self._experiment(state)
            complete = len(state.outcomes) >= self._plan.cycles and state.promotions > 0
            if complete or self._late:
                return state
            await self._until_answered(answered_before + self._plan.labels)
            if self._late:
                continue
            ended, answered = len(state.outcomes), self._traffic.tally.total.telling
            state = await self._cycle(state)
            if len(state.outcomes) == ended:
                await asyncio.sleep(RETRY_SECONDS)  # another run is in progress, or the window has too few samples
                continue
            answered_before = answered

    @property
    def _late(self) -> bool:
        return time.monotonic() > self._plan.deadline

    async def _state(self) -> history.LoopState:
        for _ in range(30):
            try:
                return await asyncio.to_thread(history.read_state, self._store, self._registry)
            except (RegistryError, OSError) as error:
                self.say(f"waiting for the registry: {error}")
                await asyncio.sleep(POLL_SECONDS)
        raise RuntimeError("the registry did not answer for a minute; run `make status` to see which part is down and its log")

    async def _until_answered(self, requests: int) -> None:
        message = Interval(due_at_once=True)
        while not self._late and (total := self._traffic.tally.total).telling < requests:
            if message.due():
                self.say(f"developers are typing: {total.telling} of {requests} requests, {total.accepted} accepted")
            await asyncio.sleep(POLL_SECONDS)

    async def _cycle(self, before: history.LoopState) -> history.LoopState:
        self.say("cycle: collect, validate, reward, train, evaluate, register")
        run = await self._run_deployment(CYCLE)
        state = await self._state()
        for cycle in state.outcomes.keys() - before.outcomes.keys():
            outcome = state.outcomes[cycle]
            self.say(f"{cycle}: {outcome['result']}: {outcome['reason']}")
        if state.outcomes.keys() == before.outcomes.keys():
            self.say(f"cycle: {run.state}: {run.message}")
        return state

    async def _experiment(self, state: history.LoopState) -> history.LoopState:
        """Run the gate's deployment whenever the arms have enough requests, until it ends the experiment."""
        experiment = state.aliases.experiment
        assert experiment is not None
        self.say(f"A/B test: version {experiment.challenger} against {experiment.champion}, {experiment.share:.0%} of developers")
        before = self._traffic.of_version(experiment.champion).answered
        needed, message = SETTLING * self._plan.verdict_requests, Interval()
        while state.aliases.experiment:
            if await self._before_test(state.aliases.experiment):
                state, before = await self._state(), self._traffic.of_version(experiment.champion).answered
                continue
            champion = self._traffic.of_version(experiment.champion).answered - before
            count = min(self._traffic.of_version(experiment.challenger).answered, champion)
            if count < needed and time.time() < experiment.started + self._plan.verdict_seconds:
                if message.due():
                    self.say(f"A/B test: {self._arms(experiment)}")
                await asyncio.sleep(POLL_SECONDS)
                continue
            needed = count + (SETTLING - 1) * self._plan.verdict_requests
            run = await self._run_deployment(WATCH)
            self.say(f"A/B test: {run.state}: {run.message[:220]} ({self._arms(experiment)})")
            state = await self._state()
            if state.aliases.experiment:
                await asyncio.sleep(POLL_SECONDS)
        return await self._state()

    async def _before_test(self, experiment: ExperimentRecord) -> bool:
        """Run the gate's deployment once in a stage before the test; return whether it is in one."""
        if experiment.stage.name not in ("shadow", "ramp"):
            return False
        await asyncio.sleep(2 * POLL_SECONDS)
        run = await self._run_deployment(WATCH)
        self.say(f"A/B test, {experiment.stage.name}: {run.state}: {run.message[:220]}")
        return True

    async def _run_deployment(self, name: str) -> FlowRun:
        """Run a deployment to its end, with progress messages, while developers type slowly."""
        self._traffic.quiet = True
        try:
            identifier = await self._prefect.start(name)
            message, run = Interval(), await self._prefect.flow_run(identifier)
            while not run.ended:
                await asyncio.sleep(1.0)
                run = await self._prefect.flow_run(identifier)
                if message.due():
                    self.say(f"{name}: {run.state.lower()}{await self._prefect.current_task(identifier)}")
        finally:
            self._traffic.quiet = False
        return run

    def _arms(self, experiment: ExperimentRecord) -> str:
        return f"challenger {self._acceptance(experiment.challenger)}, champion {self._acceptance(experiment.champion)}"

    def _acceptance(self, version: str) -> str:
        counts = self._traffic.of_version(version)
        return f"{counts.accepted} of {counts.answered} accepted" + (f" ({counts.acceptance:.1%})" if counts.answered else "")

    def say(self, text: str) -> None:
        """Print a line with the seconds since the loop began."""
        self._console.print(f"[{time.monotonic() - self._began:5.0f} s] {text}", markup=False, highlight=False)
