"""The loop in motion: developers type, and the demo starts the deployments as soon as they have work.

The schedules stay paused from the start of the stack, because a run that finds no work still costs a small machine seconds. The
demo starts the same deployments through Prefect's API. While one of them computes, developers type slowly.
"""

import asyncio
import math
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from evals.demo import history
from evals.demo.orchestration import FlowRun, Orchestration
from evals.demo.view import View
from evals.developers import Counts, Tally
from infra.pages import figures
from infra.records import ExperimentRecord
from infra.registry.client import Registry, RegistryError
from infra.settings.schema import Experiment
from infra.stack.flow_runs import REFUSED
from infra.storage.store import ObjectStore
from tasks.trainer.run import LOG_NAME

CYCLE, WATCH = "cycle", "experiment"
STEP = re.compile(r"^step (\d+) of (\d+)\b", re.MULTILINE)
"""A step's line in the trainer's log."""
POLL_SECONDS, RETRY_SECONDS = 2.0, 15.0
USUAL_SECONDS = {
    **{"look": 1.0, "collect": 4.0, "validate": 5.0, "estimate": 2.0, "reward": 4.0, "train": 190.0, "evaluate": 30.0},
    **{"register": 4.0, "open experiment": 2.0},
}
"""Steps of a cycle in their order with their usual time: what its progress is counted by."""
SETTLING = 1.02
"""Requests at which the demo starts the gate, per request that the gate counts. The gate skips the youngest ones, whose labels
may still change; they become old enough while its run starts."""
QUIET_RATE = 1.0
"""Requests a second while a flow computes. Two cores can serve a busy team or train; both at once run at a third of the speed."""


class Traffic:
    """The current sums of the developers, and the limit of their rate."""

    def __init__(self, rate: float) -> None:
        self.tally = Tally()
        self._rate, self.quiet = rate, False

    def rate(self) -> float:
        """Return the maximum requests a second; 0: no limit (the `rate` hook of evals.developers.run)."""
        return min(self._rate or QUIET_RATE, QUIET_RATE) if self.quiet else self._rate

    def __call__(self, tally: Tally) -> None:
        """Store the newest sums (the `progress` hook of evals.developers.run)."""
        self.tally = tally


