"""The steps of the flow `cycle`."""

import math
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import polars as pl
import pyarrow as pa
from prefect.logging import get_run_logger
from prefect.runtime import flow_run
from tokenizers import Tokenizer

from infra import settings as settings_
from infra.model.fim import Renderer
from infra.records import CycleOutcome, ExperimentRecord, HeldOutSet, Manifest
from infra.registry.lineage import lineage
from infra.settings import Settings
from infra.settings.training import Train
from infra.storage import cycles
from infra.storage.events import tombstones
from infra.storage.store import ObjectStore, sha256
from tasks.evaluation import cycle_sets as heldout
from tasks.evaluation import evaluate as evaluating
from tasks.evaluation import team
from tasks.evaluation.evaluate import Evaluation
from tasks.evaluation.models.engine import EngineAway, engine_models
from tasks.evaluation.trained import TrainedText
from tasks.experiments.moves import release
from tasks.labels import collect as collecting
from tasks.labels import explain, partitions, samples, standing, users
from tasks.labels.accounting import Waiting
from tasks.labels.collect import Collected
from tasks.labels.partitions import JoinedPartition, Partition
from tasks.labels.samples import SettledTokens
from tasks.labels.shares import weight_shares
from tasks.rewards import drawn
from tasks.rewards.reward import reward_samples, reward_totals
from tasks.rewards.weights import TooFewToShare
from tasks.showing import fit as showing
from tasks.showing import report
from tasks.showing.fit import FittedEstimate, Unfitted
from tasks.showing.labels import labelled_completions
from tasks.steps import clients, pages, sealing
from tasks.steps import experiment as watching
from tasks.steps.naming import call_run, call_waiting
from tasks.steps.runner import runner
from tasks.steps.step import IO_RETRIES, attempt_to_show, show_page, step
from tasks.trainer import run as training
from tasks.trainer.run import Candidate, TrainerOutput, UpdateInputs, UpdateRefused
from tasks.validation import batch, drift, quarantine, suite
from tasks.validation.quarantine import ValidationEvidence
from tasks.versions import register as registering
from tasks.versions import tracking
from tasks.versions.register import Registered

if TYPE_CHECKING:
    from tasks.evaluation.models.generation import SampledCompletion


@dataclass(frozen=True)
class CycleState:
    """The state in which a cycle finds the loop."""

    running: ExperimentRecord | None
    """The experiment that keeps a new cycle from starting."""
    unfinished: str | None
    """A cycle that was sealed and has not ended."""


@dataclass(frozen=True, eq=False)
class Validated:
    """A window whose failing samples are in the quarantine."""

    collected: Collected
    evidence: ValidationEvidence


@step("look", retries=IO_RETRIES)
def inspect(settings: Settings) -> CycleState:
    """Find the running experiment and the cycle that was killed."""
    store = clients.store_of(settings)
    store.check_conditional_puts()
    unfinished = cycles.unfinished(cycles.index(store))
    running = clients.registry_of(settings).aliases().experiment
    if running and not unfinished:
        call_run(f"cycle waits for {running.id}", "nothing to do")
    return CycleState(running, unfinished)


@step("collect", retries=IO_RETRIES)
def collect(settings: Settings) -> Collected:
    """Read the events since the parent version was made, and put every request in its bucket."""
    store, registry = clients.store_of(settings), clients.registry_of(settings)
    collected = collecting.collect(store, registry, settings, time.time(), lambda window: join_all(settings, window))
    accounting = collected.accounting
    call_waiting(accounting.waiting)
    get_run_logger().info(
        "training continues from version %s; %d requests, %d to train on; %s",
        collected.parent,
        accounting.requests,
        accounting.samples.height,
        {bucket: count for bucket, count in accounting.buckets.items() if count},
    )
    return collected


@step("join", retries=IO_RETRIES)
def join(partition: Partition) -> JoinedPartition:
    """Read and join some hours of the window. The settings are those of the machine that runs this, so that no key travels."""
    return partitions.join_partition(clients.store_of(settings_.load()), partition)


