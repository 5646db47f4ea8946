"""Record each move once: what the registry shows and the log of moves lacks is appended, with the decision that explains it.

A decision is written first, then the registry is changed, then the move is recorded. Whoever is killed in between leaves the
rest to the next run: the move is computed again from the registry, the log and the decisions. A change of an alias that no
decision explains was made by hand in MLflow. The number of a move is its key, so of two writers one wins, and the other looks
again.
"""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from infra.records import Change, Decision, ExperimentRecord, Move, State
from infra.registry.client import PREVIOUS_TAG, STATE_TAG, VERDICT_TAG, Aliases, NotRegistered, Registry
from infra.registry.lineage import CYCLE_TAG
from infra.storage import moves as log
from infra.storage.cycles import decision_of, experiment_id
from infra.storage.store import ObjectStore
from tasks.experiments.stages import states

MANUAL = "manual-"
"""Prefix of the ids of manual moves."""
ROLLBACK = "-rollback-"
"""Part of the ids of manual rollbacks."""
IN_MLFLOW = "MLflow"
SKEW_SECONDS = 300.0
"""Largest difference between the clocks of two machines that decide and record."""


def record(store: ObjectStore, registry: Registry, now: float) -> list[Move]:
    """Append to the log the moves that it lacks, oldest first, and return them."""
    added: list[Move] = []
    while True:
        # The log is read before the aliases, and these before the decisions: a flow writes its decision before it moves an alias.
        last, seen = log.newest(store), registry.aliases()
        if last:
            settle(registry, last, seen)
        move = next_move(store, registry, last, seen, now)
        if move is None:
            return added
        if log.append(store, move):
            added.append(move)


def settle(registry: Registry, move: Move, seen: Aliases) -> None:
    """Make the tags in the registry agree with the newest move; after one by hand, the previous champion too."""
    for change in move.changes:
        with suppress(NotRegistered):  # deleted in MLflow
            if registry.version(change.version).tags.get(STATE_TAG) != change.after:
                registry.set_version_tag(change.version, STATE_TAG, change.after)
    left = next((change.version for change in move.changes if change.before == "champion"), "")
    if move.kind == "by_hand" and left and move.champion == seen.champion and left != seen.previous_champion:
        registry.set_tag(PREVIOUS_TAG, left)


def next_move(store: ObjectStore, registry: Registry, last: Move | None, seen: Aliases, now: float) -> Move | None:
    """Return the first move that leads from the newest one in the log to the aliases as seen; None where they agree."""
    champion = seen.champion or ""
    challenger = seen.challenger if seen.challenger and seen.challenger != champion else ""
    if last is None:
        return _begin(registry, seen, now) if champion else None
    if champion != last.champion:
        return _replaced(store, registry, last, seen, now)
    if last.challenger and challenger != last.challenger:
        return _ended(store, registry, last, now)
    if challenger and challenger != last.challenger:
        return _opened(store, registry, last, seen, challenger, now)
    return _advanced(last, seen, now)


def logged(store: ObjectStore, decision: Decision) -> bool:
    """Return whether a decision explains a move of the log. Those that opened and advanced its experiment have the same id."""
    for move in log.backwards(store):
        if move.experiment == decision.experiment.id and move.kind not in ("open", "advance"):
            return True
        if move.time < decision.decided - SKEW_SECONDS:
            break
    return False


def manual_ids(store: ObjectStore) -> Iterator[str]:
    """Yield the ids of the manual moves, oldest first."""
    return (key.removeprefix("decisions/").removesuffix(".json") for key in store.keys(f"decisions/{MANUAL}"))


def _begin(registry: Registry, seen: Aliases, now: float) -> Move:
    """Return the first move, which takes over the champion and the verdicts that the registry has from before the log."""
    earlier = {v.version: v.tags.get(VERDICT_TAG, "") for v in registry.versions()}
    found: dict[str, State] = {version: "failed" for version, verdict in earlier.items() if verdict.startswith("reject")}
    found |= {version: "retired" for version, verdict in earlier.items() if verdict.startswith("promote")}
    if seen.previous_champion in earlier:
        found[seen.previous_champion] = "retired"
    champion = seen.champion or ""
    found[champion] = "champion"
    changes = tuple(Change(version=version, before="candidate", after=state) for version, state in found.items())
    reason = "the log begins with what the registry says"
    return Move(number=1, kind="begin", changes=changes, by="registry", reason=reason, time=now, champion=champion)


def stage_of(seen: Aliases) -> dict[str, Any]:
    """Return the fields `stage` and `share` of a move after which the aliases are as seen."""
    running, watch = seen.experiment, seen.watch
    if watch and watch.challenger == seen.champion:
        return {"stage": watch.stage.name, "share": watch.stage.share}
    if running and running.stages and running.challenger == seen.challenger != seen.champion:
        return {"stage": running.stage.name, "share": running.stage.share}
    return {}


