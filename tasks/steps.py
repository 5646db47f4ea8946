"""The steps of the flows: thin Prefect tasks over the plain functions of this room.

Retries stand only where there is I/O. Inputs are never hashed: a step that is done is known by what it left in the object store.
"""

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

from prefect import Task, task
from prefect.artifacts import create_markdown_artifact, create_table_artifact
from prefect.cache_policies import NO_CACHE
from prefect.logging import get_run_logger
from prefect.runtime import flow_run

from infra import settings as settings_
from infra.records import Decision, ExperimentRecord, Manifest, Verdict
from infra.registry import Registry, RegistryError
from infra.settings import Settings
from infra.settings.schema import Train
from infra.store import ObjectStore
from tasks import (
    batch,
    checkpoints,
    compaction,
    cycles,
    forgotten,
    history,
    partitions,
    quarantine,
    release,
    report,
    retention,
    samples,
    tracking,
)
from tasks import collect as collecting
from tasks import decide as deciding
from tasks import evaluate as evaluating
from tasks import forget as forgetting
from tasks import register as registering
from tasks import train as training
from tasks import validate as validating
from tasks.collect import Collected
from tasks.compaction import Compaction
from tasks.cycles import Outcome
from tasks.evaluate import Evaluation
from tasks.forget import Forgetting
from tasks.partitions import Partition, Sifted
from tasks.register import Registered
from tasks.retention import Retained
from tasks.reward import added_up, rewarded
from tasks.runners import runner
from tasks.train import Aids, Refused, Trained
from tasks.weights import capped

P = ParamSpec("P")
R = TypeVar("R")


def step(name: str, *, retries: int = 0) -> Callable[[Callable[P, R]], Task[P, R]]:
    """A task that keeps no result."""
    return task(name=name, retries=retries, retry_delay_seconds=2, cache_policy=NO_CACHE, persist_result=False)


IO_RETRIES = 2


@dataclass(frozen=True)
class Situation:
    """What a cycle finds when it starts."""

    running: ExperimentRecord | None
    """The experiment that keeps a new cycle from beginning."""
    unfinished: str | None
    """A cycle that was begun and has not ended."""


def store_of(settings: Settings) -> ObjectStore:
    return ObjectStore.connect(settings.store)


def registry_of(settings: Settings) -> Registry:
    return Registry.connect(settings.registry)


def folder_of(settings: Settings, cycle: str) -> Path:
    return settings_.path(settings.train.folder) / cycle


@step("look", retries=IO_RETRIES)
def look(settings: Settings) -> Situation:
    """Whether an experiment runs, and whether an earlier cycle was killed."""
    store = store_of(settings)
    store.check_conditional_puts()
    unfinished = cycles.unfinished(cycles.index(store))
    return Situation(registry_of(settings).aliases().experiment, unfinished)


@step("collect", retries=IO_RETRIES)
def collect(settings: Settings) -> Collected:
    """The window of events since the version to train was made, every request in its bucket."""
    found = collecting.collect(
        store_of(settings), registry_of(settings), settings, time.time(), lambda partitions: spread(settings, partitions)
    )
    accounts = found.accounts
    get_run_logger().info(
        "training goes on from version %s; %d requests, %d to train on; %s",
        found.parent,
        accounts.requests,
        accounts.samples.height,
        {k: n for k, n in accounts.buckets.items() if n},
    )
    return found


@step("join", retries=IO_RETRIES)
def sift(partition: Partition) -> Sifted:
    """Read and join some hours of the window, on whatever machine: with the settings there, so that no key travels."""
    return partitions.sift(store_of(settings_.load()), partition)


def spread(settings: Settings, window: Sequence[Partition]) -> list[Sifted]:
    """Join the partitions of a window, each a task."""
    with runner(settings.orchestration.dask_scheduler) as found:
        parts = found.map(cast(Any, sift), {"partition": list(window)})
        return cast(list[Sifted], parts.result())