def join_all(settings: Settings, window: Sequence[Partition]) -> list[JoinedPartition]:
    """Join the partitions of a window, each as a task."""
    with runner(settings.orchestration.dask_scheduler) as tasks:
        parts = tasks.map(cast(Any, join), {"partition": list(window)})
        return cast(list[JoinedPartition], parts.result())


@step("validate")
def validate(settings: Settings, collected: Collected) -> Validated:
    """Quarantine the rows that fail the suite. A batch that fails stops the cycle after its rows and Data Docs are written."""
    store, accounting = clients.store_of(settings), collected.accounting
    past = drift.earlier(store)
    stats, bounds = batch.batch_stats(accounting, collected.skew), batch.bounds(accounting.samples, past, settings.collect)
    validation = suite.validate(accounting.samples, stats, bounds)
    cycle = cycles.next_name(cycles.index(store))
    failed = samples.records(store, collected.plan.partitions, accounting.samples_of(validation.quarantined))
    rows = quarantine.rows(accounting, validation.quarantined, collected.malformed, failed)
    evidence = ValidationEvidence(quarantine.write(store, cycle, rows), write_docs(store, cycle, validation))
    validated = Validated(collected.quarantine(validation.quarantined), evidence)
    # Before the batch is judged, so that people see what stops a cycle.
    pages.show_accounting(cycle, validated.collected.accounting)
    show_page("validation", quarantine.validation_page(store, cycle, validated.evidence, validation))
    call_waiting(validated.collected.accounting.waiting)
    validation.check([store.uri(key) for key in evidence.keys])
    get_run_logger().info("%d rows, %d quarantined; %s", validation.rows, len(validation.quarantined), stats)
    return validated


def write_docs(store: ObjectStore, cycle: str, validation: suite.Validation) -> tuple[str, ...]:
    """Write the Data Docs of a validation; return their keys. A page that cannot be rendered stops nothing."""
    try:
        return quarantine.write_docs(store, cycle, suite.docs(validation.results))
    except Exception as error:
        get_run_logger().warning("Data Docs: %s", error)
        return ()


@step("estimate", retries=IO_RETRIES)
def estimate(settings: Settings, validated: Validated) -> FittedEstimate | Unfitted:
    """Fit the estimate of what is kept on the samples; the candidate's version gets it. Without one it shows everything."""
    store, collected = clients.store_of(settings), validated.collected
    chosen = collected.accounting.samples
    fitted = showing.fit(list(labelled_completions(store, collected.plan.partitions, chosen)))
    get_run_logger().info("estimate of what is kept: %s", report.summary(fitted))
    return fitted


@step("reward", retries=IO_RETRIES)
def reward(settings: Settings, validated: Validated, estimate: FittedEstimate | Unfitted) -> Manifest | Waiting:
    """Reward the samples and seal the cycle: from here on every run completes this cycle."""
    store, collected = clients.store_of(settings), validated.collected
    past = drift.returns(store, settings) if settings.reward.baseline == "running" else ()
    plan, requests = collected.plan, collected.accounting.classified.select("user", "project").rows()
    tombstones.check(store, requests)  # the text of erased subjects cannot be read any more
    chosen = standing.with_standing(store, plan.partitions, collected.accounting.samples)
    tokens = settled_tokens(settings, collected.parent, chosen)
    try:
        batch = reward_samples(
            samples.with_settled_tokens(chosen, tokens), settings.reward, weight_shares(settings.collect), past
        )
    except TooFewToShare as error:
        return call_waiting(Waiting("WaitingForUsers", str(error)))
    groups = drawn_groups(settings, validated)
    tombstones.check(store, requests)  # nor their tokens
    body = samples.parquet([*samples.tables(store, plan.partitions, batch, tokens), *groups])
    cycle = cycles.next_name(cycles.index(store))
    call_run(cycle, cycle, f"from v{collected.parent}")
    held_out = held_out_sets(settings, cycle, collected, body)
    tombstones.check(store, requests)
    reasons = {"quarantined": collected.accounting.reasons, "orphans": collected.orphans}
    showing.write(store, cycle, estimate)
    store.put_json(cycles.key(cycle, "validation.json"), reasons)
    explain.write(store, cycle, sha256([body]), collected.accounting)
    users.write(store, cycle, sha256([body]), collected.register)
    totals = reward_totals(*(batch[name].to_list() for name in ("reward", "tokens", "language")))
    fields = sealing.manifest_fields(collected, validated.evidence, time.time())
    fields |= {"returns": totals, "held_out": held_out, "run": flow_run.id or ""}
    return sealing.seal(store, cycle, fields, body, settings)


