"""Open, advance and end experiments. Each is a move: it is written to the log, then shown in the registry, and a run that is
killed in between is completed by the next (log.py). Of two concurrent decisions the first one counts.
"""

from collections.abc import Iterable
from operator import itemgetter

from infra.records import Change, Decision, ExperimentRecord, Manifest, Move, Plan, Stage, State, Verdict
from infra.registry.client import VERDICT_TAG, Aliases, ModelVersion, Registry
from infra.registry.lineage import CYCLE_TAG, DATASET_TAG
from infra.settings import Settings
from infra.storage.cycles import MANUAL, decision_of, experiment_id, is_by_hand, is_rollback, project_of_test
from infra.storage.store import ObjectStore
from tasks.experiments.moves import log as moves
from tasks.experiments.moves import succession
from tasks.experiments.planning.planner import plan_test
from tasks.experiments.stages import shares as stages
from tasks.experiments.stages import states
from tasks.experiments.stages.states import GATE
from tasks.labels.pipeline import JoinAll


def propose(
    store: ObjectStore,
    settings: Settings,
    cycle: str,
    version: str,
    champion: str,
    now: float,
    anchor: ExperimentRecord | None = None,
    join_all: JoinAll | None = None,
) -> ExperimentRecord:
    """Return the record of the experiment that tests a cycle's candidate against the champion, with its plan.

    Args:
        anchor: the comparison of the champions with the anchor.
        join_all: as in read_requests (tasks/labels/counted.py).
    """
    identifier, share = experiment_id(cycle, version), settings.experiment.share
    plan = plan_of_test(store, settings, anchor, now, join_all)
    opening = (stages.first(plan, share, now),)
    return ExperimentRecord(
        id=identifier, champion=champion, challenger=version, share=share, started=now, plan=plan, stages=opening
    )


def plan_of_test(
    store: ObjectStore, settings: Settings, anchor: ExperimentRecord | None, now: float, join_all: JoinAll | None = None
) -> Plan:
    """Return the plan of a test that opens now; where the champions beside the anchor lean to a loss, it asks for a gain."""
    chosen = settings.experiment
    if chosen.mode == "superiority" or not succession.cautious(store, anchor):
        return plan_test(store, settings, now, join_all)
    superiority = chosen.model_copy(update={"mode": "superiority"})
    plan = plan_test(store, settings.model_copy(update={"experiment": superiority}), now, join_all)
    why = "a gain is needed, since the champions beside the anchor lean to a loss or a check of theirs fails"
    return plan.model_copy(update={"cautious": True, "planned": f"{plan.planned}; {why}" if plan.planned else why})


def open_experiment(store: ObjectStore, registry: Registry, proposed: ExperimentRecord) -> ExperimentRecord | None:
    """Open an experiment; return it as it runs, or None.

    None: it was decided, the champion changed, is watched or is compared with the anchor first, another one runs, or the version
    has moved on.
    """
    moves.catch_up(store, registry, proposed.started)  # a run that was killed may have opened it in the log only
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
    record = store.put_once(f"experiments/{proposed.id}.json", proposed)

    def opening(last: Move | None, seen: Aliases) -> Move | None:
        version = registry.version(record.challenger)
        if seen.experiment or seen.champion != record.champion:
            return None
        before = moves.state_before(registry, last, record.challenger)
        return moves.next_move(
            last,
            seen,
            kind="open",
            changes=(Change(version=record.challenger, before=before, after="challenger"),),
            by=version.tags[CYCLE_TAG],
            reason=f"tested against version {record.champion}",
            time=record.started,
            experiment=record.id,
            challenger=record.challenger,
            experiment_after=record,
        )

    return record if moves.write(store, registry, proposed.started, opening) else None


def opened(store: ObjectStore, registry: Registry, cycle: str) -> tuple[str, str] | None:
    """Return a cycle's version and the id of its test, if that runs or has been decided; None where it was not opened."""
    version = next((v.version for v in registry.versions() if v.tags.get(CYCLE_TAG) == cycle), None)
    if version is None:
        return None
    test, running = experiment_id(cycle, version), registry.aliases().experiment
    runs = running is not None and running.id == test
    return (version, test) if runs or decision_of(store, test) else None


def advance(
    store: ObjectStore, registry: Registry, experiment: ExperimentRecord, stage: Stage, now: float
) -> ExperimentRecord | None:
    """Enter the next stage of an experiment; return its record, or None where it has ended or another run entered a stage."""

    def advancing(last: Move | None, seen: Aliases) -> Move | None:
        if seen.experiment != experiment or decision_of(store, experiment.id):
            return None
        return moves.next_move(
            last,
            seen,
            kind="advance",
            changes=(Change(version=experiment.challenger, before="challenger", after="challenger"),),
            by=stage.by or GATE,
            reason=stage.reason,
            time=now,
            experiment=experiment.id,
            experiment_after=entered,
        )

    entered = states.enter(experiment, stage)
    return entered if moves.write(store, registry, now, advancing) else None


