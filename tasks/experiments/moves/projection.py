"""Show a move in the registry: its aliases and tags after the move, as the log has it.

It may be killed anywhere and run again: each value is set where it differs, and the number of the move comes last. An alias that
somebody moves in MLflow meanwhile stays as it is, and is recorded as their move.
"""

from contextlib import suppress

from infra.pages import figures
from infra.records import Move, State
from infra.registry.client import (
    ACCEPTANCE_TAG,
    CHALLENGER,
    CHAMPION,
    LAST_MOVE_TAG,
    MOVE_TAG,
    PREVIOUS_TAG,
    ROLLED_BACK_TAG,
    STATE_TAG,
    VERDICT_TAG,
    Aliases,
    NotRegistered,
    Registry,
)
from infra.storage.store import ObjectStore
from tasks.experiments.stages import states

MOST_TAG = 1000
"""Characters of a reason that a version's tag holds."""
FOUND = ("begin", "by_hand")
"""The moves that the registry showed before they were recorded: their aliases are there."""


def project(store: ObjectStore, registry: Registry, move: Move, seen: Aliases) -> None:
    """Write the decision of the newest move, and make the registry, whose aliases and tags were `seen`, show the move."""
    if move.decision:
        store.put_once(f"decisions/{move.decision.experiment.id}.json", move.decision)
    shown = move.shown
    if shown and shown.watch and shown.watch != seen.watch:  # before the alias, so that the control group never leaves its slot
        registry.set_watch(shown.watch)
    before = _before(move, "champion", move.champion)
    if move.kind not in FOUND and move.champion and (seen.champion or "") == before != move.champion:
        registry.set_alias(CHAMPION, move.champion)
    if shown and shown.previous_champion != (seen.previous_champion or ""):
        registry.set_tag(PREVIOUS_TAG, shown.previous_champion)
    if shown and seen.watch and not shown.watch:
        registry.set_watch(None)
    _tag_versions(registry, move)
    if move.kind not in FOUND:
        _show_challenger(registry, move, seen)
    if shown and shown.experiment != seen.experiment:
        registry.set_experiment(shown.experiment)
    registry.set_tag(MOVE_TAG, str(move.number))


def challenger_of(seen: Aliases) -> str:
    """Return the challenger, empty without one. An alias that points at the champion names no challenger."""
    return seen.challenger if seen.challenger and seen.challenger != seen.champion else ""


def _show_challenger(registry: Registry, move: Move, seen: Aliases) -> None:
    alias = seen.challenger or ""
    before = _before(move, "challenger", move.challenger)
    if alias == move.challenger or challenger_of(seen) not in (before, move.challenger):
        return
    if move.challenger:
        registry.set_alias(CHALLENGER, move.challenger)
    else:
        registry.delete_alias(CHALLENGER)


def _before(move: Move, state: State, after: str) -> str:
    """Return the version that had a state before a move; empty: none had it; `after`: the version that has it after the move."""
    left = next((change.version for change in move.changes if change.before == state), "")
    arrived = any(change.after == state != change.before for change in move.changes)
    return left if left or arrived else after


def _tag_versions(registry: Registry, move: Move) -> None:
    """Set the tags of the versions that a move changes: state, last move, why one was rolled back, and the verdict of its test.

    A move by hand, or of a watch, leaves the verdict as it is.
    """
    last = f"{move.kind.replace('_', ' ')}, by {move.by}: {move.reason}"[:MOST_TAG]
    tags: dict[str, dict[str, str]] = {change.version: {STATE_TAG: change.after, LAST_MOVE_TAG: last} for change in move.changes}
    if decision := move.decision:
        test, reason = decision.experiment, decision.verdict.reason
        if decision.by == states.GATE:
            arms = "; ".join(row.line() for row in figures.arm_rows(decision.verdict, test.champion, test.challenger))
            named = {VERDICT_TAG: f"{decision.verdict.verdict}, by {decision.by}", f"{VERDICT_TAG}.reason": reason[:MOST_TAG]}
            tags.setdefault(test.challenger, {}).update(named | ({ACCEPTANCE_TAG: arms} if arms else {}))
        if move.kind == "roll_back":
            why = {ROLLED_BACK_TAG: f"by {decision.by}: {reason}"[:MOST_TAG]}
            tags.setdefault(test.champion, {}).update(why)
    for version, wanted in tags.items():
        with suppress(NotRegistered):  # deleted in MLflow
            known = registry.version(version).tags
            for key, value in wanted.items():
                if known.get(key) != value:
                    registry.set_version_tag(version, key, value)
