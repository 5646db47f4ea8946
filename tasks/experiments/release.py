"""Open and end experiments, promote and roll back champions. Every step may be killed anywhere and run again.

The decision record is written first, once, with a conditional put; then the registry is changed to match it. A later run that
finds a decision for the running experiment carries it out, so of two concurrent decisions the first one counts.
"""

from collections.abc import Iterable
from operator import itemgetter

from infra.cycles import decision_of, experiment_id
from infra.lineage import CYCLE_TAG, DATASET_TAG
from infra.records import Decision, ExperimentRecord, Manifest, Verdict
from infra.registry import CHALLENGER, CHAMPION, LOOK_TAG, PREVIOUS_TAG, REMOVED_TAG, VERDICT_TAG, ModelVersion, Registry
from infra.settings import Settings
from infra.store import ObjectStore
from tasks.experiments.plan import make_plan

GATE = "gate"
MANUAL = "manual-"
"""Prefix of the ids of manual moves."""
MOST_TAG = 1000
"""Characters of a reason that a version's tag holds."""
MOST_NAMED = 10
"""Versions that an error lists."""


class NothingToDo(ValueError):
    """A manual promotion or rollback without a version to move to."""


class CheckpointRemoved(ValueError):
    """The weights of the version to serve were removed."""


def propose(settings: Settings, cycle: str, version: str, champion: str, now: float) -> ExperimentRecord:
    """Return the record of the experiment that tests a cycle's candidate against the champion, with its plan."""
    identifier, share = experiment_id(cycle, version), settings.experiment.share
    plan = make_plan(settings.experiment, settings.collect)
    return ExperimentRecord(id=identifier, champion=champion, challenger=version, share=share, started=now, plan=plan)


def open_experiment(store: ObjectStore, registry: Registry, proposed: ExperimentRecord) -> ExperimentRecord | None:
    """Open an experiment; return None if it was decided, the champion changed, or another experiment runs."""
    aliases = registry.aliases()
    if aliases.experiment and aliases.experiment.id != proposed.id:
        return None
    if aliases.champion != proposed.champion or decision_of(store, proposed.id):
        return None
    record = store.put_once(f"experiments/{proposed.id}.json", proposed)
    registry.set_alias(CHALLENGER, proposed.challenger)
    registry.set_experiment(record)
    return record


def champions(store: ObjectStore, known: Iterable[ModelVersion], manifests: Iterable[Manifest]) -> list[str]:
    """Return the versions that were champion, the latest first, from decisions and from manifests.

    An alias that is moved in MLflow leaves no decision, but the next manifest names the champion.
    """
    promoted = [v for v in known if v.tags.get(VERDICT_TAG, "").startswith("promote") and CYCLE_TAG in v.tags]
    tests = [experiment_id(v.tags[CYCLE_TAG], v.version) for v in promoted]
    moves = [key.removeprefix("decisions/").removesuffix(".json") for key in store.keys(f"decisions/{MANUAL}")]
    dated = [(m.created, m.champion) for m in manifests]
    for decision in (decision_of(store, name) for name in (*tests, *moves)):
        if decision and decision.verdict.verdict == "promote":
            dated += [(decision.decided, decision.experiment.challenger), (decision.decided, decision.experiment.champion)]
    latest = sorted(dated, key=itemgetter(0), reverse=True)
    return list(dict.fromkeys(version for _, version in latest if version))


def conclude(store: ObjectStore, registry: Registry, decision: Decision) -> Decision:
    """Record a decision once and carry it out; return the decision that stands."""
    assert decision.verdict.verdict != "undecided", "an undecided experiment goes on"
    dataset = dataset_of(registry, decision.experiment.challenger)
    standing = store.put_once(f"decisions/{decision.experiment.id}.json", decision.model_copy(update={"dataset": dataset}))
    carry_out(registry, standing)
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
    if not running and not experiment.id.startswith(MANUAL):
        return
    if decision.verdict.verdict == "promote" and aliases.champion in (experiment.champion or None, experiment.challenger):
        registry.set_alias(CHAMPION, experiment.challenger)
        registry.set_tag(PREVIOUS_TAG, experiment.champion)
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


def void(experiment: ExperimentRecord, champion: str | None) -> Verdict | None:
    """Return the verdict on an experiment whose champion was moved by hand; None if it was not."""
    if champion == experiment.champion:
        return None
    return Verdict(verdict="reject", reason=f"void: the champion is {champion} now, the test was against {experiment.champion}")


def promote(store: ObjectStore, registry: Registry, version: str, by: str, reason: str, now: float) -> Decision:
    """Make a version the champion by hand, by default the challenger.

    Raises:
        NothingToDo: there is no challenger, or the version is the champion.
        CheckpointRemoved: retention has removed the version's checkpoint.
    """
    aliases = registry.aliases()
    running = aliases.experiment
    version = version or aliases.challenger or ""
    if not version or version == aliases.champion:
        raise NothingToDo(
            f"promote: version {version or '(none given)'}, the champion is {aliases.champion}, there is "
            f"{'no challenger' if not aliases.challenger else f'challenger {aliases.challenger}'}; give version=N"
        )
    check_servable(registry, version)
    verdict = Verdict(verdict="promote", reason=reason or "by hand")
    if running and running.challenger == version and running.champion == aliases.champion:
        return conclude(store, registry, Decision(experiment=running, verdict=verdict, decided=now, by=by))
    if running:
        stopped = Verdict(verdict="reject", reason=f"stopped: version {version} promoted by hand")
        conclude(store, registry, Decision(experiment=running, verdict=stopped, decided=now, by=by))
    move = by_hand(aliases.champion or "", version, now)
    return conclude(store, registry, Decision(experiment=move, verdict=verdict, decided=now, by=by))


def check_servable(registry: Registry, version: str) -> None:
    """Raise where a version is unknown (RegistryError) or has no weights (CheckpointRemoved), before anything is written."""
    if not (removed := registry.version(version).tags.get(REMOVED_TAG)):
        return
    servable = [v.version for v in registry.versions() if not v.tags.get(REMOVED_TAG)]
    raise CheckpointRemoved(
        f"version {version}: expected one whose checkpoint is kept, but retention removed this one's at {removed}; nothing was "
        f"changed. Give version=N with one of the latest that have theirs: {', '.join(servable[-MOST_NAMED:])}"
    )


def rollback(store: ObjectStore, registry: Registry, version: str, by: str, reason: str, now: float) -> Decision:
    """Make an earlier version the champion again, by default the previous champion.

    Raises:
        NothingToDo: no previous champion is known.
        CheckpointRemoved: retention has removed the version's checkpoint.
    """
    aliases = registry.aliases()
    version = version or aliases.previous_champion or ""
    if not version:
        raise NothingToDo("rollback: the registry knows no previous champion; give version=N")
    return promote(store, registry, version, by, reason or "rolled back", now)


def by_hand(champion: str, version: str, now: float) -> ExperimentRecord:
    """Return the record of a move without an experiment."""
    return ExperimentRecord(
        id=f"{MANUAL}{now:.3f}-version-{version}", champion=champion, challenger=version, share=1, started=now
    )
