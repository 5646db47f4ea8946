"""The clients of steps that get the settings."""

from infra.registry.client import Registry
from infra.settings import Settings
from infra.storage.store import ObjectStore


def store_of(settings: Settings) -> ObjectStore:
    """Return a client of the object store."""
    return ObjectStore.connect(settings.store)


def registry_of(settings: Settings) -> Registry:
    """Return a client of the model registry."""
    return Registry.connect(settings.registry)
