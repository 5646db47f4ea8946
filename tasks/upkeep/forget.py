"""A user or a project is forgotten: nothing of it is left in the object store, and later cycles never see it.

First a record is written (infra/events/tombstones.py): from then on no reader of events sees a row of it, one that is shipped later
included. Then the rows are taken out of every object that holds some, under the same key, since cycles know by it what they have
read. A finished cycle's samples go the same way; what was removed is noted beside its manifest, whose checksum they no longer
have. A cycle under way keeps its samples until it has ended and is named as pending; the next pass takes them out (the deployment
`retention` makes one a day).

Weights are not changed by this: the versions that were trained on the rows are listed, with all that were trained from those.
Everything may be stopped anywhere and run again; what has been removed already is not found again, and the list stays the same.
"""

import hashlib
import io
from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.parquet as pq

from infra import cycles
from infra.events import segments, tombstones
from infra.events.tombstones import ErasedSubjects
from infra.identity import HASH
from infra.lineage import lineage
from infra.records import Amendment, Forgotten
from infra.registry import Registry
from infra.store import AlreadyExists, ObjectStore

EVENTS, OFFLINE = "events/", "offline/"
SAMPLES, QUARANTINED, REQUESTS = "samples-", "quarantined-", "requests-"


class NobodyNamed(ValueError):
    """What is to be forgotten is not named as the events name it."""


@dataclass(frozen=True)
class AffectedVersion:
    """A version that holds what was learnt from the rows."""

    version: str
    checkpoint: str
    cycle: str
    """Cycle that made it."""
    directly: bool
    """Trained on the rows itself; else from a version that was."""
    serves: str
    """"champion" or "challenger" where it is one."""


@dataclass(frozen=True)
class Forgetting:
    """What was removed, or would be."""

    dry_run: bool
    rows: dict[str, int] = field(default_factory=dict)
    """Rows by the object that they stood in."""
    cycles: tuple[str, ...] = ()
    """Cycles that were trained on some, in this pass or an earlier one."""
    pending: tuple[str, ...] = ()
    """Cycles under way that hold some: taken out by the next pass after their end."""
    versions: tuple[AffectedVersion, ...] = ()

    def summary(self) -> str:
        """What became of it, in a line."""
        said = f"{sum(self.rows.values())} rows in {len(self.rows)} objects {'would be' if self.dry_run else 'were'} removed"
        names = [f"{v.version}{f' ({v.serves})' if v.serves else ''}" for v in self.versions]
        said += f"; versions that hold what was learnt from them: {', '.join(names) or 'none'}"
        return said + (f"; {', '.join(self.pending)} under way: run again when it has ended" if self.pending else "")

    def page(self) -> str:
        """Return the summary, the versions and the objects in Markdown."""
        versions = [
            f"| {v.version} | {v.serves} | {v.cycle} | {'yes' if v.directly else 'no'} | {v.checkpoint} |" for v in self.versions
        ]
        heading = ["\n| version | serves | cycle | trained on the rows itself | checkpoint |", "| --- | --- | --- | --- | --- |"]
        return "\n".join(
            [
                self.summary(),
                *(heading if versions else []),
                *versions,
                *(["\n| object | rows |", "| --- | --- |"] if self.rows else []),
                *(f"| {key} | {rows} |" for key, rows in self.rows.items()),
            ]
        )


def request(user: str, project: str, now: float, by: str, reason: str) -> Forgotten:
    """The record of what is asked.

    Raises:
        NobodyNamed: neither or both are named, or the user is not a keyed hash.
    """
    if bool(user) == bool(project):
        raise NobodyNamed(
            f"forget: user = {user!r}, project = {project!r}; exactly one of them has to be named, e.g. "
            "`prefect deployment run forget/forget --param user=HASH`"
        )
    if user and not HASH.fullmatch(user):
        raise NobodyNamed(
            f"forget: user = {user!r}, expected the keyed hash that stands in events (32 hexadecimal digits), since Prefect "
            "keeps the parameters of its runs; `python -m infra.identity NAME` prints it"
        )
    kind, subject = ("user", user) if user else ("project", project)
    return Forgotten.model_validate({"kind": kind, "subject": subject, "time": now, "by": by, "reason": reason})


def forget(store: ObjectStore, registry: Registry, asked: Forgotten, now: float, *, dry_run: bool = True) -> Forgetting:
    """Forget a user or a project."""
    record = asked if dry_run else tombstones.write(store, asked)
    return sweep(store, registry, [record], now, dry_run=dry_run)