@dataclass(frozen=True)
class Loop:
    """Runs cycles and experiments until the limits are reached."""

    cycles: int
    """Cycles to run, including those of earlier demos."""
    labels: int
    """Requests since the last cycle began that a cycle waits for, with an outcome known from events or later requests; those of
    an A/B test count."""
    test: Experiment
    """After `planned_requests` an arm the gate looks at a test, and at the age `max_seconds` it ends the test in any case."""
    deadline: float
    """Value of time.monotonic() after which no cycle begins; a running cycle is followed to its verdict."""
    store: ObjectStore
    registry: Registry
    prefect: Orchestration
    traffic: Traffic
    view: View
    work: Path
    """Folder of the updates' working files, each with the trainer's log (train.folder)."""
    refused_by: Callable[[str], str]
    """Returns why a deployment refuses a run (infra/stack/flow_runs.py)."""

    async def run(self) -> history.LoopState:
        """Run cycles and experiments. Return the final state. Raises RuntimeError where the registry does not answer."""
        state = await self._state()
        answered_before = 0
        while True:
            if state.aliases.experiment:
                state = await self._experiment(state)
            complete = len(state.outcomes) >= self.cycles and state.promotions > 0
            if complete or self._late:
                return state
            await self._until_answered(answered_before + self.labels)
            if self._late:
                continue
            ended, answered = len(state.outcomes), self.traffic.tally.total.telling
            state = await self._cycle(state)
            if len(state.outcomes) == ended:
                await asyncio.sleep(RETRY_SECONDS)  # another run is in progress, or the window has too few samples
                continue
            answered_before = answered

    @property
    def _late(self) -> bool:
        return time.monotonic() > self.deadline

    async def _state(self) -> history.LoopState:
        for _ in range(30):
            try:
                return await asyncio.to_thread(history.read_state, self.store, self.registry)
            except (RegistryError, OSError) as error:
                self.view.say(f"waiting for the registry: {error}")
                await asyncio.sleep(POLL_SECONDS)
        raise RuntimeError("the registry did not answer for a minute; run `tabloop status` to see which part is down and its log")

    async def _until_answered(self, requests: int) -> None:
        with self.view.part("developers type, requests", requests) as part:
            while not self._late and (total := self.traffic.tally.total).telling < requests:
                part.at(total.telling)
                await asyncio.sleep(POLL_SECONDS)

    async def _cycle(self, before: history.LoopState) -> history.LoopState:
        run = await self._run_deployment(CYCLE)
        state = await self._state()
        for cycle in state.outcomes.keys() - before.outcomes.keys():
            outcome = state.outcomes[cycle]
            self.view.verdict(f"{cycle}: {outcome['result']}: {outcome['reason']}")
        if state.outcomes.keys() == before.outcomes.keys():
            why = f" {await asyncio.to_thread(self.refused_by, CYCLE)}" if run.message == REFUSED else ""
            self.view.say(f"cycle: {run.state}: {run.message}{why}")
        return state

    async def _experiment(self, state: history.LoopState) -> history.LoopState:
        """Run the gate's deployment whenever the arms have enough requests, until it ends the experiment."""
        experiment = state.aliases.experiment
        assert experiment is not None
        before = self._counted(experiment)
        needed = SETTLING * self.test.planned_requests
        name = f"A/B test, v{experiment.challenger} vs v{experiment.champion}, requests an arm"
        with self.view.part(name, needed) as part:
            while state.aliases.experiment:
                if await self._before_test(state.aliases.experiment):
                    state, before = await self._state(), self._counted(experiment)
                    continue
                count = min(count - before[version] for version, count in self._counted(experiment).items())
                part.at(count)
                if count < needed and time.time() < experiment.started + self.test.max_seconds:
                    await asyncio.sleep(POLL_SECONDS)
                    continue
                needed = count + (SETTLING - 1) * self.test.planned_requests
                part.expect(needed)
                run = await self._run_deployment(WATCH)
                await self._show_look(experiment)
                self.view.verdict(f"A/B test, v{experiment.challenger}: {run.state}: {run.message[:220]}")
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
        self.view.say(f"A/B test, {experiment.stage.name}: {run.state}: {run.message[:220]}")
        return True

    async def _run_deployment(self, name: str) -> FlowRun:
        """Run a deployment to its end, with its progress, while developers type slowly."""
        self.traffic.quiet = True
        try:
            identifier = await self.prefect.start(name)
            run = await self.prefect.flow_run(identifier)
            with self.view.part(name, sum(USUAL_SECONDS.values()) if name == CYCLE else 0.0) as part:
                step, began, begun = "", time.monotonic(), time.time()
                while not run.ended:
                    await asyncio.sleep(1.0)
                    run, task = await self.prefect.flow_run(identifier), await self.prefect.current_task(identifier)
                    part.rename(f"{name}{task}")
                    if (now := task.strip(" ()")) != step:
                        step, began = now, time.monotonic()
                    seconds, done = time.monotonic() - began, trained(self.work, begun) if step == "train" else None
                    if done is None and (step == "train" or seconds > USUAL_SECONDS.get(step, math.inf)):
                        part.rename(f"{name} ({step}, {'before its first step' if step == 'train' else 'longer than usual'})")
                    # An update counts by its steps alone: what precedes the first one may take as long as half of them.
                    part.at(max(part.done, done_in(step, 0.0 if step == "train" else seconds, done)))
        finally:
            self.traffic.quiet = False
        return run

    def _counted(self, experiment: ExperimentRecord) -> dict[str, int]:
        """Return the requests of both versions of a test that the gate counts."""
        found = self.traffic.tally.by_version()
        return {version: found.get(version, Counts()).completed for version in (experiment.champion, experiment.challenger)}

    async def _show_look(self, experiment: ExperimentRecord) -> None:
        """Show both arms as the gate's newest look at the test counts them."""
        look = await asyncio.to_thread(self.registry.last_look)
        if look and look.experiment.id == experiment.id:
            self.view.arms(figures.arm_rows(look.verdict, experiment.champion, experiment.challenger))


def done_in(step: str, seconds: float, done: float | None = None) -> float:
    """Return the usual seconds of a cycle up to so many seconds within a step; 0 for a step that is not known.

    A step that takes longer than usual stays just before its end. `done`: the share of the step that is done, where it is known.
    """
    if step not in USUAL_SECONDS:
        return 0.0
    order = list(USUAL_SECONDS)
    within = min(seconds, 0.95 * USUAL_SECONDS[step]) if done is None else done * USUAL_SECONDS[step]
    return sum(USUAL_SECONDS[name] for name in order[: order.index(step)]) + within


def trained(work: Path, since: float) -> float | None:
    """Return the share of its steps that an update has taken, by the newest trainer's log; None before its first step.

    `since`: Unix seconds; a log that was written before is an earlier cycle's.
    """
    newest = max(work.glob(f"*/{LOG_NAME}"), key=lambda log: log.stat().st_mtime, default=None)
    written = newest is not None and newest.stat().st_mtime >= since
    taken = STEP.findall(newest.read_text(errors="replace")) if newest and written else []
    return int(taken[-1][0]) / int(taken[-1][1]) if taken else None
