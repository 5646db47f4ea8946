"""The steps of the flow `experiment`."""

import time
from functools import partial

from prefect.logging import get_run_logger

from infra.records import Decision, ExperimentRecord, Move, MoveAnswer, Stage, Verdict
from infra.registry.client import Registry, RegistryError
from infra.settings import Settings
from infra.storage.store import ObjectStore
from tasks.experiments.controller import look as looking
from tasks.experiments.controller import probation
from tasks.experiments.controller.look import Found, ObservedTest
from tasks.experiments.moves import log as moves
from tasks.experiments.moves import release, succession
from tasks.experiments.moves import requested as asked
from tasks.experiments.planning.plan import plan_of
from tasks.experiments.reports.page import experiment_page
from tasks.experiments.stages import looks
from tasks.experiments.verdict import decide as deciding
from tasks.labels.accounting import Waiting
from tasks.steps.context import Context
from tasks.steps.joining import join_all
from tasks.steps.naming import call_run, name_of
from tasks.steps.step import IO_RETRIES, attempt_to_show, show_page, step
from tasks.versions import register as registering

LEADS = 3
"""Reads of the registry by a replica of serving between the decision on a stage and its start."""
LEAST_LEAD_SECONDS = 2.0
"""Minimum of that time: a replica may be late by as much, and would serve some users by the earlier share."""

WATCH_POLL_SECONDS = 10.0


@step("follow", retries=IO_RETRIES)
def follow(context: Context) -> list[Move]:
    """Complete the move of a run that was killed, and record what was moved in MLflow."""
    store, registry, now = context.store, context.registry, context.now()
    found = moves.catch_up(store, registry, now)
    for move in found:
        get_run_logger().warning("found move %d: %s, by %s: %s", move.number, move.kind, move.by, move.reason)
    return found


@step("requested moves", retries=IO_RETRIES)
def requested(context: Context) -> list[MoveAnswer]:
    """Carry out what administrators asked for on the status page."""
    ended = asked.answer_waiting(context.store, context.registry, context.now())
    for request, answer in ended:
        move = f"{request.kind.replace('_', ' ')} to version {request.version}, by {request.by}"
        get_run_logger().info("%s: %s: %s", move, answer.state, answer.message)
    return [answer for _, answer in ended]


@step("anchor", retries=IO_RETRIES)
def follow_anchor(context: Context) -> ExperimentRecord | None:
    """Keep the anchor, and which champion is compared with it; return its record where that changed."""
    store, registry = context.store, context.registry
    record = succession.follow(store, registry, context.settings, context.now(), lead_of(context.settings))
    if record:
        compared = f"; version {record.challenger} is compared with it" if record.stages else ""
        get_run_logger().info("version %s is the anchor%s", record.champion, compared)
    return record


def lead_of(settings: Settings) -> float:
    """Return the seconds between the decision on a stage and its start."""
    return max(LEADS * settings.serving.follow_seconds, LEAST_LEAD_SECONDS)


@step("running experiment", retries=IO_RETRIES)
def running_experiment(context: Context) -> ExperimentRecord | None:
    """Return the running test, or that of the version on probation, or the champion's comparison with the anchor."""
    running = context.registry.aliases().routed
    if running:
        call_run(name_of(running), running.id, running.stage.name, f"v{running.challenger}")
    return running


@step("look", retries=IO_RETRIES)
def look(context: Context, experiment: ExperimentRecord) -> Found:
    """Look at the experiment's stage, and show the result."""
    store, registry, now = context.store, context.registry, context.now()
    plan = plan_of(experiment)
    lead = lead_of(context.settings)
    observed = ObservedTest(store, experiment, plan, now, lead, partial(join_all, context))
    found = looking.look(observed, registry.aliases())
    get_run_logger().info("%s, %s: %s: %s", experiment.id, experiment.stage.name, found.verdict.verdict, found.verdict.reason)
    _show(store, registry, experiment, found.verdict, now)
    return found


def _show(store: ObjectStore, registry: Registry, experiment: ExperimentRecord, verdict: Verdict, now: float) -> None:
    """Record a look where it is due, and show it on the status page and in Prefect."""
    look = looks.record(store, experiment, verdict, now)
    if look:
        attempt_to_show("page", lambda: show_page("experiment", experiment_page(store, experiment, look)))
    try:
        release.show_look(registry, experiment.model_copy(update={"plan": None}), deciding.brief(verdict), now)
    except RegistryError as error:  # a look that cannot be shown stops no verdict
        get_run_logger().warning("the look is not shown: %s", error)


@step("advance", retries=IO_RETRIES)
def advance(context: Context, experiment: ExperimentRecord, stage: Stage) -> ExperimentRecord | None:
    """Enter a test's next stage; None where it has ended meanwhile."""
    return release.advance(context.store, context.registry, experiment, stage, context.now())


@step("conclude", retries=IO_RETRIES)
def conclude(context: Context, decision: Decision) -> Decision:
    """Write the decision once, move the aliases, and describe the version with its verdict."""
    store, registry = context.store, context.registry
    written = release.conclude(store, registry, decision)
    attempt_to_show("MLflow", lambda: _describe(context, written))
    return written


def _describe(context: Context, decision: Decision) -> None:
    found = registering.describe_again(context.store, context.registry, context.settings, decision)
    if found:
        registering.log_verdict(context.settings, found)


@step("settle", retries=IO_RETRIES)
def settle(context: Context, watched: ExperimentRecord) -> bool:
    """End a probation whose time is over, or whose version is no longer champion; return whether it has ended."""
    store, registry, now = context.store, context.registry, context.now()
    return probation.settle(store, registry, watched, now)


@step("stuck", retries=IO_RETRIES)
def stuck(context: Context, experiment: ExperimentRecord) -> str:
    """Return in words how long the looks have been the same; empty where the last one is new."""
    return looks.standstill(context.store, experiment, context.now())


def await_comparisons(context: Context) -> Waiting | None:
    """Wait until the champion's probation, which ends here if its time is over, and its comparison with the anchor have ended.

    Where loops take turns, return why the next run has to go on, in place of waiting.
    """
    registry = context.registry
    while True:
        aliases, now = registry.aliases(), context.now()
        if watched := aliases.watch:
            left, what = watched.stage.ends - now, "is watched"
            if left <= 0:
                _end_watch(context, watched)
                continue
        else:
            if follow_anchor(context):
                continue
            left, what = succession.seconds_left(aliases, now), "is compared with the anchor"
            if left <= 0:
                return None
        if context.takes_turns:
            reason = f"version {aliases.champion} {what} for another {left:.0f} s before a test opens. The next run goes on"
            return Waiting("WaitingForComparison", reason)
        get_run_logger().info("version %s %s for another %.0f s before a test opens", aliases.champion, what, left)
        time.sleep(min(left, WATCH_POLL_SECONDS))


def _end_watch(context: Context, watched: ExperimentRecord) -> None:
    found = look(context, watched)
    if found.decision:
        conclude(context, found.decision)
    settle(context, watched)
