"""The clients and folders of the steps, from the settings."""

import logging
from pathlib import Path

from infra import settings as settings_
from infra.registry import checkpoints
from infra.registry.client import NotRegistered, Registry
from infra.settings import Settings
from infra.storage.store import Incomplete, ObjectStore

log = logging.getLogger(__name__)


def store_of(settings: Settings) -> ObjectStore:
    """Return a client of the object store."""
    return ObjectStore.connect(settings.store)


def registry_of(settings: Settings) -> Registry:
    """Return a client of the model registry."""
    return Registry.connect(settings.registry)


def folder_of(settings: Settings, cycle: str) -> Path:
    """Return the folder of a cycle's working files on this machine."""
    return settings_.path(settings.train.folder) / cycle


def versions_folder(settings: Settings) -> Path:
    """Return the folder of downloaded checkpoints on this machine."""
    return settings_.path(settings.train.folder) / "versions"


def checkpoint_of(settings: Settings, version: str) -> Path:
    """Return the directory of a version's checkpoint, downloaded where it is missing."""
    return checkpoints.fetch(store_of(settings), registry_of(settings), version, versions_folder(settings))


def remaining_checkpoint_of(settings: Settings, version: str) -> Path | None:
    """Return the directory of a version's checkpoint; None if the checkpoint or the version was removed."""
    try:
        return checkpoint_of(settings, version)
    except (Incomplete, NotRegistered) as error:
        log.warning("version %s cannot be had: %s", version, error)
        return None


def optimizer_of(settings: Settings, version: str) -> Path | None:
    """Return the directory of the optimizer's state at a version, or None where none was kept."""
    return checkpoints.fetch_optimizer(store_of(settings), registry_of(settings), version, versions_folder(settings))
