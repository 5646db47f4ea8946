"""The whole loop on one machine: `tabloop demo`

Starts the stack, lets simulated developers type, runs cycles and A/B tests through the Prefect deployments, and finally compares
base and champion with the same developers at the same positions. Writes report.html and report.json beside the stack's state, in
var/demo.
"""

import asyncio
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random

from rich.console import Console

from evals import developers
from evals.demo import closing, comparison, history, page, report
from evals.demo.closing import BASE
from evals.demo.loop import WATCH, Loop, Traffic
from evals.demo.orchestration import Orchestration
from evals.demo.record import Report
from evals.demo.view import View
from evals.developers.grounds import Grounds
from infra import settings as configuration
from infra.registry.client import Registry
from infra.settings import Settings
from infra.stack import control, flow_runs
from infra.stack.files import PRIVATE
from infra.stack.parts import parts
from infra.storage.store import ObjectStore
from tasks.evaluation.positions import Code

LATER_PARTS = ("engine-1", "evaluation")
"""Start beside the first developers: they have no work before there is a candidate. One engine of adapters has no second."""
VISITS_APART = 100_000
"""Visit numbers between the first visit of one demo and of the next, so that they use different sessions."""

EXAMPLES = 20_000
"""Suggestions of the closing comparison that are kept, to choose the report's examples from."""


@dataclass(frozen=True)
class Options:
    """Frozen options of a demo."""

    seed: int = 0  # seed of the simulated developers
    users: int = 1000  # number of developers
    code: Sequence[Path] = ()  # folders of the Python files that they type; empty: the held-out packages
    cycles: int = 1  # cycles to run, including those of earlier demos
    labels: int = 5000  # minimum requests that a cycle waits for
    minutes: float = 12.0  # minutes after which no cycle begins
    visits: int = 7200  # positions of the closing comparison in later code
    rate: float = 0.0  # maximum requests a second; 0: limited by `concurrency` only
    concurrency: int = 96  # developers who type at the same time
    kind: developers.DeveloperKind = "people"


def run(options: Options) -> int:
    """Run the demo.

    Returns:
        0 if the champion improves on the base, 1 if not.

    Raises StackError where a part does not start, NoCode where `options.code` lacks places, and NotForDevelopers where the
    settings let no developer name themselves.
    """
    os.umask(PRIVATE)  # the report quotes developers' code
    console = Console()
    began = time.monotonic()
    code = developers.code_from(options.code)
    if options.code:
        for ground in developers.GROUNDS:  # the closing comparison would miss one after half an hour
            Grounds(code.sources).draw(ground, Random(0))
    settings = configuration.load()
    if not settings.serving.name_users:
        developers.simulation_token(settings)  # raises, before the stack starts, which makes the token
    first = [part for part in parts(settings) if part not in LATER_PARTS]
    settings = control.up(first, partial(console.print, markup=False, highlight=False), paused=True)
    with View(console) as view:
        result = asyncio.run(demo(options, settings, code, view, began))
    out = settings.stack.state.parent
    page.write(result, configuration.path(out))
    console.print(report.LastScreen(result, report.files(out), page.links(settings, result)), crop=False)
    return 0 if result.improved else 1


async def demo(options: Options, settings: Settings, code: Code, view: View, began: float) -> Report:
    """Run the loop and the closing comparison. Return the report."""
    temperature = closing.best_temperature(settings)
    store, registry = ObjectStore.connect(settings.store), Registry.connect(settings.registry)
    traffic, stop = Traffic(options.rate), asyncio.Event()
    async with Orchestration(settings.orchestration) as prefect:
        before = await asyncio.to_thread(history.read_state, store, registry)
        cycles = max(options.cycles, len(before.outcomes) + 1)  # a repeated demo runs at least one more cycle
        deadline, work = began + 60 * options.minutes, configuration.path(settings.train.folder)
        why = partial(flow_runs.refused_by, settings)
        loop = Loop(cycles, options.labels, settings.experiment, deadline, store, registry, prefect, traffic, view, work, why)
        address = developers.stack_address(settings)
        people = developers.RunSettings(
            address,
            options.users,
            options.seed,
            rate=options.rate,
            concurrency=options.concurrency,
            quirks=developers.KINDS[options.kind],
            examples=EXAMPLES,
        )
        typists = replace(people, first_visit=VISITS_APART * len(before.outcomes))
        typing = asyncio.create_task(developers.run(typists, code, stop=stop, progress=traffic, rate=traffic.rate))
        try:
            state, _ = await asyncio.gather(loop.run(), _start_later_parts(settings, view))
            stop.set()
            await typing
            champion, began_closing = state.aliases.champion or BASE, time.time()
            paired = await closing.compare_with_base(people, options.visits, settings, code, registry, champion, view)
            served = await asyncio.to_thread(closing.recorded, store, began_closing, paired["later"])
        finally:
            stop.set()
            typing.cancel()
            with suppress(asyncio.CancelledError):
                await typing
            await prefect.pause(WATCH, False)  # promoted versions stay on probation; training waits for `tabloop loop resume`
    pins = {ground: list(closing.pins_of(settings, champion)) for ground in paired}
    if champion != BASE and (whole := closing.all_shown(paired["later"], "later", people, code, served)):
        paired, pins["later"] = paired | {"later": whole}, [*pins["later"], "champion_all"]
    elif champion != BASE:
        view.say("closing comparison: completions are missing in the object store, so the gain of training alone is not known")
    rows, requests = history.cycle_rows(store, state), history.request_rows(store, state)
    return Report(
        seed=options.seed,
        developers=options.kind,
        rates=people.quirks.digest,
        seconds=time.monotonic() - began,
        base_version=BASE,
        champion_version=champion,
        cycles=len(state.outcomes),
        promotions=state.promotions,
        rejections=state.rejections,
        judge=settings.evaluate.judge.kind,
        **comparison.comparisons(paired["later"]),
        grounds={ground: comparison.ground_row(run, pins[ground], temperature) for ground, run in paired.items()},
        exploration=comparison.exploration(requests, settings.serving.sampling.exploring_share),
        champion_calibration=closing.calibration(paired["later"], served),
        calibration=next((row.calibration for row in reversed(rows) if row.calibration), None),
        history=rows,
        experiments=await asyncio.to_thread(history.experiment_rows, store, state),
        changes=comparison.changes(paired["later"]),
        addresses={
            "Prefect": configuration.masked(settings.orchestration.api, "").removesuffix("/api"),
            "MLflow": configuration.masked(settings.registry.uri, ""),
            "serving": settings.serving.completions_url,
        },
    )


async def _start_later_parts(settings: Settings, view: View) -> None:
    """Start the later parts while developers type, and print their lines. Raises StackError where one does not start."""
    later = [part for part in LATER_PARTS if part in parts(settings)]
    await asyncio.to_thread(control.up, later, lambda line: view.say(line.strip()))
