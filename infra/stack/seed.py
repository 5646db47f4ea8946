"""Seed empty servers: the bucket, the registered model, and the base model as version 1. Each step can be repeated."""

import time

from infra import settings as settings_
from infra.model import architectures
from infra.model.architectures import UnsupportedCheckpoint
from infra.registry.client import CHAMPION, Registry
from infra.settings import Settings
from infra.storage.store import ObjectStore

BASE_CHECKPOINT = "checkpoints/base"


class NoBaseModel(ValueError):
    """The base model's directory contains no model that can be served and trained."""


def check_base(settings: Settings) -> None:
    """Raise NoBaseModel if the base model is not on disk, or of an architecture that cannot be trained."""
    try:
        architectures.check(settings_.path(settings.model.base))
    except UnsupportedCheckpoint as error:
        raise NoBaseModel(
            f"model.base = {str(settings.model.base)!r}: {error}. Train the base model with `tabloop base`, or set model.base"
        ) from None


def bucket(settings: Settings) -> bool:
    """Create the bucket if it is missing, and check that conditional puts are safe; return whether it was missing."""
    store = ObjectStore.connect(settings.store)
    made = store.ensure_bucket()
    store.check_conditional_puts()
    return made


def base_model(settings: Settings) -> tuple[str, bool]:
    """Upload, register and make champion the base model, if the registry has no champion; return the champion's version, and
    whether this call made it champion.

    An interrupted call can be repeated: it uses what already exists. Raises NoBaseModel (check_base).
    """
    registry = Registry.connect(settings.registry)
    registry.ensure_model()
    if champion := registry.aliases().champion:
        return champion, False
    store = ObjectStore.connect(settings.store)
    source = f"s3://{store.bucket}/{BASE_CHECKPOINT}"
    known = [version.version for version in registry.versions() if version.source == source]
    if not known:
        check_base(settings)
        checksums = store.put_directory(BASE_CHECKPOINT, settings_.path(settings.model.base))
        tags = {"parent": "", "cycle": "", "created": f"{time.time():.0f}", "files": str(len(checksums))}
        known = [registry.create_version(source, tags, "The base model this stack started from.").version]
    registry.set_alias(CHAMPION, known[0])
    return known[0], True
