"""The step `train` of a cycle."""

import math
import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from prefect.logging import get_run_logger

from infra.model import adapters, architectures
from infra.records import CycleOutcome, Manifest
from infra.settings.collect import Collect
from infra.settings.training import Train
from infra.storage import cycles
from tasks.labels.shares import weight_shares
from tasks.own_code.code import project_share
from tasks.steps import training_job
from tasks.steps.context import Context
from tasks.steps.seal import end
from tasks.steps.step import IO_RETRIES, attempt_to_show, note_progress, step
from tasks.trainer import run as training
from tasks.trainer.run import Candidate, TrainerOutput, UpdateInputs, UpdateRefused
from tasks.versions import tracking

if TYPE_CHECKING:
    from tasks.trainer.cluster.order import Order

STEP_LINE = re.compile(r"step (\d+) of (\d+)\b")
"""The line that the trainer prints for each step."""
NOTE_SECONDS = 3.0
"""Shortest time between two notes of the steps taken."""


@step("train")
def train(context: Context, manifest: Manifest) -> Candidate | UpdateRefused:
    """Make one update of the parent's checkpoint, in the trainer's own processes: on this machine, or in a Job of a cluster."""
    store, settings, logger = context.store, context.settings, get_run_logger()
    sealed = cycles.settings_of(store, manifest, settings)
    shares, parent = weight_shares_of(manifest, sealed.collect), context.checkpoint(manifest.parent)
    note = noting(context, time.monotonic)
    training_job.discard_left(context, manifest.cycle)
    with tracking.log_steps_live(settings.registry, manifest.cycle, logger.info, logger.warning) as log_step:

        def say(line: str) -> None:
            log_step(line)
            note(line)

        if settings.train.job:
            result = training_job.train(context, order_of(context, sealed.train, manifest, shares), say)
        else:
            training_job.discard(context, manifest.cycle)  # a run of before, where train.job was set, left its Job at work
            inputs = replace(update_inputs(context, sealed.train, manifest), weight_shares=shares)
            output = TrainerOutput(context.folder(manifest.cycle), say)
            result = training.train(store, manifest, parent, sealed.train, output, inputs)
    if isinstance(result, UpdateRefused):
        logger.warning("the update was refused: %s", result.reason)
        return result
    store.put_json(cycles.key(manifest.cycle, cycles.TRAINING), result.metrics.model_dump(mode="json"))
    logger.info("trained on %d samples in %.1f s", result.metrics.samples, result.seconds)
    return result


def noting(context: Context, clock: Callable[[], float]) -> Callable[[str], None]:
    """Return a function that takes the trainer's lines, and notes now and then how many of its steps are taken."""
    last = -math.inf

    def take(line: str) -> None:
        nonlocal last
        if (found := STEP_LINE.match(line)) and clock() - last >= NOTE_SECONDS:
            last = clock()
            note_progress(context, float(found[1]), float(found[2]))

    return take


def weight_shares_of(manifest: Manifest, settings: Collect) -> dict[str, float]:
    """Return the largest share of the update's weight by the field that names the group; of own code, nobody is its user."""
    if not manifest.learned:
        return weight_shares(settings)
    return {"project": project_share(sum(each.places > 0 for each in manifest.learned), settings)}


def update_inputs(context: Context, wanted: Train, manifest: Manifest) -> UpdateInputs:
    """Return the champion's checkpoint, the parent's optimizer state and its adapter, where the training settings ask for them.

    A new adapter, and whole weights after an adapter, begin with a new optimizer: the parent's state is that of other tensors.

    Raises:
        UnsuitableAdapter: the parent's adapter has another rank, or other layers, than the settings ask for.
    """
    of_parent, continues = _adapter_and_state(context, wanted, manifest)
    base, adapter = (wanted.adapter_rank and of_parent) or (None, None)
    return UpdateInputs(
        base=base,
        adapter=adapter,
        reference=context.checkpoint(manifest.champion) if _to_champion(wanted) else None,
        optimizer=context.optimizer(manifest.parent) if continues else None,
    )


def order_of(context: Context, wanted: Train, manifest: Manifest, shares: dict[str, float]) -> "Order":
    """Return the same inputs by their places in the bucket, from which the pods of a Job fetch them.

    Raises:
        UnsuitableAdapter: as `update_inputs`.
        UnsupportedCheckpoint: the parent has an architecture that cannot be trained; no Job asks for GPUs for it.
    """
    from tasks.trainer.cluster.order import Order

    architectures.check(context.checkpoint(manifest.parent))
    of_parent, continues = _adapter_and_state(context, wanted, manifest)
    return Order(
        cycle=manifest.cycle,
        samples=manifest.samples.key,
        samples_sha256=manifest.samples.sha256,
        parent=training_job.stored(context, manifest.parent),
        reference=training_job.stored(context, manifest.champion) if _to_champion(wanted) else None,
        optimizer=training_job.stored_optimizer(context, manifest.parent) if continues else None,
        continues_adapter=bool(wanted.adapter_rank and of_parent),
        weight_shares=shares,
        train=wanted.model_copy(update={"job": context.settings.train.job}),
    )


def _to_champion(wanted: Train) -> bool:
    return wanted.kl_weight > 0 and wanted.kl_reference == "champion"


def _adapter_and_state(context: Context, wanted: Train, manifest: Manifest) -> tuple[tuple[Path, Path] | None, bool]:
    """Return the parent's base and adapter, if it has one and that matters, and whether its optimizer's state is continued."""
    of_parent = context.adapter(manifest.parent) if wanted.adapter_rank or wanted.keep_optimizer else None
    if wanted.adapter_rank and of_parent:
        adapters.check_continues(of_parent[1], wanted.adapter_rank, wanted.frozen_layers, manifest.parent)
    return of_parent, wanted.keep_optimizer and bool(of_parent) == bool(wanted.adapter_rank)


@step("refuse", retries=IO_RETRIES)
def refuse(context: Context, manifest: Manifest, refused: UpdateRefused) -> CycleOutcome:
    """End the cycle without a version: the trainer refused the update."""
    reason = f"the update was refused: {refused.reason}"
    attempt_to_show("MLflow", lambda: tracking.give_up(context.settings.registry, manifest.cycle, reason))
    return end(context, CycleOutcome(cycle=manifest.cycle, result="refused", reason=reason))