def sweep(
    store: ObjectStore, registry: Registry, records: Sequence[Forgotten], now: float, *, dry_run: bool = True
) -> Forgetting:
    """Take out whatever is left of what these records name."""
    if not records:
        return Forgetting(dry_run)
    unwanted = tombstones.subjects(records)
    rows: dict[str, int] = {}
    for prefix in (EVENTS, OFFLINE):
        for key in list(store.keys(prefix)):
            if key.endswith(".parquet") and (found := clean_events(store, key, unwanted, dry_run=dry_run)):
                rows[key] = found
    trained, pending = [], []
    for cycle, objects in cycles.index(store).items():
        removed, waiting = clean_cycle(store, cycle, objects, records, now, dry_run=dry_run)
        rows |= removed
        if waiting:
            pending.append(cycle)
        if any(SAMPLES in key for key in (*removed, *waiting)) or was_trained(store, cycle, objects, records):
            trained.append(cycle)
    return Forgetting(dry_run, rows, tuple(trained), tuple(pending), versions_of(registry, trained))


def clean_events(store: ObjectStore, key: str, unwanted: ErasedSubjects, *, dry_run: bool) -> int:
    """Take rows out of an object of events, which is removed where none are left; gives back how many."""
    found = segments.read(key, store.get(key))
    kept = found
    for column, names in unwanted.columns():
        kept = [segments.without(part, column, names) for part in kept]
    removed = sum(part.table.num_rows for part in found) - sum(part.table.num_rows for part in kept)
    if removed and not dry_run:
        if not any(part.table.num_rows for part in kept):
            store.delete(key)
        else:
            store.put(key, segments.pack(kept) if segments.is_container(key) else segments.alone(kept[0].table))
    return removed


def clean_cycle(
    store: ObjectStore, cycle: str, objects: set[str], records: Sequence[Forgotten], now: float, *, dry_run: bool
) -> tuple[dict[str, int], dict[str, int]]:
    """Take rows out of a cycle's objects; gives back how many by object, and those that have to wait for its end."""
    unwanted = tombstones.subjects(records)
    keys = [f"cycles/{cycle}/{name}" for name in sorted(objects) if name.startswith((SAMPLES, QUARANTINED, REQUESTS))]
    found = {key: rows for key in keys if (rows := count(store, key, unwanted))}
    # What a cycle under way is trained on stays; one without a manifest may be sealed at this moment.
    kept = {key: rows for key, rows in found.items() if "outcome.json" not in objects and SAMPLES in key}
    removed = {key: rows for key, rows in found.items() if key not in kept}
    if not dry_run:
        for record in records:
            amend(store, cycle, list(removed), record, now)
        for key in removed:
            store.put(key, segments.alone(without(pq.read_table(io.BytesIO(store.get(key))), unwanted)))
    return removed, kept


def amend(store: ObjectStore, cycle: str, keys: Sequence[str], record: Forgotten, now: float) -> None:
    """Note what is about to be removed, before it is: who comes later must still find which version was trained on it."""
    rows = {key: found for key in keys if (found := count(store, key, tombstones.subjects([record])))}
    if rows:
        trained = any(SAMPLES in key for key in rows)
        name = tombstones.digest(record.kind, record.subject)
        amendment = Amendment(cycle=cycle, forgotten=name, time=now, rows=rows, trained=trained)
        # Named by what it says: a pass that finds more rows writes another.
        text = hashlib.sha256(repr(sorted(rows.items())).encode()).hexdigest()[:12]
        try:
            store.put_json(f"cycles/{cycle}/{amendment_name(record)}{text}.json", amendment, new=True)
        except AlreadyExists:
            return


def amendment_name(record: Forgotten) -> str:
    """How the names of a record's amendments in a cycle's folder begin."""
    return f"amendments/{tombstones.digest(record.kind, record.subject)}-"


def was_trained(store: ObjectStore, cycle: str, objects: set[str], records: Sequence[Forgotten]) -> bool:
    """Whether an earlier pass took samples out of a cycle."""
    begins = tuple(amendment_name(record) for record in records)
    kept = [f"cycles/{cycle}/{name}" for name in objects if name.startswith(begins)]
    return any(Amendment.model_validate(store.get_json(key)).trained for key in kept)


def count(store: ObjectStore, key: str, unwanted: ErasedSubjects) -> int:
    """Rows of an object that are unwanted."""
    table = pq.read_table(io.BytesIO(store.get(key)))
    return table.num_rows - without(table, unwanted).num_rows


def without(table: pa.Table, unwanted: ErasedSubjects) -> pa.Table:
    """A table without the unwanted rows."""
    for column, names in unwanted.columns():
        if column in table.column_names:
            table = table.filter(pa.array([value not in names for value in table[column].to_pylist()], pa.bool_()))
    return table


def versions_of(registry: Registry, trained: Sequence[str]) -> tuple[AffectedVersion, ...]:
    """The versions that these cycles made, and all that were trained from them."""
    known = registry.versions()
    tree, aliases = lineage(known), registry.aliases()
    serves = {aliases.champion: "champion", aliases.challenger: "challenger"}
    direct = {v for v, cycle in tree.cycles.items() if cycle in trained}
    return tuple(
        AffectedVersion(v.version, v.source, tree.cycles.get(v.version, ""), v.version in direct, serves.get(v.version, ""))
        for v in known
        if direct & set(tree.ancestry(v.version))
    )
