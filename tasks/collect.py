"""The first step: the window of events since the version to train was made, each request in its bucket."""

import io
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import pyarrow.parquet as pq

from infra.records import Manifest, Quarantined
from infra.registry import Registry
from infra.settings import Settings
from infra.store import ObjectStore
from infra.version import code_version
from tasks.buckets import Accounts, account
from tasks.cycles import manifest_of
from tasks.history import profile
from tasks.lineage import Lineage, lineage
from tasks.partitions import Partition, Plan, Sifted, gathered, plan, references, sift
from tasks.quarantine import Evidence
from tasks.release import to_train
from tasks.window import Window, window

Spread = Callable[[Sequence[Partition]], Sequence[Sifted]]


class NoChampion(RuntimeError):
    """The registry names no champion."""


class Collected:
    """A window, accounted for; never changed.

    Not a dataclass: Prefect walks through those that a task is given.
    """

    __slots__ = ("accounts", "broken", "champion", "evidence", "orphans", "parent", "plan", "skew", "window")

    def __init__(
        self,
        *,
        champion: str,
        parent: str,
        window: Window,
        plan: Plan,
        accounts: Accounts,
        orphans: int,
        broken: tuple[Quarantined, ...],
        skew: float,
        evidence: Evidence | None = None,
    ) -> None:
        self.champion = champion
        self.parent = parent
        """Version to train further; the window is what it has not seen."""
        self.window = window
        self.plan = plan
        """Where the window lies: the tokens of samples are read there when a batch is written."""
        self.accounts = accounts
        self.orphans = orphans
        """Showings that match no completion of the window."""
        self.broken = broken
        """Rows of the window that are no completions."""
        self.skew = skew
        """Seconds by which the newest event is ahead of the collector's clock; negative where it is behind."""
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
            "completions": references(self.plan.completions),
            "feedback": references(self.plan.feedback),
            "buckets": self.accounts.buckets,
            "quarantined": self.accounts.quarantined,
            "requests": self.accounts.requests,
            "quarantine": self.evidence.quarantine,
            "docs": self.evidence.docs,
            "profile": profile(self.accounts.samples),
            "code": code_version(),
        }


def collect(store: ObjectStore, registry: Registry, settings: Settings, now: float, spread: Spread | None = None) -> Collected:
    """Read the window after the parent's own cycle and account for its requests.

    Args:
        spread: joins the partitions, wherever; by default one after another, here.

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
    planned = plan(store, found, now, settings.collect.join_seconds)
    sifted = spread(planned.partitions) if spread else [sift(store, partition) for partition in planned.partitions]
    broken = tuple(row for part in sifted for row in part.broken)
    orphans = sum(part.orphans for part in sifted)
    labelled, repeated = gathered(sifted)
    del sifted  # all that it holds stands in `labelled` once more
    accounts = account(
        labelled,
        parent=parent,
        lineage=versions,
        until=found.until,
        settings=settings.collect,
        requests=planned.requests,
        duplicates=repeated,
        # Only an object that came late can hold what was trained already, under another key.
        seen=trained(store, [m for m in manifests if m.until >= found.oldest]) if planned.late else frozenset(),
        malformed=len(broken),
    )
    return Collected(
        champion=champion,
        parent=parent,
        window=found,
        plan=planned,
        accounts=accounts,
        orphans=orphans,
        broken=broken,
        skew=(planned.newest or now) - now,
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


def trained(store: ObjectStore, manifests: Sequence[Manifest]) -> Collection[str]:
    """Ids of the completions that these cycles trained on."""
    bodies = (store.get(m.samples.key) for m in manifests)
    return frozenset(i for body in bodies for i in pq.read_table(io.BytesIO(body), columns=["completion_id"])[0].to_pylist())
