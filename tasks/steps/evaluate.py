"""The step `evaluate` of a cycle."""

from collections.abc import Mapping
from pathlib import Path

from prefect.logging import get_run_logger
from prefect.runtime import flow_run

from infra.records import Manifest
from infra.storage import cycles
from tasks.evaluation import cycle_sets
from tasks.evaluation import evaluate as evaluating
from tasks.evaluation.cycle_sets import ScoredSet
from tasks.evaluation.evaluate import Contest, Evaluation, JudgeAway, JudgeRefused
from tasks.evaluation.models.engine import EngineAway, engine_models
from tasks.labels.accounting import Waiting
from tasks.steps import transaction
from tasks.steps.context import Context
from tasks.steps.hold_out import manifests_of, trained_text
from tasks.steps.step import step
from tasks.trainer.run import Candidate
from tasks.versions import register as registering


@step("evaluate")
def evaluate(context: Context, manifest: Manifest, candidate: Candidate) -> Evaluation | Waiting:
    """Score candidate and champion on code that neither learnt from, as the cycle's sealed settings say.

    While the engine or the judge is away the candidate has no verdict: the next run goes on, and this one does not count as one
    that failed. Nor does one whose judge refuses, which ends with the setting to change: the candidate is not to blame.

    Raises:
        JudgeRefused: the judge refuses the requests.
    """
    store, sealed = context.store, cycles.settings_of(context.store, manifest, context.settings)
    trained = trained_text(context, manifest.parent)
    held_out = cycle_sets.scored_sets(
        store, manifest, sealed.evaluate, trained.of_cycles, lambda: manifests_of(context, manifest.parent)
    )
    log_sets(held_out)
    champion = context.checkpoint(manifest.champion)
    sources = None if sealed.evaluate.shares_disk else sources_of(context, manifest, candidate, champion)
    try:
        with engine_models(sealed, manifest.champion, sources, adapters_of(context, manifest, candidate, champion)) as models:
            contest = Contest(candidate.checkpoint, champion, models, held_out)
            evaluation = evaluating.evaluate(store, sealed, contest, manifest.cycle)
    except (EngineAway, JudgeAway, JudgeRefused) as error:
        transaction.withdraw(store, manifest.cycle, flow_run.id or "by hand")
        if isinstance(error, JudgeRefused):
            raise
        state = "WaitingForEngine" if isinstance(error, EngineAway) else "WaitingForJudge"
        return Waiting(state, f"{manifest.cycle} is trained and not evaluated: {error}. The next run goes on")
    get_run_logger().info("%s", evaluation.reason)
    return evaluation


def sources_of(context: Context, manifest: Manifest, candidate: Candidate, champion: Path) -> Mapping[Path, str]:
    """Upload the candidate; return the address of each checkpoint, for an engine that does not share this machine's disk."""
    uploaded = registering.upload_candidate(context.store, context.registry, manifest, candidate)
    return {candidate.checkpoint: context.store.uri(uploaded), champion: context.registry.version(manifest.champion).source}


def adapters_of(context: Context, manifest: Manifest, candidate: Candidate, champion: Path) -> Mapping[Path, Path]:
    """Return the folder of the adapter of each checkpoint that has one."""
    of_champion = context.adapter(manifest.champion)
    found = {candidate.checkpoint: candidate.adapter, champion: of_champion[1] if of_champion else None}
    return {checkpoint: adapter for checkpoint, adapter in found.items() if adapter}


def log_sets(held_out: tuple[ScoredSet, ...]) -> None:
    """Log the size of each evaluation set, and the positions that are left out."""
    for one in held_out:
        get_run_logger().info(
            "evaluation set %s: %d positions, left out %s, not compared with %s",
            *(one.name, len(one.scored), dict(one.left_out), list(one.unchecked)),
        )