@step("validate")
def validate(settings: Settings, collected: Collected) -> Collected:
    """Quarantine the rows that fail the suite; a batch that fails stops the cycle, its rows and Data Docs written before."""
    store, accounts, logger = store_of(settings), collected.accounts, get_run_logger()
    past = history.earlier(store, settings.collect.history_cycles)
    measured, bounds = batch.batch(accounts, collected.skew), batch.bounds(accounts.samples, past, settings.collect)
    found = validating.validate(accounts.samples, measured, bounds)
    cycle = cycles.next_name(cycles.index(store))
    failed = samples.records(store, collected.plan.partitions, accounts.of(found.quarantined))
    kept = quarantine.write(store, cycle, quarantine.rows(accounts, found.quarantined, collected.broken, failed))
    evidence = quarantine.Evidence(kept, write_docs(store, cycle, found))
    moved = collected.validated(found.quarantined, evidence)
    show_validation(store, cycle, moved, found)
    found.check(settings.collect.max_quarantined, [store.uri(key) for key in evidence.keys])
    logger.info("%d rows, %d quarantined; %s", found.rows, len(found.quarantined), measured)
    return moved


def write_docs(store: ObjectStore, cycle: str, found: validating.Validation) -> tuple[str, ...]:
    """The Data Docs of a validation; a page that cannot be made stops nothing."""
    try:
        return quarantine.write_docs(store, cycle, validating.docs(found.results))
    except Exception as error:
        get_run_logger().warning("Data Docs: %s", error)
        return ()


def show_validation(store: ObjectStore, cycle: str, collected: Collected, found: validating.Validation) -> None:
    """Artifacts in Prefect before the batch is judged: what stops a cycle can be seen."""
    try:
        accounts = collected.accounts
        rows = report.account_rows(accounts.buckets, accounts.quarantined, accounts.requests)
        create_table_artifact(rows, key="buckets", description=f"{cycle}: every request once")
        create_markdown_artifact(report.validation_page(store, cycle, collected.evidence, found), key="validation")
    except Exception as error:
        get_run_logger().warning("artifacts: %s", error)


@step("reward", retries=IO_RETRIES)
def reward(settings: Settings, collected: Collected) -> Manifest:
    """Reward the samples and seal the cycle: from here on it is completed by whoever comes next."""
    store = store_of(settings)
    past = history.returns(store, settings) if settings.reward.baseline == "running" else ()
    judged = rewarded(collected.accounts.samples, settings.reward, past)
    chosen = capped(judged, settings.collect.max_user_weight)
    served = collected.accounts.placed.select("user", "project").rows()
    forgotten.check(store, served)  # of those who are forgotten by now there are no tokens to be read
    body = samples.parquet(samples.tables(store, collected.plan.partitions, chosen))
    cycle = cycles.next_name(cycles.index(store))
    forgotten.check(store, served)
    store.put_json(f"cycles/{cycle}/validation.json", {"quarantined": collected.accounts.reasons, "orphans": collected.orphans})
    returns = added_up(*(judged[name].to_list() for name in ("reward", "tokens", "language")))
    fields = collected.manifest_fields(time.time()) | {"returns": returns, "run": flow_run.id or ""}
    return cycles.seal(store, cycle, fields, body, settings)


@step("resume", retries=IO_RETRIES)
def resume(settings: Settings, cycle: str, run: str) -> Manifest | Outcome:
    """The manifest of a cycle that is to be completed; its end, where it failed too often or the champion was replaced."""
    store = store_of(settings)
    manifest = cycles.manifest_of(store, cycle)
    champion = registry_of(settings).aliases().champion
    if champion != manifest.champion:
        return abandon(settings, cycle, f"to be tested against version {manifest.champion}, but the champion is {champion} now")
    if cycles.attempt(store, cycle, run) > cycles.MAX_ATTEMPTS:
        return abandon(settings, cycle, f"failed {cycles.MAX_ATTEMPTS} times")
    return manifest


def abandon(settings: Settings, cycle: str, reason: str) -> Outcome:
    """Give up a cycle that was begun."""
    end_run(lambda: tracking.give_up(settings.registry, cycle, f"abandoned: {reason}"))
    return cycles.finish(store_of(settings), Outcome(cycle=cycle, result="abandoned", reason=reason))


