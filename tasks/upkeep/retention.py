"""Remove old data: events by the hour of shipping, a finished cycle's rows and weights by the time of its manifest, the
caches of evaluations by their last write.

Manifests, outcomes, settings and metrics stay, so that every version's lineage stays known. Data that a cycle may still read also
stay: the next cycle's window, the samples of an unfinished cycle, and weights in use (tasks/upkeep/checkpoint_gc.py).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from infra.pages.experiment_view import duration
from infra.pages.markdown import table
from infra.records import Forgotten
from infra.registry.client import Registry
from infra.settings import Settings
from infra.storage import counted, cycles
from infra.storage.events import tombstones
from infra.storage.events.read import hour_of
from infra.storage.scope import scopes_of
from infra.storage.store import ObjectStore
from tasks.experiments.counting.traffic import MAX_DAYS
from tasks.experiments.planning.plan import NEW
from tasks.labels.window import WINDOW_SECONDS
from tasks.upkeep import checkpoint_gc, opted_out
from tasks.upkeep.checkpoint_gc import CHECKPOINTS, DAY, OPTIMIZERS, ExpiredUpload
from tasks.upkeep.compaction import HOUR
from tasks.upkeep.forget import ROWS, Forgetting, sweep

SLACK = 2 * DAY
"""Readers look a day further back than their window, since a segment may have been opened before it."""
EVALUATIONS = ("evaluations/", "judgements/")
"""Caches of evaluations (tasks/evaluation/models/completions.py, tasks/evaluation/judge/cache.py)."""
EVALUATIONS_DAYS = 90.0
"""Days to keep them after their last write: they spare the same evaluation a second time. Completions at the team's own places
lie with their cycle, and go with its rows."""
OLD = (*ROWS, "docs/", "validation.json")
"""Objects of a cycle that hold rows of single requests."""


class TooShort(ValueError):
    """The retention is shorter than the time that cycles and tests read."""


@dataclass(frozen=True)
class Retained:
    """The result of a retention pass, or of a dry run."""

    dry_run: bool
    events: tuple[str, ...]
    cycles: tuple[str, ...]
    """Objects of finished cycles."""
    evaluations: tuple[str, ...]
    """Kept completions and judgements."""
    uploads: tuple[ExpiredUpload, ...]
    """Checkpoints and optimizer states that are no longer used."""
    forgotten: Forgetting
    """Rows of erased subjects that arrived later or waited for a cycle's end."""
    opted_out: Mapping[str, int] = field(default_factory=dict)
    """By object, events with text whose completion is opted out."""
    counted: tuple[str, ...] = ()
    """Hours and days of these events, as A/B tests counted them."""

    def summary(self) -> str:
        """Return the result in one line."""
        done = "would be" if self.dry_run else "were"
        checkpoints, optimizers = (sum(folder in gone.folders for gone in self.uploads) for folder in (CHECKPOINTS, OPTIMIZERS))
        message = (
            f"{len(self.events)} event objects{f' and {len(self.counted)} counted hours and days' if self.counted else ''}, "
            f"{len(self.cycles)} objects of finished cycles, {len(self.evaluations)} of "
            f"evaluations, {checkpoints} checkpoints and "
        )
        message += f"{optimizers} optimizer states {done} removed"
        message += f"; so {done} {sum(self.opted_out.values())} events with text of requests that are opted out"
        return f"{message}; of erased subjects: {self.forgotten.summary()}"

    def page(self) -> str:
        """Return the result, the removed weights by name, and the rows of erased subjects, in Markdown."""
        uploads = [(gone.cycle, ", ".join(gone.versions), ", ".join(gone.folders)) for gone in self.uploads]
        tables = [table(("cycle", "versions", "removed"), uploads)] if uploads else []
        return "\n\n".join([self.summary(), *tables, self.forgotten.page()])


