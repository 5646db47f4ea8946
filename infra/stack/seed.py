"""Seed empty servers: the bucket, the registered model, and the base model as version 1. Each step can be repeated."""

import json
import tempfile
import time
from pathlib import Path
from urllib.parse import urlsplit

from infra import settings as settings_
from infra.model import architectures
from infra.model.architectures import UnsupportedCheckpoint
from infra.registry.client import CHAMPION, Registry
from infra.settings import Settings
from infra.storage.store import CHECKSUMS, ObjectStore

BASE_CHECKPOINT = "checkpoints/base"


class NoBaseModel(ValueError):
    """The base model's directory contains no model that can be served and trained."""


def check_base(settings: Settings) -> None:
    """Raise NoBaseModel if the base model is not on disk, or of an architecture that cannot be trained."""
    try:
        architectures.check(settings_.path(settings.model.base))
    except UnsupportedCheckpoint as error:
        raise NoBaseModel(
            f"model.base = {str(settings.model.base)!r}: {error}. Train the base model with `tabloop base`, set model.base, "
            "or name another place: `tabloop up --model DIR`, `tabloop bootstrap --base FROM`"
        ) from None


def fetch_base(settings: Settings) -> bool:
    """Download the base model from the bucket to model.base, each file verified, unless it is there; return whether it was not.

    Raises:
        Incomplete: the bucket has no base model: `tabloop bootstrap` uploads it.
        NoBaseModel: what the bucket has cannot be served and trained.
    """
    target = settings_.path(settings.model.base)
    store = ObjectStore.connect(settings.store)
    wanted = store.checksums(BASE_CHECKPOINT)
    mark = target / CHECKSUMS
    if mark.exists() and mark.read_bytes() == wanted:
        return False
    store.get_directory(BASE_CHECKPOINT, target)
    check_base(settings)
    mark.write_bytes(wanted)  # last: a fetch that was cut off is made again
    return True


def bring_base(settings: Settings, source: str) -> None:
    """Copy a base model from a directory or from "s3://BUCKET/PREFIX" to the bucket; a source that cannot be used is refused.

    Raises:
        NoBaseModel: the source is neither, or no model that can be served and trained.
    """
    with tempfile.TemporaryDirectory(prefix="tabloop-base-", dir=_room(settings)) as folder:
        directory = Path(folder) if source.startswith("s3://") else Path(source)
        if source.startswith("s3://"):
            _download(settings, source, directory)
        try:
            architectures.check(directory)
        except UnsupportedCheckpoint as error:
            raise NoBaseModel(f"--base {source}: {error}; name the files of a checkpoint in Hugging Face's layout") from None
        ObjectStore.connect(settings.store).put_directory(BASE_CHECKPOINT, directory)


def _room(settings: Settings) -> Path:
    """Return the folder of model.base, which has the room for a model."""
    folder = settings_.path(settings.model.base).parent
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _download(settings: Settings, source: str, directory: Path) -> None:
    address = urlsplit(source)
    prefix = address.path.strip("/")
    theirs = ObjectStore.connect(settings.store.model_copy(update={"bucket": address.netloc}))
    names = [key.removeprefix(f"{prefix}/") for key in theirs.keys(f"{prefix}/")]
    if not address.netloc or not prefix or not names:
        raise NoBaseModel(f"--base {source}: no object lies there; expected s3://BUCKET/PREFIX with a checkpoint's files")
    if CHECKSUMS in names:
        return theirs.get_directory(prefix, directory)
    for name in names:
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(theirs.get(f"{prefix}/{name}"))


def bucket(settings: Settings) -> bool:
    """Create the bucket if it is missing, and check that conditional puts are safe; return whether it was missing."""
    store = ObjectStore.connect(settings.store)
    made = store.ensure_bucket()
    store.check_conditional_puts()
    return made


def base_model(settings: Settings, brought: str = "") -> tuple[str, bool]:
    """Upload, register and make champion the base model, if the registry has no champion; return the champion's version, and
    whether this call made it champion.

    An interrupted call can be repeated: it uses what already exists. Raises NoBaseModel (check_base, bring_base).

    Args:
        brought: directory, or "s3://BUCKET/PREFIX", of the base model; empty: model.base.
    """
    registry = Registry.connect(settings.registry)
    registry.ensure_model()
    if champion := registry.aliases().champion:
        return champion, False
    store = ObjectStore.connect(settings.store)
    source = f"s3://{store.bucket}/{BASE_CHECKPOINT}"
    known = [version.version for version in registry.versions() if version.source == source]
    if not known:
        if brought:
            bring_base(settings, brought)
        else:
            check_base(settings)
            store.put_directory(BASE_CHECKPOINT, settings_.path(settings.model.base))
        files = len(json.loads(store.checksums(BASE_CHECKPOINT)))
        tags = {"parent": "", "cycle": "", "created": f"{time.time():.0f}", "files": str(files)}
        known = [registry.create_version(source, tags, "The base model this stack started from.").version]
    registry.set_alias(CHAMPION, known[0])
    return known[0], True
