"""Erase a user or a project from the object store, and hide it from all later cycles.

First a record is written (infra/storage/events/tombstones.py): from then on readers skip the subject's rows, also rows that
are shipped later. Then the rows are removed from every object, under the same key, since cycles identify the objects they have
read by their keys. A finished cycle's samples are rewritten too, and an amendment beside its manifest notes the removed rows,
since the manifest's checksum is no longer theirs. An unfinished cycle keeps its samples and is listed as pending; the next pass
after its end removes them (the deployment `retention` runs one a day). Hours as A/B tests count them
(infra/storage/counted.py) are removed whole: the next look makes them again from what is left.

The data of all loops are erased in one pass: events are common, and the cycles of each project are among the others.

Weights do not change: the versions that were trained on the rows are listed, with all versions trained from them. Every step may
be killed and run again; the list of versions stays the same.
"""

import hashlib
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.parquet as pq

from infra.identity import HASH
from infra.pages.markdown import table
from infra.records import Amendment, Forgotten
from infra.registry.client import Registry
from infra.registry.lineage import lineage
from infra.storage import counted, cycles
from infra.storage.events import segments, tombstones
from infra.storage.events.read import is_shipped, parts_of
from infra.storage.events.segments import Segment
from infra.storage.events.tombstones import ErasedSubjects
from infra.storage.parquet import packed
from infra.storage.store import AlreadyExists, ObjectStore
from tasks.labels.users import USERS

EVENTS = "events/"
OFFLINE = "offline/"
"""Labels imported from an editor's log, which nothing writes any more."""
SAMPLES, QUARANTINED, REQUESTS, HELD_OUT = "samples-", "quarantined-", "requests-", "held-out-"
ROWS = (SAMPLES, QUARANTINED, REQUESTS, HELD_OUT, USERS)
"""Objects of a cycle whose rows name a user."""
SEAL_SECONDS = 86_400.0
"""After the last write of a cycle without a manifest it is not sealed any more: its flow was killed, and the next began anew."""


class NobodyNamed(ValueError):
    """The user or project to erase is not named as in the events."""


@dataclass(frozen=True)
class AffectedVersion:
    """A version that was trained on erased rows, directly or through its ancestors."""

    version: str
    checkpoint: str
    cycle: str
    """Cycle that made it."""
    directly: bool
    """True if trained on the rows; False if trained from such a version."""
    serves: str
    """"champion" or "challenger" where it is one, "champion of web" where it is that of a project."""


@dataclass(frozen=True)
class Forgetting:
    """The result of erasing subjects, or of a dry run."""

    dry_run: bool
    rows: dict[str, int] = field(default_factory=dict)
    """Number of removed rows by object."""
    cycles: tuple[str, ...] = ()
    """Cycles that were trained on removed rows, of this pass or an earlier one."""
    pending: tuple[str, ...] = ()
    """Unfinished cycles that hold rows; the next pass after their end removes them."""
    versions: tuple[AffectedVersion, ...] = ()

    def summary(self) -> str:
        """Return the result in one line."""
        message = f"{sum(self.rows.values())} rows in {len(self.rows)} objects {'would be' if self.dry_run else 'were'} removed"
        names = [f"{v.version}{f' ({v.serves})' if v.serves else ''}" for v in self.versions]
        message += f"; versions trained on them: {', '.join(names) or 'none'}"
        return message + (f"; {', '.join(self.pending)} under way: run again when it has ended" if self.pending else "")

    def page(self) -> str:
        """Return the summary, the versions and the objects in Markdown."""
        head = ("version", "serves", "cycle", "trained on the rows itself", "checkpoint")
        versions = [(v.version, v.serves, v.cycle, "yes" if v.directly else "no", v.checkpoint) for v in self.versions]
        tables = ((head, versions), (("object", "rows"), list(self.rows.items())))
        return "\n\n".join([self.summary(), *(table(names, rows) for names, rows in tables if rows)])


