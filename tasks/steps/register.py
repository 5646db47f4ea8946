"""The last steps of a cycle: register the candidate, open its A/B test or end the cycle without one, and show the cycle."""

from functools import partial

from prefect.runtime import flow_run

from infra.records import CycleOutcome, Manifest
from infra.storage import cycles
from tasks.evaluation.evaluate import Evaluation
from tasks.experiments.moves import release
from tasks.experiments.planning import report as planning
from tasks.labels.accounting import Waiting
from tasks.showing import fit as showing
from tasks.showing import report
from tasks.steps import experiment as controller
from tasks.steps import pages, transaction
from tasks.steps.context import Context
from tasks.steps.joining import join_all
from tasks.steps.seal import end
from tasks.steps.step import IO_RETRIES, attempt_to_show, show_page, step
from tasks.trainer.run import Candidate
from tasks.versions import register as registering
from tasks.versions.register import Registered


@step("register", retries=IO_RETRIES)
def register(context: Context, manifest: Manifest, candidate: Candidate, evaluation: Evaluation) -> Registered:
    """Upload the checkpoint, log the MLflow run, create the model version, whatever the verdict."""
    sealed = cycles.settings_of(context.store, manifest, context.settings)
    parent = context.remaining_checkpoint(manifest.parent)
    return registering.register(context.store, context.registry, sealed, manifest, candidate, evaluation, parent)


@step("open experiment", retries=IO_RETRIES)
def open_experiment(context: Context, manifest: Manifest, registered: Registered) -> CycleOutcome | Waiting:
    """Give the candidate its share of developers, and end the cycle.

    Where loops take turns, a candidate that has to wait for a comparison is left to the next run, and this one does not count
    as one that failed.
    """
    store, registry, version = context.store, context.registry, registered.version
    if waiting := controller.await_comparisons(context):
        transaction.withdraw(store, manifest.cycle, flow_run.id or "by hand")
        return waiting
    anchor = registry.aliases().anchor
    now, joined = context.now(), partial(join_all, context)
    proposed = release.propose(store, context.settings, manifest.cycle, version, manifest.champion, now, anchor, joined)
    opened = release.open_experiment(store, registry, proposed)
    attempt_to_show("what the traffic is too little for", lambda: planning.record(store, context.settings, context.now(), joined))
    reason = f"version {version} is the challenger" if opened else f"version {version} could not be tested"
    experiment = opened.id if opened else ""
    outcome = CycleOutcome(cycle=manifest.cycle, result="registered", reason=reason, version=version, experiment=experiment)
    return end(context, outcome)


@step("fail", retries=IO_RETRIES)
def fail(context: Context, manifest: Manifest, registered: Registered, evaluation: Evaluation) -> CycleOutcome:
    """End the cycle with a version that no user meets: the candidate did not pass the offline gate."""
    reason = f"version {registered.version} is not tested: {evaluation.reason}"
    outcome = CycleOutcome(cycle=manifest.cycle, result="refused", reason=reason, version=registered.version)
    return end(context, outcome)


@step("show")
def show(context: Context, manifest: Manifest, candidate: Candidate, evaluation: Evaluation, outcome: CycleOutcome) -> None:
    """Show the cycle's page in Prefect."""
    page = pages.cycle_page(manifest, candidate, evaluation, outcome)
    show_page("cycle", f"{page}\n\n{report.page(showing.read(context.store, manifest))}")