def drawn_groups(settings: Settings, validated: Validated) -> list[pa.Table]:
    """Return the rows of groups drawn from the parent at the samples' places, as the settings ask for."""
    collected, wanted, model = validated.collected, settings.train.groups, settings.model
    if not wanted.places:
        return []
    store, checkpoint = clients.store_of(settings), clients.checkpoint_of(settings, collected.parent)
    from tasks.evaluation.models.generation import Generator

    def sampler(contexts: Sequence[tuple[str, str]]) -> "Sequence[SampledCompletion]":
        most, seed = settings.serving.sampling.max_tokens, settings.train.seed
        return Generator(checkpoint, model).sample(contexts, most, wanted.temperature, seed)

    places = list(drawn.settled_places(store, collected.plan.partitions, collected.accounting.samples))
    found = drawn.draw(places, collected.parent, sampler, wanted, settings.reward, weight_shares(settings.collect))
    get_run_logger().info("drawn groups: %d rows%s", len(found.samples), found.reason and f", since {found.reason}")
    return [samples.table(found.samples)] if found.samples else []


def held_out_sets(settings: Settings, cycle: str, collected: Collected, body: bytes) -> tuple[HeldOutSet, ...]:
    """Write the sets that the cycle's candidate is scored on, compared with its samples and those of its ancestry."""
    store, trained = clients.store_of(settings), trained_text(settings, collected.parent)
    plan, accounting, lines = collected.plan.partitions, collected.accounting, settings.collect.hindsight.lines
    written = heldout.prepare(
        store,
        settings.evaluate,
        cycle,
        lambda wanted, count: team.places(store, plan, accounting, wanted, count, lines),
        trained.of_samples(body),
        ancestry_of(settings, collected.parent),
        trained.of_cycles,
    )
    for one in written:
        get_run_logger().info(
            "held-out set %s: %d places, left out %s", one.name, one.places.rows - len(one.trained), one.left_out
        )
    return written


def trained_text(settings: Settings, parent: str) -> TrainedText:
    """Return what reads the text of samples of a parent and its ancestors."""
    model = settings.model
    tokenizer = Tokenizer.from_file(str(clients.checkpoint_of(settings, parent) / "tokenizer.json"))
    renderer = Renderer(tokenizer, model.fim_order, model.max_prefix_tokens, model.max_suffix_tokens)
    return TrainedText(clients.store_of(settings), tokenizer, renderer)


def ancestry_of(settings: Settings, parent: str) -> Sequence[Manifest]:
    """Return the manifests of the cycles that made a version and its ancestors, newest first."""
    versions = clients.registry_of(settings).versions()
    return collecting.ancestry(clients.store_of(settings), lineage(versions), parent, -math.inf)


def settled_tokens(settings: Settings, parent: str, batch: pl.DataFrame) -> SettledTokens | None:
    """Return what turns settled text and standing lines into tokens of the parent; None where a batch has neither."""
    if batch["settled"].null_count() == batch.height and not batch["standing"].list.len().sum():
        return None
    model = settings.model
    tokenizer = Tokenizer.from_file(str(clients.checkpoint_of(settings, parent) / "tokenizer.json"))
    renderer = Renderer(tokenizer, model.fim_order, model.max_prefix_tokens, model.max_suffix_tokens)
    return SettledTokens(renderer, settings.serving.sampling.max_tokens, settings.collect.hindsight.lines)