def retain(store: ObjectStore, registry: Registry, settings: Settings, now: float, *, dry_run: bool = True) -> Retained:
    """Remove old data, new rows of erased subjects, and texts of requests that are opted out.

    What people asked to be removed goes first, so it goes also where old data may not be removed.

    Raises:
        TooShort: cycles or tests would still read the old data.
        NoChampion: without a champion the weights in use are unknown.
    """
    records: Sequence[Forgotten] = tombstones.read_all(store)
    forgotten = sweep(store, registry, records, now, dry_run=dry_run)
    without_text = opted_out.clean(store, dry_run=dry_run)
    check(settings, has_anchor(registry, settings))
    uploads = checkpoint_gc.find(store, registry, settings, now)
    events = old_events(store, now - settings.retention.events_days * DAY)
    rows = old_rows(store, now - settings.retention.cycles_days * DAY)
    kept = old_evaluations(store, now - EVALUATIONS_DAYS * DAY)
    spans = counted.ended(store, now - settings.retention.events_days * DAY)
    for key in (*events, *rows, *kept) if not dry_run else ():
        store.delete(key)
    for key in spans if not dry_run else ():
        counted.remove(store, key)
    if not dry_run:
        uploads = checkpoint_gc.remove(store, registry, uploads, now)
    return Retained(dry_run, tuple(events), tuple(rows), tuple(kept), uploads, forgotten, without_text, tuple(spans))


def has_anchor(registry: Registry, settings: Settings) -> bool:
    """Return whether a loop has an anchor that its champions are compared with, which it keeps in any mode, or will have one."""
    if not settings.experiment.anchor_share:
        return False
    names = (scope.project for scope in scopes_of(settings))
    return settings.experiment.mode == "non_inferiority" or any(registry.of(name).aliases().anchor for name in names)


def check(settings: Settings, anchored: bool) -> None:
    """Raise TooShort if a cycle, a test or, where `anchored`, a comparison with an anchor could still read the old data."""
    chosen, history = settings.experiment, "its history a day, and readers look two days further back"
    # No cycle is sealed while a test runs: the register of known users, a row of the last one, is as old as the test.
    test = (chosen.max_seconds or MAX_DAYS * DAY) + chosen.watch_seconds
    lasts = duration(chosen.max_seconds) if chosen.max_seconds else f"{MAX_DAYS} days (experiment.max_seconds = 0)"
    reads = [
        (NEW["baseline_seconds"] + test, f"a test may last {lasts}, its watch {duration(chosen.watch_seconds)}, {history}"),
        (WINDOW_SECONDS, f"cycles look back {duration(WINDOW_SECONDS)}, and readers two days further"),
    ]
    if anchored:
        anchor = f"a comparison with the anchor lasts {NEW['anchor_days']} days, {history}"
        reads.append((NEW["baseline_seconds"] + NEW["anchor_days"] * DAY, anchor))
    seconds, reason = max(reads)
    shorter = ", or let tests be shorter by experiment.max_seconds" if (seconds, reason) == reads[0] else ""
    least = math.ceil((seconds + SLACK) / DAY)
    for name in ("events_days", "cycles_days"):
        if (days := getattr(settings.retention, name)) < least:
            raise TooShort(
                f"retention.{name} = {days:g}, expected at least {least}: {reason}. No old data was removed; erasure goes on. "
                f"Set TABLOOP_RETENTION__{name.upper()} to {least} or more{shorter}"
            )


def old_events(store: ObjectStore, before: float) -> list[str]:
    """Return the event objects of hours that ended before a time."""
    return [key for key in store.keys("events/") if (hour := hour_of(key)) and (hour + HOUR).timestamp() <= before]


def old_evaluations(store: ObjectStore, before: float) -> list[str]:
    """Return the completions and judgements that were written before a time."""
    return [key for prefix in EVALUATIONS for key, written in store.written(prefix) if written < before]


def old_rows(store: ObjectStore, before: float) -> list[str]:
    """Return the objects with rows of ended cycles that were sealed before a time, and of cycles that were never sealed."""
    old: list[str] = []
    for cycle, objects in cycles.every(store).items():
        rows = [f"cycles/{cycle}/{name}" for name in sorted(objects) if name.startswith(OLD)]
        if not rows:
            continue
        if "manifest.json" not in objects:  # its flow was killed
            old += rows if all(written < before for _, written in store.written(f"cycles/{cycle}/")) else []
        elif "outcome.json" in objects and cycles.manifest_of(store, cycle).created < before:
            old += rows
    return old