def request(user: str, project: str, now: float, by: str, reason: str) -> Forgotten:
    """Return the record of a request to erase a subject.

    Raises:
        NobodyNamed: neither or both are named, or the user is not a keyed hash.
    """
    if bool(user) == bool(project):
        raise NobodyNamed(
            f"forget: user = {user!r}, project = {project!r}; expected exactly one of them, e.g. "
            "`prefect deployment run forget/forget --param user=HASH`"
        )
    if user and not HASH.fullmatch(user):
        raise NobodyNamed(
            f"forget: user = {user!r}, expected the keyed hash of the events (32 hexadecimal digits), since Prefect "
            "keeps the parameters of its runs; `tabloop hash NAME` prints it"
        )
    kind, subject = ("user", user) if user else ("project", project)
    return Forgotten.model_validate({"kind": kind, "subject": subject, "time": now, "by": by, "reason": reason})


def forget(store: ObjectStore, registry: Registry, request: Forgotten, now: float, *, dry_run: bool = True) -> Forgetting:
    """Erase a user or a project, or list what would be removed."""
    record = request if dry_run else tombstones.write(store, request)
    return sweep(store, registry, [record], now, dry_run=dry_run)


def sweep(
    store: ObjectStore, registry: Registry, records: Sequence[Forgotten], now: float, *, dry_run: bool = True
) -> Forgetting:
    """Remove all remaining rows of the subjects of these records."""
    if not records:
        return Forgetting(dry_run)
    erased = tombstones.subjects(records)
    rows: dict[str, int] = {}
    for prefix in (EVENTS, OFFLINE):
        for key in list(store.keys(prefix)):
            if is_shipped(key) and (number := remove_erased(store, key, erased, dry_run=dry_run)):
                rows[key] = number
    for key, number in counted.rows_of(store, erased.columns()).items():
        rows[key] = number
        if not dry_run:
            counted.remove(store, key)
    trained, pending = [], []
    for cycle, objects in cycles.every(store).items():
        removed, waiting = clean_cycle(store, cycle, objects, records, now, dry_run=dry_run)
        rows |= removed
        if waiting:
            pending.append(cycle)
        if any(SAMPLES in key for key in (*removed, *waiting)) or was_trained(store, cycle, objects, records):
            trained.append(cycle)
    if not dry_run:
        remove_brought_back(store, [key for key in rows if not key.startswith(counted.PREFIX)])
    return Forgetting(dry_run, rows, tuple(trained), tuple(pending), versions_of(registry, trained))


def remove_brought_back(store: ObjectStore, keys: Sequence[str]) -> None:
    """Remove from rewritten objects the rows of subjects that another run erased meanwhile.

    Of two runs that read an object at once, the second to write it brings back what the first removed. A run writes its record
    before it reads an object, so what was erased is gone once an object is read, after its last write, and holds nothing of all
    records.
    """
    while keys:
        erased = tombstones.subjects(tombstones.read_all(store))
        keys = [key for key in keys if remove_erased(store, key, erased, dry_run=False)]


def remove_erased(store: ObjectStore, key: str, erased: ErasedSubjects, *, dry_run: bool) -> int:
    """Remove the erased rows of an object and return their number; 0 of an object that was removed after it was listed."""
    try:
        body = store.get(key)
    except KeyError:
        return 0
    return remove_rows(store, key, parts_of(store, key, body), erased.columns(), dry_run=dry_run)


def remove_rows(
    store: ObjectStore, key: str, parts: Sequence[Segment], columns: Iterable[tuple[str, frozenset[str]]], *, dry_run: bool
) -> int:
    """Remove the rows with one of the values in a column, and an event object of which none remain; return their number."""
    kept = parts
    for column, names in columns:
        kept = [segments.without(part, column, names) for part in kept]
    removed = sum(part.table.num_rows for part in parts) - sum(part.table.num_rows for part in kept)
    if removed and not dry_run:
        if key.startswith((EVENTS, OFFLINE)) and not any(part.table.num_rows for part in kept):
            store.delete(key)
        else:
            store.put(key, segments.pack(kept) if segments.is_container(key) else packed(kept[0].table))
    return removed