@step("resume", retries=IO_RETRIES)
def resume(settings: Settings, cycle: str, run: str) -> Manifest | CycleOutcome:
    """Return the manifest of a cycle to complete, or its outcome if it was resumed too often or the champion changed."""
    store = clients.store_of(settings)
    manifest = cycles.manifest_of(store, cycle)
    call_run(f"{cycle}, resumed", cycle, f"from v{manifest.parent}", "resumed")
    champion = clients.registry_of(settings).aliases().champion
    if champion != manifest.champion:
        return abandon(settings, cycle, f"to be tested against version {manifest.champion}, but the champion is {champion} now")
    if sealing.attempt(store, cycle, run) > sealing.MAX_RESUMES:
        return abandon(settings, cycle, f"failed, then failed in each of {sealing.MAX_RESUMES} runs that resumed it")
    return manifest


def abandon(settings: Settings, cycle: str, reason: str) -> CycleOutcome:
    """End a sealed cycle without a candidate."""
    attempt_to_show("MLflow", lambda: tracking.give_up(settings.registry, cycle, f"abandoned: {reason}"))
    return sealing.finish(clients.store_of(settings), CycleOutcome(cycle=cycle, result="abandoned", reason=reason))


@step("train")
def train(settings: Settings, manifest: Manifest) -> Candidate | UpdateRefused:
    """Make one PPO update from the parent's checkpoint, in the trainer's own processes."""
    store, logger = clients.store_of(settings), get_run_logger()
    sealed = cycles.settings_of(store, manifest.cycle, settings)
    wanted, parent = sealed.train, clients.checkpoint_of(settings, manifest.parent)
    folder = clients.folder_of(settings, manifest.cycle)
    inputs = replace(update_inputs(settings, wanted, manifest), weight_shares=weight_shares(sealed.collect))
    with tracking.log_steps_live(settings.registry, manifest.cycle, logger.info, logger.warning) as say:
        result = training.train(store, manifest, parent, wanted, TrainerOutput(folder, say), inputs)
    if isinstance(result, UpdateRefused):
        logger.warning("the update was refused: %s", result.reason)
        return result
    store.put_json(cycles.key(manifest.cycle, "training.json"), result.metrics.model_dump(mode="json"))
    logger.info("trained on %d samples in %.1f s", result.metrics.samples, result.seconds)
    return result


def update_inputs(settings: Settings, wanted: Train, manifest: Manifest) -> UpdateInputs:
    """Return the champion's checkpoint and the parent's optimizer state, where the training settings ask for them."""
    to_champion = wanted.kl_weight > 0 and wanted.kl_reference == "champion"
    return UpdateInputs(
        reference=clients.checkpoint_of(settings, manifest.champion) if to_champion else None,
        optimizer=clients.optimizer_of(settings, manifest.parent) if wanted.keep_optimizer else None,
    )


