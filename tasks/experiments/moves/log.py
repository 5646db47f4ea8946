"""Move versions: write each move to the log, then make the registry show it.

The log is the truth, and the registry's aliases and tags are its projection (projection.py). A run that is killed between the
two leaves a move whose number the registry does not show yet; the next run completes it. An alias that differs from a move which
the registry shows was moved by hand in MLflow; it is recorded. The number of a move is its key, so of two writers one wins, and
the other reads again.
"""

from collections.abc import Callable
from typing import Any

from infra.records import Change, ExperimentRecord, Move, Shown, State
from infra.registry.client import VERDICT_TAG, Aliases, Registry
from infra.storage import moves as log
from infra.storage.store import ObjectStore
from tasks.experiments.moves.projection import challenger_of, project
from tasks.experiments.stages import states

IN_MLFLOW = "MLflow"
COMMON_LOOP = "the common loop"
"""Mover of the champion of a project that has none of its own."""

NextMove = Callable[[Move | None, Aliases], Move | None]
"""Returns the move to write after the newest one, given the aliases; None: nothing is to be done."""


def catch_up(store: ObjectStore, registry: Registry, now: float) -> list[Move]:
    """Complete the newest move in the registry, record what was moved there by hand, and return the moves recorded."""
    return _settled(store, registry, now)[0]


def write(store: ObjectStore, registry: Registry, now: float, make: NextMove) -> Move | None:
    """Write the next move and show it in the registry; return it, or None where `make` returns none."""
    while True:
        _, last, seen = _settled(store, registry, now)
        move = make(last, seen)
        if move is None:
            return None
        if log.append(store, move):
            project(store, registry, move, seen)
            return move


def next_move(last: Move | None, seen: Aliases, **fields: Any) -> Move:
    """Return a move after the newest one. What `fields` do not give stays as it is: champion, challenger, and what is shown.

    Args:
        last: the newest move.
        seen: the aliases and the tags, as this move shows them.
        fields: the fields of the move; `experiment_after`, `watch_after` and `previous_champion` are those of `shown`.
    """
    shown = Shown(
        experiment=fields.pop("experiment_after", seen.experiment),
        watch=fields.pop("watch_after", seen.watch),
        previous_champion=fields.pop("previous_champion", seen.previous_champion or ""),
    )
    known = {"champion": seen.champion or "", "challenger": challenger_of(seen)} | fields
    stage = _stage(shown, known["champion"], known["challenger"])
    return Move(number=last.number + 1 if last else 1, shown=shown, **stage, **known)


def state_before(registry: Registry, last: Move | None, version: str) -> State:
    """Return the state of a version that is not champion, before its next move."""
    if last and version == last.challenger:
        return "challenger"
    return states.recorded(registry.version(version))


def ids(store: ObjectStore, folder: str, prefix: str = "") -> list[str]:
    """Return the ids of the records in `decisions` or `experiments` that begin with a prefix, in their order."""
    return [key.removeprefix(f"{folder}/").removesuffix(".json") for key in store.keys(f"{folder}/{prefix}")]


def _settled(store: ObjectStore, registry: Registry, now: float) -> tuple[list[Move], Move | None, Aliases]:
    """Return the moves found and recorded, the newest move, and the aliases, which agree with it."""
    added: list[Move] = []
    while True:
        # The registry is read before the log: what it shows of a newer move is then explained by that move.
        seen, last = registry.aliases(), log.newest(store)
        if last and seen.move != last.number:
            project(store, registry, last, seen)
            continue
        found = _found(registry, last, seen, now)
        if found is None:
            return added, last, seen
        if log.append(store, found):
            added.append(found)


def _found(registry: Registry, last: Move | None, seen: Aliases, now: float) -> Move | None:
    """Return the move that was made by hand in MLflow, or None where the aliases agree with the newest move."""
    champion, challenger = seen.champion or "", challenger_of(seen)
    if last is None:
        return _begin(registry, seen, now) if champion else None
    if champion != last.champion:
        return _champion_found(registry, last, seen, now)
    if challenger == last.challenger:
        return None
    changes = [Change(version=last.challenger, before="challenger", after="candidate")] if last.challenger else []
    if challenger:
        changes.append(Change(version=challenger, before=state_before(registry, last, challenger), after="challenger"))
    reason = "the alias challenger was moved in MLflow"
    return next_move(last, seen, kind="by_hand", changes=tuple(changes), by=IN_MLFLOW, reason=reason, time=now)


def _champion_found(registry: Registry, last: Move, seen: Aliases, now: float) -> Move:
    """Return the move that replaced or removed the champion in MLflow; it ends the probation of the champion before.

    Of a project without a champion of its own it is the common loop's.
    """
    champion = seen.champion or ""
    changes = []
    if champion:
        changes.append(Change(version=champion, before=state_before(registry, last, champion), after="champion"))
    if last.champion:
        changes.append(Change(version=last.champion, before="champion", after="retired"))
    return next_move(
        last,
        seen,
        kind="by_hand",
        changes=tuple(changes),
        by=COMMON_LOOP if seen.common else IN_MLFLOW,
        reason="the common champion was replaced" if seen.common else "the alias champion was moved in MLflow",
        time=now,
        challenger="" if champion == last.challenger else last.challenger,
        watch_after=seen.watch if seen.watch and seen.watch.challenger == champion else None,
        previous_champion=last.champion or seen.previous_champion or "",
    )


def _begin(registry: Registry, seen: Aliases, now: float) -> Move:
    """Return the first move, which takes over what the registry shows: the aliases, and the verdicts on its versions."""
    earlier = {v.version: v.tags.get(VERDICT_TAG, "") for v in registry.versions()}
    found: dict[str, State] = {version: "failed" for version, verdict in earlier.items() if verdict.startswith("reject")}
    found |= {version: "retired" for version, verdict in earlier.items() if verdict.startswith("promote")}
    if seen.previous_champion in earlier:
        found[seen.previous_champion] = "retired"
    if challenger := challenger_of(seen):
        found[challenger] = "challenger"
    found[seen.champion or ""] = "champion"
    changes = tuple(Change(version=version, before="candidate", after=state) for version, state in found.items())
    reason = "the log begins with what the registry says"
    return next_move(None, seen, kind="begin", changes=changes, by="registry", reason=reason, time=now)


def _stage(shown: Shown, champion: str, challenger: str) -> dict[str, Any]:
    """Return the fields `stage` and `share` of a move: of the probation of its champion, or of the test of its challenger."""
    for test, version in ((shown.watch, champion), (shown.experiment, challenger)):
        if test and test.stages and test.challenger == version:
            return {"stage": test.stage.name, "share": test.stage.share}
    return {}


def running(seen: Aliases, test: ExperimentRecord) -> bool:
    return seen.experiment is not None and seen.experiment.id == test.id
