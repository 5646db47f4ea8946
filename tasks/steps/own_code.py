"""The first steps of a cycle of own code: read repositories, write its evaluation sets, and seal it."""

import tempfile
from dataclasses import replace
from pathlib import Path

from prefect.logging import get_run_logger
from prefect.runtime import flow_run

from infra.records import CycleOutcome, HeldOutSet, Manifest, OwnCode
from infra.redaction.redactor import Redactor
from infra.redaction.worker import personal_data
from infra.settings import Settings
from infra.storage.events import tombstones
from infra.storage.store import sha256
from tasks.evaluation.heldout.sets import Places
from tasks.labels.accounting import Waiting
from tasks.labels.collect import NoChampion
from tasks.labels.window import WINDOW_SECONDS
from tasks.own_code import code, repository
from tasks.own_code.code import LearnedCode
from tasks.own_code.repository import NoCode
from tasks.showing import fit as showing
from tasks.showing.fit import Unfitted
from tasks.steps import transaction
from tasks.steps.collect import LoopState
from tasks.steps.context import Context
from tasks.steps.hold_out import manifests_of, write_sets
from tasks.steps.naming import call_run, call_waiting
from tasks.steps.step import IO_RETRIES, step
from tasks.steps.version import code_version, commit

NO_ESTIMATE = "the cycle learnt from code, and nobody has answered completions in it"


def name_of_end(outcome: CycleOutcome) -> str:
    """Return the name of the state in which a run ends that learnt from own code."""
    return "Learned" if outcome.result == "registered" else "NotLearned"


def busy(context: Context, state: LoopState) -> Waiting | None:
    """Return why no cycle of own code can begin in the context's loop; None if it can."""
    project = context.store.scope.project
    of = f" --project {project}" if project else ""
    if state.unfinished:
        done = f"`tabloop cycle{of}` completes it"
        return Waiting("CycleUnfinished", f"{state.unfinished} is not finished: {done}, then try again")
    if state.running:
        test = f"{state.running.id} has no verdict yet"
        return Waiting("ExperimentRunning", f"{test}: wait for it, or `tabloop reject{of} --reason ...`, then try again")
    return None


@step("read code")
def read_code(context: Context, wanted: OwnCode, cycle: str) -> LearnedCode | Waiting:
    """Read the repositories, and draw positions in their files, as many as a cycle may train on."""
    settings, champion = code.training_settings(context.settings), champion_of(context)
    renderer = context.renderer(context.tokenizer(champion))
    with tempfile.TemporaryDirectory(prefix="tabloop-learn-") as work:
        try:
            read = [repository.read(source, wanted.languages, Path(work)) for source in wanted.sources]
            revisions = [commit(each.root) for each in read]
            count = wanted.places or settings.collect.max_samples
            found = code.learn(read, revisions, settings, renderer, redactor_of(settings), champion, count)
        except NoCode as error:
            return call_waiting(Waiting("NoCode", str(error)))
    for each in found.repositories:
        get_run_logger().info("%s", each)
    if found.rows < (least := settings.collect.min_samples):
        names = ", ".join(f"{each.name} ({each.places} in {each.files} files)" for each in found.repositories)
        more = "name more repositories (`tabloop learn DIR DIR`) or languages, or lower it"
        return call_waiting(Waiting("TooFewPlaces", f"{found.rows} positions: {names}; collect.min_samples = {least}: {more}"))
    return replace(found, cycle=cycle)


def champion_of(context: Context) -> str:
    """Return the version to train. Raises NoChampion without one."""
    champion = context.registry.aliases().champion
    if champion is None:
        model = context.registry.model
        raise NoChampion(f"registry: model {model!r} has no alias champion; `tabloop up` registers the base model")
    return champion


def redactor_of(settings: Settings) -> Redactor:
    """Return the redactor of secrets, and of personal data where the settings remove them from events."""
    personal = settings.serving.personal_data
    return Redactor(personal_data(personal.model_dump() if personal.kinds else None))


@step("hold out code", retries=IO_RETRIES)
def hold_out_code(context: Context, learned: LearnedCode) -> tuple[HeldOutSet, ...]:
    """Write the sets that the candidate is scored on: those of the settings, and one of each repository's held-out files."""
    # It reads no requests, so the set of the team's requests is empty.
    cycle, parent, samples = learned.cycle, learned.parent, learned.samples
    written = write_sets(context, cycle, parent, samples, lambda wanted, _: Places(wanted.name, ()), learned.held_out)
    for one in written:
        get_run_logger().info("evaluation set %s: %d positions, left out %s", one.name, one.places.rows, one.left_out)
    return written


@step("seal code", retries=IO_RETRIES)
def seal_code(context: Context, learned: LearnedCode, held_out: tuple[HeldOutSet, ...]) -> Manifest:
    """Write the inputs of a cycle of own code, its manifest last. It reads no requests, so later windows begin as without it.

    Raises:
        AlreadyExists: another run has sealed a cycle since the reading began.
    """
    store, cycle, parent = context.store, learned.cycle, learned.parent
    call_run(cycle, cycle, f"from v{parent}", "own code")
    subjects = [("", each.name) for each in learned.repositories]
    tombstones.check(store, subjects)
    showing.write(store, cycle, sha256([learned.samples]), Unfitted(reason=NO_ESTIMATE))
    # As for a window of requests: a project's loop begins after the last cycle that read the project's requests.
    read = (manifest.until for manifest in manifests_of(context, parent) if store.scope.project not in manifest.apart)
    until = next(read, context.now() - WINDOW_SECONDS)
    fields = {
        **{"created": context.now(), "champion": parent, "parent": parent, "since": until, "until": until},
        **{"completions": (), "feedback": (), "buckets": {}, "requests": 0, "apart": tuple(sorted(store.scope.apart))},
        **{"held_out": held_out, "learned": learned.repositories, "code": code_version(), "run": flow_run.id or ""},
    }
    return transaction.seal(store, cycle, fields, learned.samples, code.training_settings(context.settings), subjects)
