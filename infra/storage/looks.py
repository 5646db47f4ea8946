"""The gate's looks in the object store: looks/EXPERIMENT/000001.json, looks/EXPERIMENT/000002.json, ..., each written once."""

from infra.records import Look
from infra.storage.store import ObjectStore

PREFIX = "looks/"
DIGITS = 6
"""Digits of a look's number in its key."""


def key(experiment: str, number: int) -> str:
    return f"{PREFIX}{experiment}/{number:0{DIGITS}d}.json"


def newest_number(store: ObjectStore, experiment: str) -> int:
    """Return the number of an experiment's newest look, or 0."""
    last = max(store.keys(f"{PREFIX}{experiment}/"), default="")
    return int(last.removesuffix(".json").rpartition("/")[2]) if last else 0


def newest(store: ObjectStore, experiment: str) -> Look | None:
    """Return an experiment's newest look, or None before the first."""
    number = newest_number(store, experiment)
    return read(store, experiment, number) if number else None


def read(store: ObjectStore, experiment: str, number: int) -> Look:
    """Return a look. Raises KeyError if there is none of this number."""
    return Look.model_validate(store.get_json(key(experiment, number)))


def append(store: ObjectStore, look: Look) -> bool:
    """Write a look under its number; return False where another writer has taken the number."""
    return store.add(key(look.experiment, look.number), look)


def thinned(newest: int, most: int) -> list[int]:
    """Return about `most` of the numbers from 1 to the newest, evenly spaced, with the first and the newest.

    The spacing is a power of two: a log that grows asks for few numbers that it did not ask for before.
    """
    spacing = 1
    while newest > most * spacing:
        spacing *= 2
    return sorted({1, *range(spacing, newest + 1, spacing), newest}) if newest else []


def some(store: ObjectStore, experiment: str, newest: int, most: int) -> list[Look]:
    """Return about `most` of an experiment's looks, evenly spaced, with the first and the newest."""
    return [read(store, experiment, number) for number in thinned(newest, most)]
