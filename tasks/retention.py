"""Data that are too old are removed: events by the hour that they were shipped in, a finished cycle's rows and weights by its
manifest.

Manifests, outcomes, settings and metrics stay: which version came from what can be told for ever, what developers wrote cannot.
Nothing that a cycle may still read is removed: not what lies in the window of the next one, nor the samples of one under way, nor
weights that may still serve or be trained (tasks/disused.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from infra.records import Forgotten
from infra.registry import Registry
from infra.settings import Settings
from infra.store import ObjectStore
from tasks import cycles, disused, forgotten
from tasks.compaction import HOUR, hour_of
from tasks.disused import CHECKPOINTS, DAY, OPTIMIZERS, Disused
from tasks.forget import QUARANTINED, SAMPLES, Forgetting, sweep

SLACK = 2 * DAY
"""Readers look a day further back than their window, since a segment may have been opened before it."""
ROWS = (SAMPLES, QUARANTINED, "docs/", "validation.json")
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
    uploads: tuple[Disused, ...]
    """Checkpoints and optimizer states that nobody can want any more."""
    forgotten: Forgetting
    """What came in since, or had to wait for a cycle's end, of users and projects that are forgotten."""

    def in_words(self) -> str:
        """What became of it, in a line."""
        done = "would be" if self.dry_run else "were"
        checkpoints, optimizers = (sum(folder in gone.folders for gone in self.uploads) for folder in (CHECKPOINTS, OPTIMIZERS))
        said = f"{len(self.events)} event objects, {len(self.cycles)} objects of finished cycles, {checkpoints} checkpoints and "
        said += f"{optimizers} optimizer states {done} removed"
        return f"{said}; of those to be forgotten: {self.forgotten.in_words()}"


def retain(store: ObjectStore, registry: Registry, settings: Settings, now: float, *, dry_run: bool = True) -> Retained:
    """Remove what is too old, and whatever has come in of those who are forgotten.

    Raises:
        TooShort: cycles would miss what is removed.
        NoChampion: which weights are wanted cannot be told.
    """
    check(settings)
    uploads = disused.find(store, registry, settings, now)
    events = old_events(store, now - settings.retention.events_days * DAY)
    rows = old_rows(store, now - settings.retention.cycles_days * DAY)
    for key in (*events, *rows) if not dry_run else ():
        store.delete(key)
    if not dry_run:
        uploads = disused.remove(store, registry, uploads, now)
    records: Sequence[Forgotten] = forgotten.written(store)
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