def _advanced(last: Move, seen: Aliases, now: float) -> Move | None:
    """Return the move by which a test, or the watch over the version it promoted, is in another stage; None where it is not."""
    stage = stage_of(seen)
    if stage == ({"stage": last.stage, "share": last.share} if last.stage else {}):
        return None
    settled = not stage
    if settled and last.stage != "watch":  # the stages of a test end with it
        return None
    test = seen.routed
    version = last.champion if settled or stage["stage"] == "watch" else last.challenger
    state: State = "champion" if version == last.champion else "challenger"
    return Move(
        number=last.number + 1,
        kind="settle" if settled else "advance",
        changes=(Change(version=version, before=state, after=state),),
        by=(test.stage.by if test else "") or ("watch" if state == "champion" else "gate"),
        reason="the watch is over" if settled else test.stage.reason if test else "",
        time=now,
        experiment="" if settled or test is None else test.id,
        champion=last.champion,
        challenger=last.challenger,
        **stage,
    )


def _replaced(store: ObjectStore, registry: Registry, last: Move, seen: Aliases, now: float) -> Move:
    """Return the move by which another version, or none, is champion."""
    champion = seen.champion or ""
    decision = _promotion_of(store, registry, champion) if champion else None
    rolled_back = decision is not None and ROLLBACK in decision.experiment.id
    changes = [Change(version=champion, before=_state(registry, last, champion), after="champion")] if champion else []
    if last.champion:
        left = states.LEAVES["roll_back" if rolled_back else "promote"]
        changes.append(Change(version=last.champion, before="champion", after=left))
    return Move(
        number=last.number + 1,
        kind="by_hand" if decision is None else "roll_back" if rolled_back else "promote",
        changes=tuple(changes),
        by=decision.by if decision else IN_MLFLOW,
        reason=decision.verdict.reason if decision else "the alias champion was moved in MLflow",
        time=decision.decided if decision else now,
        experiment=decision.experiment.id if decision else "",
        champion=champion,
        challenger="" if champion == last.challenger else last.challenger,
        **stage_of(seen),
    )


def _ended(store: ObjectStore, registry: Registry, last: Move, now: float) -> Move:
    """Return the move by which the challenger is one no more, without being champion."""
    test = _test_of(registry, last.challenger)
    decision = decision_of(store, test) if test else None
    rejected = decision is not None and decision.verdict.verdict in ("reject", "breach")
    after: State = "failed" if rejected else "candidate"
    return Move(
        number=last.number + 1,
        kind="by_hand" if decision is None else "reject" if rejected else "stop",
        changes=(Change(version=last.challenger, before="challenger", after=after),),
        by=decision.by if decision else IN_MLFLOW,
        reason=decision.verdict.reason if decision else "the alias challenger was moved in MLflow",
        time=decision.decided if decision else now,
        experiment=decision.experiment.id if decision else "",
        champion=last.champion,
    )


def _opened(store: ObjectStore, registry: Registry, last: Move, seen: Aliases, challenger: str, now: float) -> Move:
    """Return the move by which a version is challenger."""
    test = _test_of(registry, challenger)
    record = _open_test(store, test) if test else None
    opening = record.stages[0] if record and record.stages else None
    return Move(
        number=last.number + 1,
        kind="open" if record else "by_hand",
        changes=(Change(version=challenger, before=_state(registry, last, challenger), after="challenger"),),
        by=registry.version(challenger).tags[CYCLE_TAG] if record else IN_MLFLOW,
        reason=f"tested against version {record.champion}" if record else "the alias challenger was moved in MLflow",
        time=record.started if record else now,
        experiment=record.id if record else "",
        champion=last.champion,
        challenger=challenger,
        stage=opening.name if opening else "",
        share=opening.share if opening else 0.0,
    )


def _promotion_of(store: ObjectStore, registry: Registry, version: str) -> Decision | None:
    """Return the newest decision to make a version champion that no move names yet, or None."""
    ids = [identifier for identifier in manual_ids(store) if identifier.endswith(f"-version-{version}")]
    if test := _test_of(registry, version):
        ids.append(test)
    decisions = [decision for identifier in ids if (decision := decision_of(store, identifier))]
    promotions = [decision for decision in decisions if decision.verdict.verdict == "promote"]
    newest = max(promotions, key=lambda decision: decision.decided, default=None)
    return newest if newest and not logged(store, newest) else None


def _open_test(store: ObjectStore, test: str) -> ExperimentRecord | None:
    """Return the record of an experiment that has no decision, or None."""
    try:
        record = ExperimentRecord.model_validate(store.get_json(f"experiments/{test}.json"))
    except KeyError:
        return None
    return None if decision_of(store, test) else record


def _test_of(registry: Registry, version: str) -> str:
    """Return the id of the experiment that tests a version; empty if no cycle made it."""
    try:
        cycle = registry.version(version).tags.get(CYCLE_TAG)
    except NotRegistered:  # deleted in MLflow
        return ""
    return experiment_id(cycle, version) if cycle else ""


def _state(registry: Registry, last: Move, version: str) -> State:
    """Return the state of a version before its alias was moved."""
    if version == last.challenger:
        return "challenger"
    return states.recorded(registry.version(version))