def champions(store: ObjectStore, known: Iterable[ModelVersion], manifests: Iterable[Manifest]) -> list[str]:
    """Return the versions that were champion in the store's loop, the latest first, from decisions and from manifests.

    An alias that is moved in MLflow leaves no decision, but the next manifest names the champion.
    """
    promoted = [v for v in known if v.tags.get(VERDICT_TAG, "").startswith("promote") and CYCLE_TAG in v.tags]
    tests = [experiment_id(v.tags[CYCLE_TAG], v.version) for v in promoted]
    dated = [(m.created, m.champion) for m in manifests]
    by_hand = filter(is_by_hand, moves.ids(store, "decisions", MANUAL))
    of_loop = [name for name in by_hand if project_of_test(name) == store.scope.project]
    for decision in (decision_of(store, name) for name in (*tests, *of_loop)):
        if decision and decision.verdict.verdict == "promote":
            dated += [(decision.decided, decision.experiment.challenger), (decision.decided, decision.experiment.champion)]
    latest = sorted(dated, key=itemgetter(0), reverse=True)
    return list(dict.fromkeys(version for _, version in latest if version))


def conclude(store: ObjectStore, registry: Registry, decision: Decision) -> Decision:
    """Write the move that carries a decision out, and show it in the registry; return the decision that stands.

    The first decision on a test stands. One on a test that does not run changes nothing but is kept, and a move by hand whose
    champion has been replaced meanwhile changes nothing.
    """
    assert decision.verdict.verdict != "undecided", "an undecided experiment goes on"
    test, by_hand = decision.experiment, is_by_hand(decision.experiment.id)
    moves.catch_up(store, registry, decision.decided)
    known = decision_of(store, test.id)
    if known and by_hand:
        return known
    # Empty if no cycle made the version, or the registry does not know it.
    dataset = next((v.tags.get(DATASET_TAG, "") for v in registry.versions() if v.version == test.challenger), "")
    written = known or decision.model_copy(update={"dataset": dataset})
    moved = moves.write(store, registry, decision.decided, lambda last, seen: _carrying_out(registry, written, last, seen))
    if moved or by_hand:
        return written
    return store.put_once(f"decisions/{test.id}.json", written)


def _carrying_out(registry: Registry, decision: Decision, last: Move | None, seen: Aliases) -> Move | None:
    """Return the move that a decision asks for; None where its test has ended, or the champion of a move by hand was replaced."""
    test, ends = decision.experiment, moves.running(seen, decision.experiment)
    replaces = decision.verdict.verdict == "promote" and (seen.champion or "") == test.champion
    if ends and not replaces:
        return _ended(decision, last, seen)
    if not replaces or not (ends or is_by_hand(test.id)):
        return None
    kind: states.ManualKind = "roll_back" if is_rollback(test.id) else "promote"
    before = moves.state_before(registry, last, test.challenger)
    changes = [Change(version=test.challenger, before=before, after="champion")]
    if test.champion:
        changes.append(Change(version=test.champion, before="champion", after=states.LEAVES[kind]))
    stays = moves.challenger_of(seen) if not ends else ""
    return moves.next_move(
        last,
        seen,
        kind=kind,
        changes=tuple(changes),
        by=decision.by,
        reason=decision.verdict.reason,
        time=decision.decided,
        experiment=test.id,
        champion=test.challenger,
        challenger="" if stays == test.challenger else stays,
        experiment_after=None if ends else seen.experiment,
        watch_after=states.enter(test, decision.watch) if decision.watch else None,
        previous_champion=test.champion,
        decision=decision,
    )


def _ended(decision: Decision, last: Move | None, seen: Aliases) -> Move:
    """Return the move that ends a test without a promotion."""
    test, rejected = decision.experiment, decision.verdict.verdict in ("reject", "breach")
    after: State = "failed" if rejected else "candidate"
    tested = moves.challenger_of(seen) == test.challenger
    return moves.next_move(
        last,
        seen,
        kind="reject" if rejected else "stop",
        changes=(Change(version=test.challenger, before="challenger", after=after),) if tested else (),
        by=decision.by,
        reason=decision.verdict.reason,
        time=decision.decided,
        experiment=test.id,
        challenger="" if tested else moves.challenger_of(seen),
        experiment_after=None,
        decision=decision,
    )


def show_look(registry: Registry, experiment: ExperimentRecord, verdict: Verdict, now: float) -> None:
    """Write the gate's latest verdict to a tag of the registered model, where the status page reads it."""
    look = Decision(experiment=experiment, verdict=verdict, decided=now, by=GATE)
    registry.set_look(look)


def void(experiment: ExperimentRecord, aliases: Aliases) -> Verdict | None:
    """Return the verdict on an experiment whose champion or challenger was moved by hand; None if neither was."""
    if aliases.champion != experiment.champion:
        why = f"the champion is {aliases.champion} now, the test was against {experiment.champion}"
    elif aliases.challenger != experiment.challenger:
        why = f"the challenger is {aliases.challenger or 'nobody'} now, the test was of {experiment.challenger}"
    else:
        return None
    return Verdict(verdict="broken", reason=f"void: {why}")
