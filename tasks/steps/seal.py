"""The step `seal` of a cycle, and the steps that resume a sealed one."""

import shutil
from collections.abc import Callable
from functools import wraps
from typing import TypeVar

from prefect.exceptions import TerminationSignal
from prefect.runtime import flow_run

from infra.records import CycleOutcome, HeldOutSet, Manifest
from infra.storage import cycles
from infra.storage.events import tombstones
from infra.storage.store import sha256
from tasks.experiments.moves import release
from tasks.labels import explain, users
from tasks.showing import fit as showing
from tasks.showing.fit import FittedEstimate, Unfitted
from tasks.steps import transaction
from tasks.steps.context import Context
from tasks.steps.naming import call_run
from tasks.steps.reward import Rewarded
from tasks.steps.step import IO_RETRIES, attempt_to_show, step
from tasks.steps.training_job import discard
from tasks.steps.validate import Validated
from tasks.trainer.job import METRICS_NAME
from tasks.versions import tracking

R = TypeVar("R")


@step("seal", retries=IO_RETRIES)
def seal(
    context: Context,
    validated: Validated,
    rewarded: Rewarded,
    held_out: tuple[HeldOutSet, ...],
    estimate: FittedEstimate | Unfitted,
) -> Manifest:
    """Write the inputs of a cycle, its manifest last: from then on every run completes this cycle. See transaction.seal."""
    store, cycle, collected, run = context.store, validated.cycle, validated.collected, flow_run.id or ""
    if sealed := transaction.sealed_by(store, cycle, run):
        return sealed
    tombstones.check(store, validated.subjects)
    digest = sha256([rewarded.samples])
    showing.write(store, cycle, digest, estimate)
    explain.write(store, cycle, digest, collected.accounting)
    users.write(store, cycle, digest, collected.register)
    fields = transaction.manifest_fields(collected, validated.evidence, context.now())
    fields |= {"returns": rewarded.returns, "acceptance": rewarded.acceptance, "notes": rewarded.notes}
    fields |= {"held_out": held_out, "run": run}
    return transaction.seal(store, cycle, fields, rewarded.samples, context.settings, validated.subjects)


@step("resume", retries=IO_RETRIES)
def resume(context: Context, cycle: str, run: str) -> Manifest | CycleOutcome:
    """Return the manifest of a cycle to complete, or its outcome: its test was opened, it was resumed too often, or the champion
    changed."""
    manifest = cycles.manifest_of(context.store, cycle)
    call_run(f"{cycle}, resumed", cycle, f"from v{manifest.parent}", "resumed")
    if opened := release.opened(context.store, context.registry, cycle):
        version, test = opened
        reason = f"version {version} is the challenger"
        return end(context, CycleOutcome(cycle=cycle, result="registered", reason=reason, version=version, experiment=test))
    champion = context.registry.aliases().champion
    if champion != manifest.champion:
        return abandon(context, cycle, f"to be tested against version {manifest.champion}, but the champion is {champion} now")
    if transaction.attempt(context.store, cycle, run) > transaction.MAX_RESUMES:
        runs = f"each of {transaction.MAX_RESUMES} runs that resumed it"
        return abandon(context, cycle, f"failed, then failed or was killed in {runs}")
    return manifest


@step("abandon", retries=IO_RETRIES)
def abandon_left(context: Context, left: tuple[str, ...]) -> None:
    """End the cycles of projects without a loop: no run completes one, and its samples would wait for its end for ever."""
    for cycle in left:
        project = cycles.project_of(cycle)
        abandon(context, cycle, f"the project {project} has no champion of its own any more (serving.projects.{project})")


def attempted(complete: Callable[[Context, Manifest], R]) -> Callable[[Context, Manifest], R]:
    """Return a function that completes a cycle. A run that is stopped meanwhile takes its attempt back: a worker that
    restarts, and a person who cancels, are no failure of the cycle."""

    @wraps(complete)
    def run(context: Context, manifest: Manifest) -> R:
        try:
            return complete(context, manifest)
        except (KeyboardInterrupt, TerminationSignal):
            name = flow_run.id or "by hand"
            attempt_to_show("attempt", lambda: transaction.withdraw(context.store, manifest.cycle, name))
            raise

    return run


def abandon(context: Context, cycle: str, reason: str) -> CycleOutcome:
    """End a sealed cycle without a candidate. Of its working files, which hold text of users, the logs stay."""
    attempt_to_show("MLflow", lambda: tracking.give_up(context.settings.registry, cycle, f"abandoned: {reason}"))
    for left in context.folder(cycle).glob("*"):
        if left.is_dir():
            shutil.rmtree(left, ignore_errors=True)
        elif left.suffix != ".log":
            left.unlink(missing_ok=True)
    discard(context, cycle)
    return transaction.finish(context.store, CycleOutcome(cycle=cycle, result="abandoned", reason=reason, ended=context.now()))


def end(context: Context, outcome: CycleOutcome) -> CycleOutcome:
    """Remove a cycle's working files and write its outcome."""
    folder = context.folder(outcome.cycle)
    (folder / METRICS_NAME).unlink(missing_ok=True)  # first: a killed run then leaves no update that counts as made
    shutil.rmtree(folder, ignore_errors=True)
    discard(context, outcome.cycle)
    return transaction.finish(context.store, outcome.model_copy(update={"ended": context.now()}))
