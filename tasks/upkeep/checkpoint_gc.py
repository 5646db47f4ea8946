"""Remove checkpoints and optimizer states that no loop uses any more; their versions stay, with a tag.

Only uploads of cycles are removed: the base and a person's uploads stay. An upload is removed if its cycle has ended, it is old,
and no version in use is there. The upload of a cycle without a version is unused. An upload that was registered but is unknown
to the registry stays, since it may belong to another registry.

A version is tagged first, then its checksums are removed and those of its copy for engines, then the rest with its delta, so that
no reader takes a partial checkpoint for a complete one. The next pass completes a pass that was killed.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from infra.records import CycleOutcome, Manifest
from infra.registry.client import REMOVED_TAG, Aliases, ModelVersion, Registry
from infra.registry.lineage import BASE_TAG, PROJECT_TAG, Lineage, lineage
from infra.settings import Settings
from infra.settings.schema import Serving
from infra.storage import cycles
from infra.storage.scope import scopes_of
from infra.storage.store import CHECKSUMS, ObjectStore
from tasks.experiments.moves.release import champions
from tasks.labels.collect import NoChampion
from tasks.labels.parent import choose_parent

OPTIMIZERS_DAYS = 3.0
"""Days to keep the optimizer state of a finished cycle (train.keep_optimizer), at most as long as its checkpoint. The state of a
version that may still be trained stays."""
DAY = timedelta(days=1).total_seconds()
CHECKPOINTS, OPTIMIZERS = "checkpoints", "optimizers"


@dataclass(frozen=True)
class ExpiredUpload:
    """The parts of a cycle's upload to remove."""

    cycle: str
    versions: tuple[str, ...]
    """Versions of this upload; empty if the cycle made none."""
    folders: tuple[str, ...]
    """The folders to remove it from: "checkpoints", "optimizers"."""


def find(store: ObjectStore, registry: Registry, settings: Settings, now: float) -> tuple[ExpiredUpload, ...]:
    """Return the uploads to remove. Raises NoChampion: without a champion the versions in use are unknown."""
    index = cycles.every(store)  # before the registry is read, which then knows the versions of all ended cycles
    uploads = uploaded(store)
    ended = {cycle for cycle, objects in index.items() if {"manifest.json", "outcome.json"} <= objects}
    # Of all cycles, also of those whose upload was removed: a manifest may be the only record of an earlier champion.
    manifests = {cycle: cycles.manifest_of(store, cycle) for cycle, objects in index.items() if "manifest.json" in objects}
    known, limits = registry.versions(), settings.retention
    in_use = used(store, registry, settings, manifests, ended)
    days = {CHECKPOINTS: limits.checkpoints_days, OPTIMIZERS: min(OPTIMIZERS_DAYS, limits.checkpoints_days)}
    expired: list[ExpiredUpload] = []
    for cycle in sorted(uploads.keys() & ended):
        versions = tuple(v.version for v in known if v.source.rstrip("/") == store.uri(f"{CHECKPOINTS}/{cycle}"))
        old = [folder for folder in uploads[cycle] if now - manifests[cycle].created > days[folder] * DAY]
        gone = tuple(folder for folder in old if not in_use[folder].intersection(versions))
        if gone and (versions or not registered(store, cycle)):
            expired.append(ExpiredUpload(cycle, versions, gone))
    return tuple(without_bases(expired, known))


def used(
    store: ObjectStore, registry: Registry, settings: Settings, manifests: Mapping[str, Manifest], ended: Collection[str]
) -> Mapping[str, frozenset[str]]:
    """Return the versions that the loops use, by folder: checkpoints also serve. Raises NoChampion."""
    unfinished = [manifest for cycle, manifest in manifests.items() if cycle not in ended]
    trained, served = registry.aliased(), pinned(settings.serving)
    for scope in scopes_of(settings):
        loop, own = scope.view(store), registry.of(scope.project)
        known, aliases = own.versions(), own.aliases()
        trained |= trainable(loop, lineage(known), aliases, unfinished)
        read = [manifest for cycle, manifest in manifests.items() if cycles.project_of(cycle) == scope.project]
        left_out = {v.version for v in known if v.tags.get(PROJECT_TAG, "") not in ("", scope.project)} | {aliases.champion}
        earlier = [version for version in champions(loop, known, read) if version not in left_out]
        served |= {*earlier[: settings.retention.champions_kept]}
    return {CHECKPOINTS: trained | served, OPTIMIZERS: trained}


