"""The moves of versions, the anchors and the gate's looks in words, from the object store alone."""

from collections.abc import Iterator
from itertools import islice

from infra.pages.figures import when
from infra.records import Change, ExperimentRecord, Look, Move
from infra.storage import cycles
from infra.storage import looks as looks_log
from infra.storage import moves as log
from infra.storage.store import ObjectStore
from tasks.experiments.moves.log import ids
from tasks.experiments.moves.succession import prefix_of

KINDS = {"by_hand": "by hand", "roll_back": "roll back"}


Entry = Move | Look | ExperimentRecord
"""A move, a look, or the record of an anchor or of a comparison with one."""


class UnknownTest(LookupError):
    """Nothing in the store names the A/B test."""


def history(store: ObjectStore, count: int, experiment: str = "", *, looks: bool = True) -> Iterator[str]:
    """Yield a line for each of the last moves and looks, oldest first (`entries`)."""
    for entry in entries(store, count, experiment, looks=looks):
        yield line(entry) if isinstance(entry, Move) else look_line(entry) if isinstance(entry, Look) else anchor_line(entry)


def entries(store: ObjectStore, count: int, experiment: str = "", *, looks: bool = True) -> list[Entry]:
    """Return the last moves and looks of the store's loop, oldest first.

    At most `count`, of one experiment or of all (empty), and without looks or with them. Anchors are listed in any case.

    Raises:
        UnknownTest: no record, move or look is of this experiment.
    """
    moves = (move for move in log.backwards(store) if experiment in ("", move.experiment))
    dated: list[tuple[float, int, int, Entry]] = [(move.time, 0, move.number, move) for move in islice(moves, count)]
    since = dated[-1][0] if len(dated) == count else 0.0
    known, project = ids(store, "experiments"), store.scope.project
    of_loop = [name for name in known if cycles.project_of_test(name) == project]
    for name in ([experiment] if experiment else of_loop) if looks else ():
        dated += [(look.time, 1, look.number, look) for look in _last(store, name, count, since)]
    dated += [
        (record.started, 0, 0, record) for record in anchors(store) if experiment in ("", record.id) and record.started >= since
    ]
    if experiment and not dated and experiment not in known:
        newest = f"the latest are {', '.join(of_loop[-5:])}" if of_loop else "and none has opened yet"
        raise UnknownTest(f"{experiment}: no such A/B test in {store.uri('experiments/')}; expected an id, {newest}")
    return [entry for *_, entry in sorted(dated, key=lambda each: each[:3])[-count:]]


def line(move: Move) -> str:
    changes = [_change(change) for change in move.changes]
    stage = [f"{move.stage} at {move.share:.0%}"] if move.stage else []
    asked = f"{KINDS.get(move.kind, move.kind)}, by {move.by}"
    return f"{move.number:>5}  {when(move.time)}  {asked}: {', '.join([*changes, *stage])}: {move.reason}"


def anchors(store: ObjectStore) -> Iterator[ExperimentRecord]:
    """Yield the records of the anchors, and of each comparison with one as it began, oldest first."""
    for name in ids(store, "experiments", prefix_of(store)):
        if cycles.project_of_test(name) == store.scope.project:  # a project may be named as the prefix, such as anchor
            yield ExperimentRecord.model_validate(store.get_json(f"experiments/{name}.json"))


def anchor_line(record: ExperimentRecord) -> str:
    """Return an anchor, or the beginning of a comparison with it, as a line."""
    compared = f"version {record.challenger} is compared with it" if record.stages else "it is champion"
    return f"       {when(record.started)}  {record.id}: version {record.champion} is the anchor: {compared}"


def look_line(look: Look) -> str:
    """Return a look as a line, with the number of requests on both arms."""
    requests, users = (sum(counts.values()) for counts in (look.verdict.requests, look.verdict.users))
    seen = f"look {look.number}, {look.stage} at {look.share:.0%}, {requests} requests of {users} users"
    return f"       {when(look.time)}  {look.experiment}, {seen}: {look.verdict.verdict}: {look.verdict.reason}"


def _last(store: ObjectStore, experiment: str, count: int, since: float) -> Iterator[Look]:
    """Yield at most `count` of an experiment's last looks that are not older than a time, newest first."""
    newest = looks_log.newest_number(store, experiment)
    for number in range(newest, max(0, newest - count), -1):
        look = looks_log.read(store, experiment, number)
        if look.time < since:
            return
        yield look


def _change(change: Change) -> str:
    before, after = (state.replace("_", " ") for state in (change.before, change.after))
    return f"version {change.version} {before if before == after else f'{before} -> {after}'}"
