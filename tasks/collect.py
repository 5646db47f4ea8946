"""The first step: the window of events since the version to train was made, each request in its bucket."""

from collections.abc import Collection, Mapping
from typing import Any

from infra.records import Manifest, ObjectReference, Quarantined, Sample
from infra.registry import Registry
from infra.settings import Settings
from infra.store import ObjectStore
from infra.version import code_version
from tasks.buckets import Accounts, account
from tasks.cycles import manifest_of
from tasks.history import profile
from tasks.join import join
from tasks.lineage import Lineage, lineage
from tasks.quarantine import Evidence
from tasks.release import to_train
from tasks.window import Window, read_completions, read_feedback, window


class NoChampion(RuntimeError):
    """The registry names no champion."""


class Collected:
    """A window, accounted for; never changed.

    Not a dataclass: Prefect walks through those that a task is given, which took 7 s for 4,000 samples.
    """

    __slots__ = ("accounts", "broken", "champion", "completions", "evidence", "feedback", "orphans", "parent", "skew", "window")

    def __init__(
        self,
        *,
        champion: str,
        parent: str,
        window: Window,
        accounts: Accounts,
        orphans: int,
        broken: tuple[Quarantined, ...],
        skew: float,
        completions: tuple[ObjectReference, ...],
        feedback: tuple[ObjectReference, ...],
        evidence: Evidence | None = None,
    ) -> None:
        self.champion = champion
        self.parent = parent
        """Version to train further; the window is what it has not seen."""
        self.window = window
        self.accounts = accounts
        self.orphans = orphans
        """Showings that match no completion of the window."""
        self.broken = broken
        """Rows of the window that are no completions."""
        self.skew = skew
        """Seconds by which the newest event is ahead of the collector's clock; negative where it is behind."""
        self.completions = completions
        self.feedback = feedback
        self.evidence = evidence or Evidence()
        """What validation left in the object store."""

    def validated(self, reasons: Mapping[str, str], evidence: Evidence) -> "Collected":
        """With the samples that failed validation moved out, and what tells of it."""
        fields = {name: getattr(self, name) for name in self.__slots__}
        return Collected(**fields | {"accounts": self.accounts.quarantine(reasons), "evidence": evidence})

    def manifest_fields(self, now: float) -> dict[str, Any]:
        """What the cycle's manifest tells of its window."""
        return {
            "created": now,
            "champion": self.champion,
            "parent": self.parent,
            "since": self.window.since,
            "until": self.window.until,
            "completions": self.completions,
            "feedback": self.feedback,
            "buckets": self.accounts.buckets,
            "quarantined": self.accounts.quarantined,
            "requests": self.accounts.requests,
            "quarantine": self.evidence.quarantine,
            "docs": self.evidence.docs,
            "profile": profile(self.accounts.samples),
            "code": code_version(),
        }


def collect(store: ObjectStore, registry: Registry, settings: Settings, now: float) -> Collected:
    """Read the window after the parent's own cycle and account for its requests.

    Raises:
        NoChampion: nothing is served yet.
    """
    aliases = registry.aliases()
    champion = aliases.champion
    if champion is None:
        raise NoChampion(f"registry: model {registry.model!r} has no alias champion; `make up` registers the base model")
    versions = lineage(registry.versions())
    parent = to_train(store, versions, champion, aliases.previous_champion)
    manifests = ancestry(store, versions, parent, now - settings.collect.window_seconds)
    found = window(manifests, now, settings.collect.settle_seconds, settings.collect.window_seconds)
    completions = read_completions(store, found, now)
    late = [c.time for _, c in completions.rows if c.time <= found.since]
    feedback = read_feedback(store, found, min([found.since, *late]), now)
    joined = join([c for _, c in completions.rows], [f for _, f in feedback.rows], settings.collect.join_seconds)
    accounts = account(
        joined,
        parent=parent,
        lineage=versions,
        until=found.until,
        settings=settings.collect,
        # Only an object that came late can hold what was trained already, under another key.
        seen=trained(store, [m for m in manifests if m.until >= found.oldest]) if late else frozenset(),
        malformed=completions.malformed,
    )
    newest = max((r.last for r in (*completions.objects, *feedback.objects)), default=now)
    return Collected(
        champion=champion,
        parent=parent,
        window=found,
        accounts=accounts,
        orphans=joined.orphans,
        broken=completions.broken,
        skew=newest - now,
        completions=completions.objects,
        feedback=feedback.objects,
    )


def ancestry(store: ObjectStore, versions: Lineage, parent: str, oldest: float) -> list[Manifest]:
    """Manifests of the cycles that made a version and its ancestors, newest first, as far as they reach into the window."""
    found: list[Manifest] = []
    for version in versions.ancestry(parent):
        if cycle := versions.cycles.get(version):
            manifest = manifest_of(store, cycle)
            found.append(manifest)
            if manifest.until < oldest:
                break
    return found


def trained(store: ObjectStore, manifests: list[Manifest]) -> Collection[str]:
    """Ids of the completions that these cycles trained on."""
    return frozenset(s.completion_id for m in manifests for s in store.get_rows(m.samples.key, Sample))
