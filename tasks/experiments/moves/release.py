"""Open and end experiments. Every step may be killed anywhere and run again.

The decision record is written first, once, with a conditional put; then the registry is changed to match it, and the move is
recorded (tasks/experiments/moves/log.py). A later run that finds a decision for the running experiment carries it out, so of two
concurrent decisions the first one counts.
"""

from collections.abc import Iterable
from operator import itemgetter

from infra.records import Decision, ExperimentRecord, Manifest, Plan, Stage, Verdict
from infra.registry.client import (
    CHALLENGER,
    CHAMPION,
    LOOK_TAG,
    PREVIOUS_TAG,
    ROLLED_BACK_TAG,
    VERDICT_TAG,
    Aliases,
    ModelVersion,
    Registry,
)
from infra.registry.lineage import CYCLE_TAG, DATASET_TAG
from infra.settings import Settings
from infra.storage.cycles import decision_of, experiment_id
from infra.storage.store import ObjectStore
from tasks.experiments.moves import log as moves
from tasks.experiments.moves import succession
from tasks.experiments.planning.planner import plan_test
from tasks.experiments.stages import shares as stages
from tasks.experiments.stages import states
from tasks.experiments.stages.states import GATE

MOST_TAG = 1000
"""Characters of a reason that a version's tag holds."""


def propose(
    store: ObjectStore,
    settings: Settings,
    cycle: str,
    version: str,
    champion: str,
    now: float,
    anchor: ExperimentRecord | None = None,
) -> ExperimentRecord:
    """Return the record of the experiment that tests a cycle's candidate against the champion, with its plan.

    Args:
        anchor: the comparison of the champions with the anchor.
    """
    identifier, share = experiment_id(cycle, version), settings.experiment.share
    plan = plan_of_test(store, settings, anchor, now)
    opening = (stages.first(plan, share, now),)
    return ExperimentRecord(
        id=identifier, champion=champion, challenger=version, share=share, started=now, plan=plan, stages=opening
    )


def plan_of_test(store: ObjectStore, settings: Settings, anchor: ExperimentRecord | None, now: float) -> Plan:
    """Return the plan of a test that opens now; where the champions beside the anchor lean to a loss, it asks for a gain."""
    chosen = settings.experiment
    if chosen.mode == "superiority" or not succession.cautious(store, anchor):
        return plan_test(store, settings, now)
    plan = plan_test(store, settings.model_copy(update={"experiment": chosen.model_copy(update={"mode": "superiority"})}), now)
    why = "a gain is needed, since the champions beside the anchor lean to a loss or a check of theirs fails"
    return plan.model_copy(update={"cautious": True, "planned": f"{plan.planned}; {why}" if plan.planned else why})


def open_experiment(store: ObjectStore, registry: Registry, proposed: ExperimentRecord) -> ExperimentRecord | None:
    """Open an experiment; return it as it runs, or None.

    None: it was decided, the champion changed, is watched or is compared with the anchor first, another one runs, or the version
    has moved on.
    """
    aliases = registry.aliases()
    if aliases.watch or succession.seconds_left(aliases, proposed.started):
        return None
    if aliases.champion != proposed.champion or decision_of(store, proposed.id):
        return None
    if aliases.experiment:
        return aliases.experiment if aliases.experiment.id == proposed.id else None  # opened by a run that was killed
    state = states.state_of(registry.version(proposed.challenger), aliases)
    if state != "challenger" and state not in states.LEGAL["open"]:  # killed in between, then promoted and rolled back by hand
        return None
    moves.record(store, registry, proposed.started)
    record = store.put_once(f"experiments/{proposed.id}.json", proposed)
    registry.set_alias(CHALLENGER, proposed.challenger)
    registry.set_experiment(record)
    moves.record(store, registry, proposed.started)
    return record


def advance(
    store: ObjectStore, registry: Registry, experiment: ExperimentRecord, stage: Stage, now: float
) -> ExperimentRecord | None:
    """Enter the next stage of an experiment; return its record, or None where it has ended or another run entered a stage.

    One tag of the registry holds all stages, so a run that is killed leaves the stage entered or not; the move is recorded then
    or by the next run.
    """
    if registry.aliases().experiment != experiment or decision_of(store, experiment.id):
        return None
    entered = states.enter(experiment, stage)
    registry.set_experiment(entered)
    moves.record(store, registry, now)
    return entered


