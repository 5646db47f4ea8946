"""The steps of the flow `experiment`."""

import time

from prefect.logging import get_run_logger

from infra.cycles import decision_of
from infra.records import Decision, ExperimentRecord, Move, Verdict
from infra.registry import Registry, RegistryError
from infra.settings import Settings
from infra.store import ObjectStore
from tasks.experiments import decide as deciding
from tasks.experiments import looks, manual, moves, release
from tasks.experiments.page import experiment_page
from tasks.experiments.plan import plan_of
from tasks.experiments.totals import gather
from tasks.steps import clients
from tasks.steps.step import IO_RETRIES, show_page, step


@step("follow", retries=IO_RETRIES)
def follow(settings: Settings) -> list[Move]:
    """Record what was moved in MLflow or by a run that was killed, and complete a manual move that was killed."""
    store, registry, now = clients.store_of(settings), clients.registry_of(settings), time.time()
    found = moves.record(store, registry, now)
    for move in found:
        get_run_logger().warning("move %d was not recorded yet: %s, by %s: %s", move.number, move.kind, move.by, move.reason)
    if completed := manual.complete(store, registry, now):
        get_run_logger().warning("completed a manual move whose run was killed: %s", completed.experiment.id)
    return found


@step("running experiment", retries=IO_RETRIES)
def running_experiment(settings: Settings) -> ExperimentRecord | None:
    """Return the experiment that the registry names."""
    return clients.registry_of(settings).aliases().experiment


@step("verdict", retries=IO_RETRIES)
def verdict(settings: Settings, experiment: ExperimentRecord) -> Decision | Verdict:
    """Return the decision that ends an experiment, or the gate's verdict while the experiment goes on."""
    store, registry, now = clients.store_of(settings), clients.registry_of(settings), time.time()
    if decision := decision_of(store, experiment.id):
        return decision
    if void := release.void(experiment, registry.aliases()):
        return Decision(experiment=experiment, verdict=void, decided=now, by=release.GATE)
    plan = plan_of(experiment, settings.experiment, settings.collect)
    totals = gather(store, experiment, plan, now)
    verdict = deciding.decide(experiment, plan, totals, now)
    get_run_logger().info("%s: %s: %s", experiment.id, verdict.verdict, verdict.reason)
    _show(store, registry, experiment, verdict, now)
    if verdict.verdict == "undecided":
        return verdict
    evidence = totals.evidence()
    return Decision(experiment=experiment, verdict=verdict, decided=now, by=release.GATE, inputs=totals.inputs, evidence=evidence)


def _show(store: ObjectStore, registry: Registry, experiment: ExperimentRecord, verdict: Verdict, now: float) -> None:
    """Record a look where it is due, and show it on the status page and in Prefect."""
    look = looks.record(store, experiment, verdict, now)
    if look:
        show_page("experiment", experiment_page(store, experiment, look))
    try:
        release.show_look(registry, experiment.model_copy(update={"plan": None}), deciding.brief(verdict), now)
    except RegistryError as error:  # a look that cannot be shown stops no verdict
        get_run_logger().warning("the look is not shown: %s", error)


@step("conclude", retries=IO_RETRIES)
def conclude(settings: Settings, decision: Decision) -> Decision:
    """Write the decision once, then move the aliases."""
    return release.conclude(clients.store_of(settings), clients.registry_of(settings), decision)
