"""The steps of the flow `experiment`."""

import time

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
from tasks.steps import clients
from tasks.steps.naming import call_run, name_of
from tasks.steps.step import IO_RETRIES, attempt_to_show, show_page, step
from tasks.versions import register as registering

LEADS = 3
"""Reads of the registry by a replica of serving between the decision on a stage and its start."""
LEAST_LEAD_SECONDS = 2.0
"""Of that time: a busy replica may be late by as much, and would serve some users by the share before."""

WATCH_POLL_SECONDS = 10.0


@step("follow", retries=IO_RETRIES)
def follow(settings: Settings) -> list[Move]:
    """Complete the move of a run that was killed, and record what was moved in MLflow."""
    store, registry, now = clients.store_of(settings), clients.registry_of(settings), time.time()
    found = moves.catch_up(store, registry, now)
    for move in found:
        get_run_logger().warning("found move %d: %s, by %s: %s", move.number, move.kind, move.by, move.reason)
    return found


@step("requested moves", retries=IO_RETRIES)
def requested(settings: Settings) -> list[MoveAnswer]:
    """Carry out what administrators asked for on the status page."""
    ended = asked.answer_waiting(clients.store_of(settings), clients.registry_of(settings), time.time())
    for request, answer in ended:
        move = f"{request.kind.replace('_', ' ')} to version {request.version}, by {request.by}"
        get_run_logger().info("%s: %s: %s", move, answer.state, answer.message)
    return [answer for _, answer in ended]


@step("anchor", retries=IO_RETRIES)
def follow_anchor(settings: Settings) -> ExperimentRecord | None:
    """Keep the anchor, and which champion is compared with it; return its record where that changed."""
    store, registry = clients.store_of(settings), clients.registry_of(settings)
    record = succession.follow(store, registry, settings, time.time(), lead_of(settings))
    if record:
        compared = f"; version {record.challenger} is compared with it" if record.stages else ""
        get_run_logger().info("version %s is the anchor%s", record.champion, compared)
    return record


def lead_of(settings: Settings) -> float:
    """Return the seconds between the decision on a stage and its start."""
    return max(LEADS * settings.serving.follow_seconds, LEAST_LEAD_SECONDS)


@step("running experiment", retries=IO_RETRIES)
def running_experiment(settings: Settings) -> ExperimentRecord | None:
    """Return the test that runs, or whose promoted version is watched, or the champion's comparison with the anchor."""
    running = clients.registry_of(settings).aliases().routed
    if running:
        call_run(name_of(running), running.id, running.stage.name, f"v{running.challenger}")
    return running


@step("look", retries=IO_RETRIES)
def look(settings: Settings, experiment: ExperimentRecord) -> Found:
    """Return what the experiment's stage says now, and show it."""
    store, registry, now = clients.store_of(settings), clients.registry_of(settings), time.time()
    plan = plan_of(experiment)
    lead = lead_of(settings)
    found = looking.look(ObservedTest(store, experiment, plan, now, lead), registry.aliases())
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
def advance(settings: Settings, experiment: ExperimentRecord, stage: Stage) -> ExperimentRecord | None:
    """Enter a test's next stage; None where it has ended meanwhile."""
    return release.advance(clients.store_of(settings), clients.registry_of(settings), experiment, stage, time.time())


@step("conclude", retries=IO_RETRIES)
def conclude(settings: Settings, decision: Decision) -> Decision:
    """Write the decision once, move the aliases, and describe the version with its verdict."""
    store, registry = clients.store_of(settings), clients.registry_of(settings)
    standing = release.conclude(store, registry, decision)
    attempt_to_show("MLflow", lambda: registering.describe_again(store, registry, settings, standing))
    return standing


@step("settle", retries=IO_RETRIES)
def settle(settings: Settings, watched: ExperimentRecord) -> bool:
    """End a watch whose time is over, or whose version is champion no more; return whether it has ended."""
    store, registry, now = clients.store_of(settings), clients.registry_of(settings), time.time()
    return probation.settle(store, registry, watched, now)


@step("stuck", retries=IO_RETRIES)
def stuck(settings: Settings, experiment: ExperimentRecord) -> str:
    """Return for how long no look has seen anything new, in words; empty where something is new."""
    return looks.standstill(clients.store_of(settings), experiment, time.time())


def await_comparisons(settings: Settings) -> None:
    """Wait for the end of the watch over the champion, which ends here if its time is over, and its time beside the anchor."""
    registry = clients.registry_of(settings)
    while True:
        aliases, now = registry.aliases(), time.time()
        if watched := aliases.watch:
            left, what = watched.stage.ends - now, "is watched"
            if left <= 0:
                _end_watch(settings, watched)
                continue
        else:
            if follow_anchor(settings):
                continue
            left, what = succession.seconds_left(aliases, now), "is compared with the anchor"
            if left <= 0:
                return
        get_run_logger().info("version %s %s for another %.0f s before a test opens", aliases.champion, what, left)
        time.sleep(min(left, WATCH_POLL_SECONDS))


def _end_watch(settings: Settings, watched: ExperimentRecord) -> None:
    found = look(settings, watched)
    if found.decision:
        conclude(settings, found.decision)
    settle(settings, watched)
