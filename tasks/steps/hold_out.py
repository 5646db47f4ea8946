"""The step `hold out` of a cycle: write the evaluation sets of its candidate."""

import math
from collections.abc import Callable, Sequence

from prefect.logging import get_run_logger

from infra.records import HeldOutSet, Manifest
from infra.registry.lineage import lineage
from infra.settings.evaluation import HeldOut
from tasks.evaluation import cycle_sets, team_set
from tasks.evaluation.heldout.sets import Places
from tasks.evaluation.training_overlap import TrainedText
from tasks.labels.collect import ancestry
from tasks.steps.context import Context
from tasks.steps.naming import call_run
from tasks.steps.reward import Rewarded
from tasks.steps.step import IO_RETRIES, step
from tasks.steps.validate import Validated


@step("hold out", retries=IO_RETRIES)
def hold_out(context: Context, validated: Validated, rewarded: Rewarded) -> tuple[HeldOutSet, ...]:
    """Write the sets that the cycle's candidate is scored on, compared with its samples and those of its ancestry."""
    store, settings, collected = context.store, context.settings, validated.collected
    call_run(validated.cycle, validated.cycle, f"from v{collected.parent}")
    plan, accounting, lines = collected.plan.partitions, collected.accounting, settings.collect.hindsight.lines

    def team(wanted: HeldOut, count: int) -> Places:
        return team_set.places(store, plan, accounting, wanted, count, lines)

    written = write_sets(context, validated.cycle, collected.parent, rewarded.samples, team)
    for one in written:
        get_run_logger().info(
            "evaluation set %s: %d positions, left out %s", one.name, one.places.rows - len(one.trained), one.left_out
        )
    return written


def write_sets(
    context: Context, cycle: str, parent: str, samples: bytes, team: Callable[[HeldOut, int], Places], own: Sequence[Places] = ()
) -> tuple[HeldOutSet, ...]:
    """Write the sets of a cycle with these samples (cycle_sets.prepare); `own`: those of the code that it learns from."""
    trained, evaluate = trained_text(context, parent), context.settings.evaluate
    shingles, ancestry = trained.of_samples(samples), manifests_of(context, parent)
    return cycle_sets.prepare(context.store, evaluate, cycle, team, shingles, ancestry, trained.of_cycles, own)


def trained_text(context: Context, parent: str) -> TrainedText:
    """Return a reader of the text of samples of a parent and its ancestors."""
    tokenizer = context.tokenizer(parent)
    return TrainedText(context.store, tokenizer, context.renderer(tokenizer))


def manifests_of(context: Context, version: str) -> Sequence[Manifest]:
    """Return the manifests of the cycles that made a version and its ancestors, newest first."""
    return ancestry(context.store, lineage(context.registry.versions()), version, -math.inf)
