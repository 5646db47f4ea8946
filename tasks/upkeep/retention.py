"""Remove old data: events by the hour of shipping, a finished cycle's rows and weights by the time of its manifest, the
caches of evaluations by their last write.

Manifests, outcomes, settings and metrics stay, so that every version's lineage stays known. Data that a cycle may still read also
stay: the next cycle's window, the samples of an unfinished cycle, and weights in use (tasks/upkeep/checkpoint_gc.py).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from infra.records import Forgotten
from infra.registry.client import Registry
from infra.settings import Settings
from infra.storage import counted, cycles
from infra.storage.events import tombstones
from infra.storage.store import ObjectStore
from tasks.experiments.counting.traffic import MAX_DAYS
from tasks.experiments.planning.plan import NEW
from tasks.labels.window import WINDOW_SECONDS
from tasks.upkeep import checkpoint_gc, opted_out
from tasks.upkeep.checkpoint_gc import CHECKPOINTS, DAY, OPTIMIZERS, ExpiredUpload
from tasks.upkeep.compaction import HOUR, hour_of
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
        uploads = [f"| {gone.cycle} | {', '.join(gone.versions)} | {', '.join(gone.folders)} |" for gone in self.uploads]
        heading = ["\n| cycle | versions | removed |", "| --- | --- | --- |"]
        return "\n".join([self.summary(), *(heading if uploads else []), *uploads, "", self.forgotten.page()])


def retain(store: ObjectStore, registry: Registry, settings: Settings, now: float, *, dry_run: bool = True) -> Retained:
    """Remove old data, new rows of erased subjects, and texts of requests that are opted out.

    Raises:
        TooShort: cycles or tests would still read the removed data.
        NoChampion: without a champion the weights in use are unknown.
    """
    check(settings)
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
    records: Sequence[Forgotten] = tombstones.read_all(store)
    forgotten = sweep(store, registry, records, now, dry_run=dry_run)
    without_text = opted_out.clean(store, dry_run=dry_run)
    return Retained(dry_run, tuple(events), tuple(rows), tuple(kept), uploads, forgotten, without_text, tuple(spans))


def check(settings: Settings) -> None:
    """Raise TooShort if a cycle or a test could still read the removed data."""
    chosen, day = settings.experiment, NEW["baseline_seconds"]
    # No cycle is sealed while a test runs: the register of known users, a row of the last one, is as old as the test.
    test = (chosen.max_seconds or MAX_DAYS * DAY) + chosen.watch_seconds
    anchor = NEW["anchor_days"] * DAY if chosen.mode == "non_inferiority" and chosen.anchor_share else 0.0
    least = math.ceil((max(WINDOW_SECONDS, day + max(test, anchor)) + SLACK) / DAY)
    for name in ("events_days", "cycles_days"):
        if (days := getattr(settings.retention, name)) < least:
            longest = "" if chosen.max_seconds else f"{MAX_DAYS} days where experiment.max_seconds is 0, as here, "
            raise TooShort(
                f"retention.{name} = {days:g}, expected at least {least}: cycles look back {WINDOW_SECONDS:g} s, tests "
                f"experiment.max_seconds, {longest}experiment.watch_seconds and a day, and a comparison with the anchor "
                f"{NEW['anchor_days']} days and a day. Nothing was removed; set TABLOOP_RETENTION__{name.upper()} to {least} or "
                "more, or let tests be shorter by experiment.max_seconds"
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
