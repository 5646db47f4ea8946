"""Data that are too old are removed: events by the hour that they were shipped in, a finished cycle's rows and weights by its
manifest.

Manifests, outcomes, settings and metrics stay: which version came from what can be told for ever, what developers wrote cannot.
Nothing that a cycle may still read is removed: not what lies in the window of the next one, nor the samples of one under way, nor
weights that may still serve or be trained (tasks/upkeep/checkpoint_gc.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from infra import cycles
from infra.events import tombstones
from infra.records import Forgotten
from infra.registry import Registry
from infra.settings import Settings
from infra.store import ObjectStore
from tasks.upkeep import checkpoint_gc
from tasks.upkeep.checkpoint_gc import CHECKPOINTS, DAY, OPTIMIZERS, ExpiredUpload
from tasks.upkeep.compaction import HOUR, hour_of
from tasks.upkeep.forget import QUARANTINED, REQUESTS, SAMPLES, Forgetting, sweep

SLACK = 2 * DAY
"""Readers look a day further back than their window, since a segment may have been opened before it."""
ROWS = (SAMPLES, QUARANTINED, REQUESTS, "docs/", "validation.json")
"""Objects of a cycle that tell of single requests."""


class TooShort(ValueError):
    """The retention is shorter than what cycles look back."""


@dataclass(frozen=True)
class Retained:
    """What is too old, and was removed or would be."""

    dry_run: bool
    events: tuple[str, ...]
    cycles: tuple[str, ...]
    """Objects of finished cycles."""
    uploads: tuple[ExpiredUpload, ...]
    """Checkpoints and optimizer states that nobody can want any more."""
    forgotten: Forgetting
    """What came in since, or had to wait for a cycle's end, of users and projects that are forgotten."""

    def summary(self) -> str:
        """What became of it, in a line."""
        done = "would be" if self.dry_run else "were"
        checkpoints, optimizers = (sum(folder in gone.folders for gone in self.uploads) for folder in (CHECKPOINTS, OPTIMIZERS))
        said = f"{len(self.events)} event objects, {len(self.cycles)} objects of finished cycles, {checkpoints} checkpoints and "
        said += f"{optimizers} optimizer states {done} removed"
        return f"{said}; of those to be forgotten: {self.forgotten.summary()}"

    def page(self) -> str:
        """Return what was too old, the removed weights by name, and what was removed of erased subjects, in Markdown."""
        uploads = [f"| {gone.cycle} | {', '.join(gone.versions)} | {', '.join(gone.folders)} |" for gone in self.uploads]
        heading = ["\n| cycle | versions | removed |", "| --- | --- | --- |"]
        return "\n".join([self.summary(), *(heading if uploads else []), *uploads, "", self.forgotten.page()])


def retain(store: ObjectStore, registry: Registry, settings: Settings, now: float, *, dry_run: bool = True) -> Retained:
    """Remove what is too old, and whatever has come in of those who are forgotten.

    Raises:
        TooShort: cycles would miss what is removed.
        NoChampion: which weights are wanted cannot be told.
    """
    check(settings)
    uploads = checkpoint_gc.find(store, registry, settings, now)
    events = old_events(store, now - settings.retention.events_days * DAY)
    rows = old_rows(store, now - settings.retention.cycles_days * DAY)
    for key in (*events, *rows) if not dry_run else ():
        store.delete(key)
    if not dry_run:
        uploads = checkpoint_gc.remove(store, registry, uploads, now)
    records: Sequence[Forgotten] = tombstones.read_all(store)
    return Retained(dry_run, tuple(events), tuple(rows), uploads, sweep(store, registry, records, now, dry_run=dry_run))


def check(settings: Settings) -> None:
    """Raise TooShort where the next cycle could want what is removed."""
    test = settings.experiment.max_seconds + settings.experiment.baseline_seconds
    least = (max(settings.collect.window_seconds, test) + SLACK) / DAY
    for name in ("events_days", "cycles_days"):
        if (days := getattr(settings.retention, name)) < least:
            raise TooShort(
                f"retention.{name} = {days:g}, expected at least {least:g}: cycles look back collect.window_seconds = "
                f"{settings.collect.window_seconds:g}, tests experiment.max_seconds and experiment.baseline_seconds. Nothing was "
                f"removed; set TABLOOP_RETENTION__{name.upper()} to {least:.0f} or more"
            )


def old_events(store: ObjectStore, before: float) -> list[str]:
    """Event objects of hours that were over before a time."""
    return [key for key in store.keys("events/") if (hour_of(key) + HOUR).timestamp() <= before]


def old_rows(store: ObjectStore, before: float) -> list[str]:
    """Objects with rows of cycles that were sealed before a time and have ended."""
    found: list[str] = []
    for cycle, objects in cycles.index(store).items():
        rows = [f"cycles/{cycle}/{name}" for name in sorted(objects) if name.startswith(ROWS)]
        if rows and {"manifest.json", "outcome.json"} <= objects and cycles.manifest_of(store, cycle).created < before:
            found += rows
    return found
