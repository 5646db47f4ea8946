"""Checkpoints and optimizer states that nobody can want any more are removed; their versions stay, with a tag that says so.

Looked at is what cycles uploaded: the base, and what a person put there, stay. An upload goes when its cycle has ended, it is
old, and no wanted version lies there. What a cycle without a version has left is wanted by nobody; what was registered and is
unknown to the registry stays, since that may be another registry.

A version is tagged first, then its checksums go, then the rest: nobody ever finds weights that look whole and are not, and a pass
that was killed is completed by the next.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from infra import cycles
from infra.lineage import Lineage, lineage
from infra.records import CycleOutcome, Manifest
from infra.registry import REMOVED_TAG, Aliases, Registry
from infra.settings import Settings
from infra.settings.schema import Serving
from infra.store import CHECKSUMS, ObjectStore
from tasks.experiments.release import champions
from tasks.labels.collect import NoChampion
from tasks.labels.parent import choose_parent

DAY = timedelta(days=1).total_seconds()
CHECKPOINTS, OPTIMIZERS = "checkpoints", "optimizers"


@dataclass(frozen=True)
class ExpiredUpload:
    """What goes of a cycle's upload."""

    cycle: str
    versions: tuple[str, ...]
    """Versions that lie there; empty where the cycle made none."""
    folders: tuple[str, ...]
    """"checkpoints", "optimizers": in which of them it is removed."""


def find(store: ObjectStore, registry: Registry, settings: Settings, now: float) -> tuple[ExpiredUpload, ...]:
    """What may go.

    Raises:
        NoChampion: what is still wanted cannot be told.
    """
    index = cycles.index(store)  # before the registry is asked: what an ended cycle registered is known there by then
    uploads = uploaded(store)
    ended = {cycle for cycle, objects in index.items() if {"manifest.json", "outcome.json"} <= objects}
    # Of all cycles, also of those whose upload is gone: nothing else may tell that the champion they name was one.
    manifests = {cycle: cycles.manifest_of(store, cycle) for cycle, objects in index.items() if "manifest.json" in objects}
    known, aliases, limits = registry.versions(), registry.aliases(), settings.retention
    unfinished = [manifest for cycle, manifest in manifests.items() if cycle not in ended]
    trained = registry.aliased() | trainable(store, lineage(known), aliases, unfinished)
    earlier = [version for version in champions(store, known, manifests.values()) if version != aliases.champion]
    served = pinned(settings.serving) | {*earlier[: limits.champions_kept]}
    wanted = {CHECKPOINTS: trained | served, OPTIMIZERS: trained}
    days = {CHECKPOINTS: limits.checkpoints_days, OPTIMIZERS: min(limits.optimizers_days, limits.checkpoints_days)}
    found: list[ExpiredUpload] = []
    for cycle in sorted(uploads.keys() & ended):
        versions = tuple(v.version for v in known if v.source.rstrip("/") == store.uri(f"{CHECKPOINTS}/{cycle}"))
        old = [folder for folder in uploads[cycle] if now - manifests[cycle].created > days[folder] * DAY]
        gone = tuple(folder for folder in old if not wanted[folder].intersection(versions))
        if gone and (versions or not registered(store, cycle)):
            found.append(ExpiredUpload(cycle, versions, gone))
    return tuple(found)


def uploaded(store: ObjectStore) -> dict[str, list[str]]:
    """The folders in which something lies, by its name there: a cycle's id, or what a person chose."""
    found: dict[str, list[str]] = {}
    for folder in (CHECKPOINTS, OPTIMIZERS):
        for name in {key.split("/")[1] for key in store.keys(f"{folder}/")}:
            found.setdefault(name, []).append(folder)
    return found


def trainable(store: ObjectStore, tree: Lineage, aliases: Aliases, unfinished: Iterable[Manifest]) -> frozenset[str]:
    """Versions that training may go on from, or is compared with, beside those with an alias: now and after a rollback."""
    champion, previous, running = aliases.champion, aliases.previous_champion, aliases.experiment
    if champion is None:
        raise NoChampion(
            "registry: the model has no alias champion, so nobody can tell which checkpoints are wanted; nothing was removed. "
            "Put it on a version in MLflow and run retention again"
        )
    found = {choose_parent(store, tree, champion, previous)}
    if previous:
        found |= {previous, choose_parent(store, tree, previous, champion)}
    if running:
        found |= {running.champion, running.challenger}
    for manifest in unfinished:
        found |= {manifest.parent, manifest.champion}
    return frozenset(found)


def pinned(settings: Serving) -> frozenset[str]:
    """Versions that the settings let projects and users have."""
    return frozenset(t.version for t in (settings.terms, *settings.projects.values(), *settings.users.values()) if t.version)


def registered(store: ObjectStore, cycle: str) -> bool:
    """Whether a cycle that has ended made a version."""
    return CycleOutcome.model_validate(store.get_json(f"cycles/{cycle}/outcome.json")).result == "registered"


def remove(store: ObjectStore, registry: Registry, found: Iterable[ExpiredUpload], now: float) -> tuple[ExpiredUpload, ...]:
    """Remove what was found, save what has got an alias since; gives back what is gone."""
    gone: list[ExpiredUpload] = []
    for upload in found:
        if registry.aliased().intersection(upload.versions):
            continue
        for version in upload.versions if CHECKPOINTS in upload.folders else ():
            registry.set_version_tag(version, REMOVED_TAG, datetime.fromtimestamp(now, UTC).isoformat(timespec="seconds"))
        for folder in upload.folders:
            prefix = f"{folder}/{upload.cycle}/"
            store.delete(f"{prefix}{CHECKSUMS}")
            for key in list(store.keys(prefix)):
                store.delete(key)
        gone.append(upload)
    return tuple(gone)