def clean_cycle(
    store: ObjectStore, cycle: str, objects: set[str], records: Sequence[Forgotten], now: float, *, dry_run: bool
) -> tuple[dict[str, int], dict[str, int]]:
    """Remove the erased rows of a cycle's objects; return their number by object, and those that wait for the cycle's end."""
    erased = tombstones.subjects(records)
    keys = [f"cycles/{cycle}/{name}" for name in sorted(objects) if name.startswith(ROWS)]
    affected = {key: rows for key in keys if (rows := count(store, key, erased))}
    # An unfinished cycle keeps its samples. One without a manifest may be sealed at this moment, or was killed before.
    goes_on = "manifest.json" in objects or any(at >= now - SEAL_SECONDS for _, at in store.written(f"cycles/{cycle}/"))
    kept = {key: rows for key, rows in affected.items() if "outcome.json" not in objects and goes_on and SAMPLES in key}
    removed = {key: rows for key, rows in affected.items() if key not in kept}
    if not dry_run:
        for record in records:
            amend(store, cycle, list(removed), record, now)
        for key in removed:
            remove_erased(store, key, erased, dry_run=False)
    return removed, kept


def amend(store: ObjectStore, cycle: str, keys: Sequence[str], record: Forgotten, now: float) -> None:
    """Write the list of the rows before they are removed, so that a later pass still finds the versions trained on them."""
    rows = {key: removed for key in keys if (removed := count(store, key, tombstones.subjects([record])))}
    if rows:
        trained = any(SAMPLES in key for key in rows)
        name = tombstones.digest(record.kind, record.subject)
        amendment = Amendment(cycle=cycle, forgotten=name, time=now, rows=rows, trained=trained)
        # The name holds a checksum of the content: a pass that finds more rows writes another amendment.
        text = hashlib.sha256(repr(sorted(rows.items())).encode()).hexdigest()[:12]
        try:
            store.put_json(f"cycles/{cycle}/{amendment_name(record)}{text}.json", amendment, new=True)
        except AlreadyExists:
            return


def amendment_name(record: Forgotten) -> str:
    """Return the prefix of a record's amendments in a cycle's folder."""
    return f"amendments/{tombstones.digest(record.kind, record.subject)}-"


def was_trained(store: ObjectStore, cycle: str, objects: set[str], records: Sequence[Forgotten]) -> bool:
    """Return whether an earlier pass removed samples of a cycle."""
    begins = tuple(amendment_name(record) for record in records)
    kept = [f"cycles/{cycle}/{name}" for name in objects if name.startswith(begins)]
    return any(Amendment.model_validate(store.get_json(key)).trained for key in kept)


def count(store: ObjectStore, key: str, erased: ErasedSubjects) -> int:
    """Return the number of an object's erased rows; 0 of an object that was removed after it was listed."""
    try:
        body = store.get(key)
    except KeyError:
        return 0
    table = pq.read_table(io.BytesIO(body))
    return table.num_rows - without(table, erased).num_rows


def without(table: pa.Table, erased: ErasedSubjects) -> pa.Table:
    """Return a table without the erased rows."""
    for column, names in erased.columns():
        if column in table.column_names:
            table = table.filter(pa.array([value not in names for value in table[column].to_pylist()], pa.bool_()))
    return table


def versions_of(registry: Registry, trained: Sequence[str]) -> tuple[AffectedVersion, ...]:
    """Return the versions that these cycles made, and all versions trained from them."""
    known = registry.versions()
    tree, serves = lineage(known), registry.roles()
    direct = {v for v, cycle in tree.cycles.items() if cycle in trained}
    return tuple(
        AffectedVersion(v.version, v.source, tree.cycles.get(v.version, ""), v.version in direct, serves.get(v.version, ""))
        for v in known
        if direct & set(tree.ancestry(v.version))
    )
