"""The step `train` of a cycle."""

import math
import re
import time
from collections.abc import Callable
from dataclasses import replace

from prefect.logging import get_run_logger

from infra.model import adapters
from infra.records import CycleOutcome, Manifest
from infra.settings.collect import Collect
from infra.settings.training import Train
from infra.storage import cycles
from tasks.labels.shares import weight_shares
from tasks.own_code.code import project_share
from tasks.steps.context import Context
from tasks.steps.seal import end
from tasks.steps.step import IO_RETRIES, attempt_to_show, note_progress, step
from tasks.trainer import run as training
from tasks.trainer.run import Candidate, TrainerOutput, UpdateInputs, UpdateRefused
from tasks.versions import tracking

STEP_LINE = re.compile(r"step (\d+) of (\d+)\b")
"""The line that the trainer prints for each step."""
NOTE_SECONDS = 3.0
"""Shortest time between two notes of the steps taken."""


@step("train")
def train(context: Context, manifest: Manifest) -> Candidate | UpdateRefused:
    """Make one update of the parent's checkpoint, in the trainer's own processes."""
    store, settings, logger = context.store, context.settings, get_run_logger()
    sealed = cycles.settings_of(store, manifest.cycle, settings)
    inputs = replace(update_inputs(context, sealed.train, manifest), weight_shares=weight_shares_of(manifest, sealed.collect))
    parent, folder = context.checkpoint(manifest.parent), context.folder(manifest.cycle)
    note = noting(context, time.monotonic)
    with tracking.log_steps_live(settings.registry, manifest.cycle, logger.info, logger.warning) as log_step:

        def say(line: str) -> None:
            log_step(line)
            note(line)

        result = training.train(store, manifest, parent, sealed.train, TrainerOutput(folder, say), inputs)
    if isinstance(result, UpdateRefused):
        logger.warning("the update was refused: %s", result.reason)
        return result
    store.put_json(cycles.key(manifest.cycle, "training.json"), result.metrics.model_dump(mode="json"))
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
    return {"project": project_share(len(manifest.learned), settings)}


def update_inputs(context: Context, wanted: Train, manifest: Manifest) -> UpdateInputs:
    """Return the champion's checkpoint, the parent's optimizer state and its adapter, where the training settings ask for them.

    A new adapter, and whole weights after an adapter, begin with a new optimizer: the parent's state is that of other tensors.

    Raises:
        UnsuitableAdapter: the parent's adapter has another rank, or other layers, than the settings ask for.
    """
    to_champion = wanted.kl_weight > 0 and wanted.kl_reference == "champion"
    of_parent = context.adapter(manifest.parent) if wanted.adapter_rank or wanted.keep_optimizer else None
    base, adapter = (wanted.adapter_rank and of_parent) or (None, None)
    if adapter:
        adapters.check_continues(adapter, wanted.adapter_rank, wanted.frozen_layers, manifest.parent)
    continues = bool(of_parent) == bool(wanted.adapter_rank)
    return UpdateInputs(
        base=base,
        adapter=adapter,
        reference=context.checkpoint(manifest.champion) if to_champion else None,
        optimizer=context.optimizer(manifest.parent) if wanted.keep_optimizer and continues else None,
    )


@step("refuse", retries=IO_RETRIES)
def refuse(context: Context, manifest: Manifest, refused: UpdateRefused) -> CycleOutcome:
    """End the cycle without a version: the trainer refused the update."""
    reason = f"the update was refused: {refused.reason}"
    attempt_to_show("MLflow", lambda: tracking.give_up(context.settings.registry, manifest.cycle, reason))
    return end(context, CycleOutcome(cycle=manifest.cycle, result="refused", reason=reason))