@step("train")
def train(settings: Settings, manifest: Manifest) -> Trained | Refused:
    """One PPO update from the parent's checkpoint, in the trainer's own processes."""
    store = store_of(settings)
    begun = cycles.settings_of(store, manifest.cycle, settings)
    parent = checkpoint_of(settings, manifest.parent)
    logger = get_run_logger()
    folder = folder_of(settings, manifest.cycle)
    aids = aids_of(settings, begun.train, manifest)
    with tracking.told(settings.registry, manifest.cycle, logger.info, logger.warning) as say:
        result = training.train(store, manifest, parent, begun.train, folder, say, aids)
    if isinstance(result, Refused):
        logger.warning("the update was refused: %s", result.reason)
        return result
    store.put_json(f"cycles/{manifest.cycle}/training.json", result.metrics.model_dump(mode="json"))
    logger.info("trained on %d samples in %.1f s", result.metrics.samples, result.seconds)
    return result


@step("evaluate")
def evaluate(settings: Settings, manifest: Manifest, trained: Trained) -> Evaluation:
    """Candidate and champion on held-out code."""
    champion = checkpoint_of(settings, manifest.champion)
    found = evaluating.evaluate(store_of(settings), settings, trained.checkpoint, champion, manifest.cycle)
    get_run_logger().info("%s: %s", "passed" if found.passed else "refused", found.reason)
    return found


@step("register", retries=IO_RETRIES)
def register(settings: Settings, manifest: Manifest, trained: Trained, evaluation: Evaluation) -> Registered:
    """Checkpoint, MLflow run and model version."""
    begun = cycles.settings_of(store_of(settings), manifest.cycle, settings)
    return registering.register(store_of(settings), registry_of(settings), begun, manifest, trained, evaluation)


@step("open experiment", retries=IO_RETRIES)
def open_experiment(settings: Settings, manifest: Manifest, registered: Registered) -> Outcome:
    """The candidate takes its share of developers, and the cycle is over."""
    store = store_of(settings)
    opened = release.open_experiment(
        store, registry_of(settings), settings.experiment, manifest.cycle, registered.version, manifest.champion, time.time()
    )
    reason = f"version {registered.version} is the challenger" if opened else f"version {registered.version} could not be tested"
    shutil.rmtree(folder_of(settings, manifest.cycle), ignore_errors=True)
    return cycles.finish(
        store,
        Outcome(
            cycle=manifest.cycle,
            result="registered",
            reason=reason,
            version=registered.version,
            experiment=opened.id if opened else "",
        ),
    )


@step("refuse", retries=IO_RETRIES)
def refuse(settings: Settings, manifest: Manifest, why: Refused | tuple[Trained, Evaluation]) -> Outcome:
    """The cycle ends without a version: there is no candidate, or held-out code speaks against it."""
    store = store_of(settings)
    if isinstance(why, Refused):
        reason = f"the update was refused: {why.reason}"
        end_run(lambda: tracking.give_up(settings.registry, manifest.cycle, reason))
    else:
        reason = why[1].reason
        begun, dataset = cycles.settings_of(store, manifest.cycle, settings), cycles.dataset_id(store, manifest.cycle)
        end_run(lambda: registering.log_run(begun, store, manifest, dataset, *why))
    shutil.rmtree(folder_of(settings, manifest.cycle), ignore_errors=True)
    return cycles.finish(store, Outcome(cycle=manifest.cycle, result="refused", reason=reason))


def end_run(end: Callable[[], object]) -> None:
    """End a cycle's run in MLflow: a failure to show stops nothing."""
    try:
        end()
    except Exception as error:
        get_run_logger().warning("MLflow: %s", error)


@step("show")
def show(manifest: Manifest, trained: Trained, evaluation: Evaluation, outcome: Outcome) -> None:
    """Artifacts in Prefect: a failure to show stops nothing."""
    try:
        create_markdown_artifact(report.cycle_page(manifest, trained, evaluation, outcome), key="cycle")
    except Exception as error:
        get_run_logger().warning("artifacts: %s", error)


@step("running experiment", retries=IO_RETRIES)
def running_experiment(settings: Settings) -> ExperimentRecord | None:
    """The experiment that the registry names."""
    return registry_of(settings).aliases().experiment