def without_bases(expired: Iterable[ExpiredUpload], known: Iterable[ModelVersion]) -> Iterator[ExpiredUpload]:
    """Yield the uploads without the checkpoints that the adapters of remaining versions belong to."""
    expired = list(expired)
    going = {version for upload in expired if CHECKPOINTS in upload.folders for version in upload.versions}
    bases = {v.tags.get(BASE_TAG) for v in known if v.version not in going and not v.tags.get(REMOVED_TAG)}
    for upload in expired:
        needed = bases.intersection(upload.versions)
        folders = tuple(folder for folder in upload.folders if not (needed and folder == CHECKPOINTS))
        if folders:
            yield replace(upload, folders=folders)


def uploaded(store: ObjectStore) -> dict[str, list[str]]:
    """Return the folders of each upload by its name: a cycle's id, or a name that a person chose."""
    uploads: dict[str, list[str]] = {}
    for folder in (CHECKPOINTS, OPTIMIZERS):
        for name in {key.split("/")[1] for key in store.keys(f"{folder}/")}:
            uploads.setdefault(name, []).append(folder)
    return uploads


def trainable(store: ObjectStore, tree: Lineage, aliases: Aliases, unfinished: Iterable[Manifest]) -> frozenset[str]:
    """Return the versions without an alias that may be trained further or compared with, now and after a rollback."""
    champion, previous, running = aliases.champion, aliases.previous_champion, aliases.routed
    if champion is None:
        raise NoChampion(
            "registry: the model has no alias champion, so the checkpoints in use are unknown; nothing was removed. "
            "Set the alias on a version in MLflow and run retention again"
        )
    versions = {choose_parent(store, tree, champion, previous)}
    if previous:
        versions |= {previous, choose_parent(store, tree, previous, champion)}
    for record in (running, aliases.anchor):
        versions |= {record.champion, record.challenger} if record else set()
    for manifest in unfinished:
        versions |= {manifest.parent, manifest.champion}
    return frozenset(versions)


def pinned(settings: Serving) -> frozenset[str]:
    """Return the versions that the settings pin for projects and users."""
    return frozenset(t.version for t in (settings.terms, *settings.projects.values(), *settings.users.values()) if t.version)


def registered(store: ObjectStore, cycle: str) -> bool:
    """Return whether an ended cycle made a version."""
    outcome = CycleOutcome.model_validate(store.get_json(f"cycles/{cycle}/outcome.json"))
    return outcome.result == "registered" or bool(outcome.version)


def remove(store: ObjectStore, registry: Registry, expired: Iterable[ExpiredUpload], now: float) -> tuple[ExpiredUpload, ...]:
    """Remove these uploads, except those whose version has an alias by now, and the base of such a version; return the removed
    ones."""
    gone: list[ExpiredUpload] = []
    base_of = {version.version: version.tags.get(BASE_TAG, "") for version in registry.versions()}
    bases, kept = {*base_of.values()}, set[str]()
    # Bases last: an adapter whose base is gone cannot get an alias any more.
    for upload in sorted(expired, key=lambda each: not bases.isdisjoint(each.versions)):
        if not (kept | registry.aliased()).isdisjoint(upload.versions):
            kept |= {base_of.get(version, "") for version in upload.versions}
            continue
        for version in upload.versions if CHECKPOINTS in upload.folders else ():
            registry.set_version_tag(version, REMOVED_TAG, datetime.fromtimestamp(now, UTC).isoformat(timespec="seconds"))
        for folder in upload.folders:
            prefix = f"{folder}/{upload.cycle}/"
            keys = list(store.keys(prefix))
            for key in sorted(keys, key=lambda key: not key.endswith(f"/{CHECKSUMS}")):
                store.delete(key)
        gone.append(upload)
    return tuple(gone)
