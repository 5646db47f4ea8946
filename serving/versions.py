"""Versions on this machine's disk, and what was last known of who serves: all that a restart without registry needs.

STATE/versions/VERSION/...   complete checkpoints (renamed into place when they are), source.txt says where they came from
STATE/slots.json             which version each slot held last
STATE/aliases.json           what the registry said last

All of it is on the disk before it counts. What cannot be read all the same is set aside as NAME.unreadable: the registry knows it
too.
"""

import contextlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Collection
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from infra.records import ExperimentRecord
from infra.registry import Aliases
from infra.store import ObjectStore

log = logging.getLogger(__name__)
SOURCE = "source.txt"
SLOTS, ALIASES = "slots.json", "aliases.json"
T = TypeVar("T")
KEEP = 4
"""Versions kept beside those in use, so that a rollback needs no download."""


class Versions:
    """The state directory of one replica."""

    def __init__(self, state: Path) -> None:
        self._state = state

    def path(self, version: str) -> Path | None:
        """Where a version lies, if it does."""
        path = self._state / "versions" / version
        return path if path.is_dir() else None

    def source(self, version: str) -> str | None:
        """Where a version that lies here came from; numbers alone mean another checkpoint in another registry."""
        try:
            return (self._state / "versions" / version / SOURCE).read_text()
        except FileNotFoundError:
            return None

    def download(self, version: str, source: str, store: ObjectStore) -> Path:
        """Fetch a version from the object store, every file checked against its checksum.

        Raises:
            ValueError: the source is not in this store, or a file is corrupt.
            KeyError: the checkpoint is not complete in the store.
        """
        if (path := self.path(version)) and self.source(version) == source:
            return path
        address = urlsplit(source)
        if address.scheme != "s3" or address.netloc != store.bucket:
            raise ValueError(f"version {version}: source {source!r} is not in s3://{store.bucket}/")
        path = self._state / "versions" / version
        partial = path.with_name(f".{version}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        store.get_directory(address.path.strip("/"), partial)
        (partial / SOURCE).write_text(source)
        for file in partial.rglob("*"):
            _sync(file)
        _sync(partial)
        shutil.rmtree(path, ignore_errors=True)
        os.replace(partial, path)
        _sync(path.parent)
        return path

    def prune(self, in_use: Collection[str]) -> None:
        """Delete old versions that nobody uses."""
        found = [p for p in (self._state / "versions").glob("*") if p.is_dir() and p.name not in in_use]
        for path in sorted(found, key=lambda p: p.stat().st_mtime)[:-KEEP]:
            shutil.rmtree(path, ignore_errors=True)

    def held(self, slot: int) -> tuple[Path, str] | None:
        """The version that a slot held last, if it is still here."""
        version = self._slots().get(str(slot))
        path = self.path(version) if version else None
        return (path, version) if path and version else None

    def remember_slot(self, slot: int, version: str) -> None:
        self._write(SLOTS, {**self._slots(), str(slot): version})

    def aliases(self) -> Aliases | None:
        """What the registry said last."""
        return self._read(ALIASES, _aliases)

    def remember_aliases(self, aliases: Aliases) -> None:
        experiment = aliases.experiment.model_dump() if aliases.experiment else None
        self._write(ALIASES, {**asdict(aliases), "experiment": experiment})

    def _slots(self) -> dict[str, str]:
        return self._read(SLOTS, _versions_by_slot) or {}

    def _read(self, name: str, parse: Callable[[Any], T]) -> T | None:
        """What was remembered; none where there is nothing, or nothing that can be read."""
        path = self._state / name
        try:
            return parse(json.loads(path.read_text()))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            aside = path.with_name(name + ".unreadable")
            log.error("%s: %s: %s; it is kept as %s, serving goes on without it", path, type(error).__name__, error, aside)
            with contextlib.suppress(FileNotFoundError):  # the app and its engines read the same
                os.replace(path, aside)
            return None

    def _write(self, name: str, value: dict[str, Any]) -> None:
        self._state.mkdir(parents=True, exist_ok=True)
        partial = self._state / f".{name}.partial"
        partial.write_text(json.dumps(value, indent=2))
        _sync(partial)
        os.replace(partial, self._state / name)
        _sync(self._state)


def _aliases(found: dict[str, Any]) -> Aliases:
    experiment = found.pop("experiment")
    return Aliases(**found, experiment=ExperimentRecord.model_validate(experiment) if experiment else None)


def _versions_by_slot(found: dict[str, str]) -> dict[str, str]:
    return {slot: str(version) for slot, version in found.items()}


def _sync(path: Path) -> None:
    """Come back when a file's bytes, or a directory's entries, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