@step("evaluate")
def evaluate(settings: Settings, manifest: Manifest, candidate: Candidate) -> Evaluation | Waiting:
    """Score candidate and champion on held-out code that neither learnt from, as the cycle's sealed settings say.

    While the engine is away the candidate stays unjudged: the next run goes on, and this one does not count as one that failed.
    """
    store, sealed = clients.store_of(settings), cycles.settings_of(clients.store_of(settings), manifest.cycle, settings)
    trained = trained_text(settings, manifest.parent)
    held_out = heldout.scored_sets(
        store, manifest, sealed.evaluate, trained.of_cycles, lambda: ancestry_of(settings, manifest.parent)
    )
    for one in held_out:
        get_run_logger().info(
            "held-out set %s: %d places, left out %s, not compared with %s",
            *(one.name, len(one.scored), dict(one.left_out), list(one.unchecked)),
        )
    champion = clients.checkpoint_of(settings, manifest.champion)
    sources = None
    if not sealed.evaluate.shares_disk:
        uploaded = store.uri(registering.upload(store, manifest.cycle, candidate.checkpoint))
        sources = {candidate.checkpoint: uploaded, champion: clients.registry_of(settings).version(manifest.champion).source}
    try:
        with engine_models(sealed, manifest.champion, sources) as models:
            contest = evaluating.Contest(candidate.checkpoint, champion, models, held_out)
            evaluation = evaluating.evaluate(store, sealed, contest, manifest.cycle)
    except EngineAway as error:
        sealing.withdraw(store, manifest.cycle, flow_run.id or "by hand")
        return Waiting("WaitingForEngine", f"{manifest.cycle} is trained and not evaluated: {error}. The next run goes on")
    get_run_logger().info("%s", evaluation.reason)
    return evaluation


@step("register", retries=IO_RETRIES)
def register(settings: Settings, manifest: Manifest, candidate: Candidate, evaluation: Evaluation) -> Registered:
    """Upload the checkpoint, log the MLflow run, create the model version, whatever the verdict."""
    store, registry = clients.store_of(settings), clients.registry_of(settings)
    sealed = cycles.settings_of(store, manifest.cycle, settings)
    parent = clients.remaining_checkpoint_of(settings, manifest.parent)
    return registering.register(store, registry, sealed, manifest, candidate, evaluation, parent)


@step("open experiment", retries=IO_RETRIES)
def open_experiment(settings: Settings, manifest: Manifest, registered: Registered) -> CycleOutcome:
    """Give the candidate its share of developers, and end the cycle."""
    store, registry, version = clients.store_of(settings), clients.registry_of(settings), registered.version
    watching.await_comparisons(settings)
    anchor = registry.aliases().anchor
    proposed = release.propose(store, settings, manifest.cycle, version, manifest.champion, time.time(), anchor)
    opened = release.open_experiment(store, registry, proposed)
    reason = f"version {version} is the challenger" if opened else f"version {version} could not be tested"
    experiment = opened.id if opened else ""
    outcome = CycleOutcome(cycle=manifest.cycle, result="registered", reason=reason, version=version, experiment=experiment)
    return end(settings, manifest, outcome)


def end(settings: Settings, manifest: Manifest, outcome: CycleOutcome) -> CycleOutcome:
    """Remove a cycle's working files and write its outcome."""
    shutil.rmtree(clients.folder_of(settings, manifest.cycle), ignore_errors=True)
    return sealing.finish(clients.store_of(settings), outcome)


@step("refuse", retries=IO_RETRIES)
def refuse(settings: Settings, manifest: Manifest, why: UpdateRefused) -> CycleOutcome:
    """End the cycle without a version: the trainer refused the update."""
    reason = f"the update was refused: {why.reason}"
    attempt_to_show("MLflow", lambda: tracking.give_up(settings.registry, manifest.cycle, reason))
    return end(settings, manifest, CycleOutcome(cycle=manifest.cycle, result="refused", reason=reason))


@step("fail", retries=IO_RETRIES)
def fail(settings: Settings, manifest: Manifest, registered: Registered, evaluation: Evaluation) -> CycleOutcome:
    """End the cycle with a version that no user meets: the candidate did not pass the held-out gate."""
    reason = f"version {registered.version} is not tested: {evaluation.reason}"
    outcome = CycleOutcome(cycle=manifest.cycle, result="refused", reason=reason, version=registered.version)
    return end(settings, manifest, outcome)


@step("show")
def show(settings: Settings, manifest: Manifest, candidate: Candidate, evaluation: Evaluation, outcome: CycleOutcome) -> None:
    """Show the cycle's page in Prefect."""
    page = pages.cycle_page(manifest, candidate, evaluation, outcome)
    show_page("cycle", f"{page}\n\n{report.page(showing.read(clients.store_of(settings), manifest.cycle))}")
