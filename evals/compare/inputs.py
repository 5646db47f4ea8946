"""The models and evaluation sets that a command names; the sets are built as a cycle builds them."""

from collections.abc import Sequence
from pathlib import Path

from infra import settings as configuration
from infra.registry import checkpoints
from infra.registry.client import CHALLENGER, CHAMPION, Registry
from infra.settings import Settings
from infra.settings.evaluation import Evaluate
from infra.storage.store import ObjectStore
from tasks.evaluation.heldout.build import build
from tasks.evaluation.heldout.sets import Places


class UnknownModel(ValueError):
    """A name is no directory, no version and no alias."""


def in_registry(name: str) -> bool:
    """Return whether a name is a version's number or an alias, unless it is a directory."""
    return (name.isdigit() or name in (CHAMPION, CHALLENGER)) and not Path(name).is_dir()


def find_models(names: Sequence[str], settings: Settings, store: ObjectStore | None) -> dict[str, Path]:
    """Return the directory of each named model, in order; versions are downloaded from the store.

    A directory is called by its last part, unless another model is called so too.

    Raises UnknownModel where a name matches no model, or a model is named twice.
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


class UnknownSet(ValueError):
    """No set of the settings has this name, or none can be built."""


def named_sets(evaluate: Evaluate, names: Sequence[str], languages: Sequence[str], count: int | None) -> tuple[Places, ...]:
    """Return sets by name; without names, all but the team's own, which is made from a cycle's requests.

    `languages`: languages (extensions) of the places; none: all. `count`: places of each set that ask for text; none: as the
    settings say. Raises UnknownSet where a name is no set's, or there is no place. Raises ValueError where a set's files are
    missing, malformed or too few.
    """
    known = {one.name: one for one in evaluate.sets if one.kind != "team"}
    if unknown := [name for name in names if name not in known]:
        raise UnknownSet(
            f"set {unknown[0]!r}: expected one of {sorted(known)}, which evaluate.sets names (the team's own set is made from a "
            "cycle's requests); `tabloop sets` shows them"
        )
    wanted = [known[name] for name in names or known]
    sized = [one.model_copy(update={"places": count, "seed": evaluate.seed}) if count else one for one in wanted]
    given = evaluate.model_copy(update={"samples": count or evaluate.samples})
    built = [build(one.model_copy(update={"languages": tuple(languages) or one.languages}), given) for one in sized]
    found = tuple(one for one in built if one.places)
    if not found:
        raise UnknownSet(
            f"sets {[one.name for one in wanted]}: no place in the languages {list(languages)}; "
            "`tabloop sets` shows which they have"
        )
    return found