@step("verdict", retries=IO_RETRIES)
def verdict(settings: Settings, experiment: ExperimentRecord) -> Decision | Verdict:
    """The decision that stands already, or the gate's word on the events so far."""
    store, now = store_of(settings), time.time()
    if decided := release.decision_of(store, experiment.id):
        return decided
    if void := release.void(experiment, registry_of(settings).aliases().champion):
        return Decision(experiment=experiment, verdict=void, decided=now, by=release.GATE)
    evidence = deciding.gather(store, experiment, settings.collect, settings.experiment, now)
    found = deciding.decide(experiment, evidence, settings.experiment, now)
    get_run_logger().info("%s: %s: %s", experiment.id, found.verdict, found.reason)
    try:
        release.show_look(registry_of(settings), experiment, found, now)
    except RegistryError as error:  # a look that is not shown stops no verdict
        get_run_logger().warning("not shown: %s", error)
    if found.verdict == "undecided":
        return found
    return Decision(experiment=experiment, verdict=found, decided=now, by=release.GATE, inputs=evidence.inputs)


@step("conclude", retries=IO_RETRIES)
def conclude(settings: Settings, decision: Decision) -> Decision:
    """Write the decision once, then move the aliases."""
    return release.conclude(
        store_of(settings),
        registry_of(settings),
        decision.experiment,
        decision.verdict,
        decision.decided,
        decision.by,
        decision.inputs,
    )


@step("promote")
def promote(settings: Settings, version: str, by: str, reason: str) -> Decision:
    """Make a version the champion by hand."""
    return release.promote(store_of(settings), registry_of(settings), version, by, reason, time.time())


@step("roll back")
def rollback(settings: Settings, version: str, by: str, reason: str) -> Decision:
    """Make the previous champion, or another version, the champion again."""
    return release.rollback(store_of(settings), registry_of(settings), version, by, reason, time.time())


@step("forget", retries=IO_RETRIES)
def forget(settings: Settings, user: str, project: str, by: str, reason: str, dry_run: bool) -> Forgetting:
    """Take a user or a project out of the object store, and list the versions that were trained on it."""
    asked = forgetting.request(user, project, time.time(), by, reason)
    found = forgetting.forget(store_of(settings), registry_of(settings), asked, time.time(), dry_run=dry_run)
    for cycle in set(found.cycles) - set(found.pending) if not dry_run else ():
        shutil.rmtree(folder_of(settings, cycle), ignore_errors=True)
    show_maintenance("forget", report.forgetting_page(found))
    return found


@step("retain", retries=IO_RETRIES)
def retain(settings: Settings, dry_run: bool) -> Retained:
    """Remove what is too old, and what has come in of those who are forgotten."""
    found = retention.retain(store_of(settings), registry_of(settings), settings, time.time(), dry_run=dry_run)
    show_maintenance("retention", report.retention_page(found))
    return found


@step("compact", retries=IO_RETRIES)
def compact(settings: Settings, dry_run: bool) -> Compaction:
    """Put the small event objects of each hour together."""
    return compaction.compact(store_of(settings), settings.retention, time.time(), dry_run=dry_run)


def show_maintenance(key: str, page: str) -> None:
    """An artifact in Prefect: a failure to show stops nothing."""
    try:
        create_markdown_artifact(page, key=key)
    except Exception as error:
        get_run_logger().warning("artifacts: %s", error)


def aids_of(settings: Settings, wanted: Train, manifest: Manifest) -> Aids:
    """The champion's checkpoint and the state of the parent's optimizer, where the training settings ask for them."""
    to_champion = wanted.kl_weight > 0 and wanted.kl_reference == "champion"
    folder = settings_.path(settings.train.folder) / "versions"
    return Aids(
        reference=checkpoint_of(settings, manifest.champion) if to_champion else None,
        optimizer=checkpoints.fetch_optimizer(store_of(settings), registry_of(settings), manifest.parent, folder)
        if wanted.keep_optimizer
        else None,
    )


def checkpoint_of(settings: Settings, version: str) -> Path:
    """A version's checkpoint on this machine."""
    folder = settings_.path(settings.train.folder) / "versions"
    return checkpoints.fetch(store_of(settings), registry_of(settings), version, folder)
