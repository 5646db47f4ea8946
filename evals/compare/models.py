"""The checkpoints that a command names: directories, versions and aliases of the registry."""

from collections.abc import Sequence
from pathlib import Path

from infra import settings as configuration
from infra.registry import checkpoints
from infra.registry.client import CHALLENGER, CHAMPION, Registry
from infra.settings import Settings
from infra.storage.store import ObjectStore


class UnknownModel(ValueError):
    """A name is no directory, no version and no alias."""


def in_registry(name: str) -> bool:
    """Return whether a name is a version's number or an alias, unless it is a directory."""
    return (name.isdigit() or name in (CHAMPION, CHALLENGER)) and not Path(name).is_dir()


def find_models(names: Sequence[str], settings: Settings, store: ObjectStore | None) -> dict[str, Path]:
    """Return the directory of each named model, in order; versions are downloaded.

    A directory is called by its last part, unless another model is called so too.

    Args:
        store: needed for versions.

    Raises:
        UnknownModel: a name is none of these, or a model is named twice.
    """
    short = [Path(name).name for name in names]
    models: dict[str, Path] = {}
    for name, last in zip(names, short, strict=True):
        if names.count(name) > 1:
            raise UnknownModel(f"model {name!r} is named twice; name each model once, the baseline first")
        called = last if short.count(last) == 1 else name
        models[called] = _version(name, settings, store) if store and in_registry(name) else _directory(name)
    return models


def _directory(name: str) -> Path:
    if not any(Path(name).glob("*.safetensors")):
        raise UnknownModel(
            f"model {name!r}: expected a directory in Hugging Face layout with *.safetensors, a version's number, "
            f"{CHAMPION!r} or {CHALLENGER!r}; `tabloop status` shows the registry's address"
        )
    return Path(name).resolve()


def _version(name: str, settings: Settings, store: ObjectStore) -> Path:
    registry = Registry.connect(settings.registry)
    aliases = registry.aliases()
    version = {CHAMPION: aliases.champion, CHALLENGER: aliases.challenger}.get(name, name)
    if version is None:
        raise UnknownModel(f"model {name!r}: the registry has no such alias; name a version's number or a directory")
    return checkpoints.fetch(store, registry, version, configuration.path(settings.train.folder) / "versions")