def champions(store: ObjectStore, known: Iterable[ModelVersion], manifests: Iterable[Manifest]) -> list[str]:
    """Return the versions that were champion, the latest first, from decisions and from manifests.

    An alias that is moved in MLflow leaves no decision, but the next manifest names the champion.
    """
    promoted = [v for v in known if v.tags.get(VERDICT_TAG, "").startswith("promote") and CYCLE_TAG in v.tags]
    tests = [experiment_id(v.tags[CYCLE_TAG], v.version) for v in promoted]
    dated = [(m.created, m.champion) for m in manifests]
    for decision in (decision_of(store, name) for name in (*tests, *moves.manual_ids(store))):
        if decision and decision.verdict.verdict == "promote":
            dated += [(decision.decided, decision.experiment.challenger), (decision.decided, decision.experiment.champion)]
    latest = sorted(dated, key=itemgetter(0), reverse=True)
    return list(dict.fromkeys(version for _, version in latest if version))


def conclude(store: ObjectStore, registry: Registry, decision: Decision) -> Decision:
    """Record a decision once, carry it out and record the move; return the decision that stands."""
    assert decision.verdict.verdict != "undecided", "an undecided experiment goes on"
    dataset = dataset_of(registry, decision.experiment.challenger)
    standing = store.put_once(f"decisions/{decision.experiment.id}.json", decision.model_copy(update={"dataset": dataset}))
    carry_out(registry, standing)
    moves.record(store, registry, standing.decided)
    return standing


def dataset_of(registry: Registry, version: str) -> str:
    """Return the id of the data set of a version; "" if no cycle made it or the registry does not know it."""
    return next((v.tags.get(DATASET_TAG, "") for v in registry.versions() if v.version == version), "")


def carry_out(registry: Registry, decision: Decision) -> None:
    """Change the registry to match a decision; do nothing if the experiment has already ended.

    A champion that was moved by hand in the meantime stays, since the experiment compared with another version.
    """
    experiment, aliases = decision.experiment, registry.aliases()
    running = aliases.experiment is not None and aliases.experiment.id == experiment.id
    if not running and not experiment.id.startswith(moves.MANUAL):
        return
    if decision.verdict.verdict == "promote" and aliases.champion in (experiment.champion or None, experiment.challenger):
        if decision.watch:  # before the alias, so that the holdout never leaves its slot
            registry.set_watch(states.enter(experiment, decision.watch))
        registry.set_alias(CHAMPION, experiment.challenger)
        registry.set_tag(PREVIOUS_TAG, experiment.champion)
        if aliases.watch and not decision.watch:
            registry.set_watch(None)
        if moves.ROLLBACK in experiment.id:
            why = f"by {decision.by}: {decision.verdict.reason}"
            registry.set_version_tag(experiment.champion, ROLLED_BACK_TAG, why[:MOST_TAG])
    registry.set_version_tag(experiment.challenger, VERDICT_TAG, f"{decision.verdict.verdict}, by {decision.by}")
    registry.set_version_tag(experiment.challenger, f"{VERDICT_TAG}.reason", decision.verdict.reason[:MOST_TAG])
    if running:
        if aliases.challenger == experiment.challenger:
            registry.delete_alias(CHALLENGER)
        registry.set_experiment(None)


def show_look(registry: Registry, experiment: ExperimentRecord, verdict: Verdict, now: float) -> None:
    """Write the gate's latest verdict to a tag of the registered model, where the status page reads it."""
    look = Decision(experiment=experiment, verdict=verdict, decided=now, by=GATE)
    registry.set_tag(LOOK_TAG, look.model_dump_json())


def void(experiment: ExperimentRecord, aliases: Aliases) -> Verdict | None:
    """Return the verdict on an experiment whose champion or challenger was moved by hand; None if neither was."""
    if aliases.champion != experiment.champion:
        why = f"the champion is {aliases.champion} now, the test was against {experiment.champion}"
    elif aliases.challenger != experiment.challenger:
        why = f"the challenger is {aliases.challenger or 'nobody'} now, the test was of {experiment.challenger}"
    else:
        return None
    return Verdict(verdict="broken", reason=f"void: {why}")
