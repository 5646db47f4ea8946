"""What a fresh stack needs before it can serve: the bucket, the registered model, the base model as its version 1."""

import time

from infra import settings as settings_
from infra.registry import CHAMPION, Registry
from infra.settings import Settings
from infra.store import ObjectStore

BASE_CHECKPOINT = "checkpoints/base"


class NoBaseModel(ValueError):
    """The base model's directory holds no model."""


def check_base(settings: Settings) -> None:
    """Raise NoBaseModel where there is no base model on disk."""
    directory = settings_.path(settings.model.base)
    if not (directory / "config.json").exists():
        raise NoBaseModel(
            f"model.base = {str(settings.model.base)!r}: no model there (config.json is missing); "
            "`make base` trains it, or set model.base to a Hugging Face checkpoint's directory"
        )


def bucket(settings: Settings) -> None:
    """Make the bucket where it is missing, and see to it that what must be written once is."""
    store = ObjectStore.connect(settings.store)
    store.ensure_bucket()
    store.check_conditional_puts()


def base_model(settings: Settings) -> str:
    """Upload and register the base model where the registry has no champion; gives back the champion's version.

    May be stopped anywhere and run again: what is there already is used.
    """
    registry = Registry.connect(settings.registry)
    registry.ensure_model()
    if champion := registry.aliases().champion:
        return champion
    store = ObjectStore.connect(settings.store)
    source = f"s3://{store.bucket}/{BASE_CHECKPOINT}"
    known = [version.version for version in registry.versions() if version.source == source]
    if not known:
        check_base(settings)
        checksums = store.put_directory(BASE_CHECKPOINT, settings_.path(settings.model.base))
        tags = {"parent": "", "cycle": "", "created": f"{time.time():.0f}", "files": str(len(checksums))}
        known = [registry.create_version(source, tags, "The base model that this stack started from.").version]
    registry.set_alias(CHAMPION, known[0])
    return known[0]
