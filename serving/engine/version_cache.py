"""A replica's state on disk, from which it can restart without the registry: versions, and the last known slots and aliases.

STATE/versions/VERSION/...   complete checkpoints, renamed into place; source.txt names their origin, fetched.txt their checksum
STATE/slots.json             the version that each slot held last
STATE/aliases.json           the registry's last answer
STATE/PROJECT-slots.json, STATE/PROJECT-aliases.json    those of a project with a champion of its own

Every write is synced to the disk before it takes effect. An unreadable file is renamed to NAME.unreadable; the registry has the
same contents.
"""

import contextlib
import copy
import json
import logging
import os
import shutil
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Lock
from typing import Any, Literal, TypeVar
from urllib.parse import urlsplit

from infra.records import ExperimentRecord
from infra.registry.client import Aliases
from infra.storage.deltas import stored
from infra.storage.deltas.stored import HeldVersion, How
from infra.storage.store import ObjectStore

log = logging.getLogger(__name__)
SOURCE, CHECKSUM = "source.txt", "fetched.txt"
SLOTS, ALIASES = "slots.json", "aliases.json"
T = TypeVar("T")
Origin = tuple[str, tuple[int, ...]]
KEPT_VERSIONS = 4
"""Number of unused versions to keep, so that a rollback needs no download."""


@dataclass(frozen=True)
class Download:
    """A version on this disk, and how it was fetched."""

    path: Path
    how: How | Literal["held"]
    """held: it was on the disk already."""
    bytes: int
    """Bytes downloaded."""
    source: str
    """URI of the checkpoint in the object store."""


class VersionCache:
    """The state directory of one replica of the app."""

    def __init__(self, state: Path, most_deltas: int = 0) -> None:
        """Use a directory; `most_deltas`: longest chain of deltas in place of a full copy (serving.most_deltas)."""
        self._state = state
        self._most_deltas = most_deltas
        self._slots_file, self._aliases_file = SLOTS, ALIASES
        self._changing = Lock()
        """Held while versions are written or deleted, also by the followers of projects."""

    def of(self, project: str) -> "VersionCache":
        """Return the same versions with the slots and aliases of a project's loop."""
        found = copy.copy(self)
        found._slots_file, found._aliases_file = f"{project}-{SLOTS}", f"{project}-{ALIASES}"
        return found

    def forget_loops(self, projects: Collection[str]) -> None:
        """Delete slots and aliases of projects that have no loop any more: their versions would stay here, and in engines after a
        restart, in the place of those that serve.

        Args:
            projects: those that have a loop.
        """
        for name in (SLOTS, ALIASES):
            for path in self._state.glob(f"*-{name}"):
                if path.name.removesuffix(f"-{name}") not in projects:
                    path.unlink(missing_ok=True)

    def folder(self, name: str) -> Path:
        """Return a folder beside the versions."""
        return self._state / name

    def path(self, version: str) -> Path | None:
        """Return a version's directory, or None if it is not on this disk."""
        path = self._state / "versions" / version
        return path if path.is_dir() else None

    def source(self, version: str) -> str | None:
        """Return the source of a version on this disk. The same number in another registry is another checkpoint."""
        try:
            return (self._state / "versions" / version / SOURCE).read_text()
        except FileNotFoundError:
            return None

    def download(self, version: str, source: str, store: ObjectStore) -> Download:
        """Fetch a version from the object store, in full or as the difference from a version on this disk, and check every file's
        checksum.

        Raises:
            ValueError: the source is not in this store, or a file is corrupt.
            KeyError: the checkpoint is not complete in the store.
        """
        with self._changing:
            return self._download(version, source, store)

    def _download(self, version: str, source: str, store: ObjectStore) -> Download:
        if (path := self.path(version)) and self.source(version) == source:
            return Download(path, "held", 0, source)
        if (checkpoint := _key(source, store)) is None:
            raise ValueError(f"version {version}: source {source!r} is not in s3://{store.bucket}/")
        path = self._state / "versions" / version
        partial = path.with_name(f".{version}.partial")  # one process only: an engine has its own cache
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        fetched = stored.fetch(store, checkpoint, partial, self._held(store), self._most_deltas)
        (partial / SOURCE).write_text(source)
        (partial / CHECKSUM).write_text(fetched.sha256)
        sync_folder(partial)
        shutil.rmtree(path, ignore_errors=True)
        os.replace(partial, path)
        _sync(path.parent)
        return Download(path, fetched.how, fetched.bytes, source)

    def prune(self, in_use: Collection[str]) -> None:
        """Delete versions that neither are in use nor were in a slot of any loop last, except the newest KEPT_VERSIONS."""
        with self._changing:
            kept = {*in_use, *(version for slots in self._every_file() for version in slots.values())}
            unused = [p for p in (self._state / "versions").glob("*") if p.is_dir() and p.name not in kept]
            for path in sorted(unused, key=lambda p: p.stat().st_mtime)[:-KEPT_VERSIONS]:
                shutil.rmtree(path, ignore_errors=True)

    def every_slot(self) -> list[tuple[Path, str]]:
        """Return the directories and versions that the slots of all loops held last, each once."""
        held = sorted({version for slots in self._every_file() for version in slots.values()})
        return [(path, version) for version in held if (path := self.path(version))]

    def _every_file(self) -> list[dict[str, str]]:
        names = sorted(path.name for path in self._state.glob(f"*{SLOTS}"))
        return [self._read(name, _versions_by_slot) or {} for name in names]

    def slot_version(self, slot: int) -> tuple[Path, str] | None:
        """Return the directory and version that a slot held last, or None if the version is not on this disk."""
        version = self._slots().get(str(slot))
        path = self.path(version) if version else None
        return (path, version) if path and version else None

    def remember_slot(self, slot: int, version: str) -> None:
        """Write the version that a slot holds."""
        self._write(self._slots_file, {**self._slots(), str(slot): version})

    def remember_last(self, version: str, most: int) -> None:
        """Write the version that an engine of `most` versions took last, as slot 0; those before it follow."""
        earlier = [each for _, each in sorted(self._slots().items(), key=lambda pair: int(pair[0])) if each != version]
        self._write(self._slots_file, {str(number): each for number, each in enumerate([version, *earlier][:most])})

    def aliases(self) -> Aliases | None:
        """Return the aliases that the registry gave last, or None."""
        return self._read(self._aliases_file, _aliases)

    def remember_aliases(self, aliases: Aliases) -> None:
        """Write the registry's aliases."""
        tests = {"experiment": aliases.experiment, "watch": aliases.watch, "anchor": aliases.anchor}
        self._write(self._aliases_file, {**asdict(aliases), **{name: test and test.model_dump() for name, test in tests.items()}})

    def _held(self, store: ObjectStore) -> dict[str, HeldVersion]:
        """Return the versions on this disk by the prefix of their checkpoints; some may be pruned meanwhile."""
        found: dict[str, HeldVersion] = {}
        for path in (self._state / "versions").glob("[!.]*"):
            if checkpoint := _key(self.source(path.name) or "", store):
                checksum = path / CHECKSUM
                found[checkpoint] = HeldVersion(path, checksum.read_text() if checksum.exists() else "")
        return found

    def _slots(self) -> dict[str, str]:
        return self._read(self._slots_file, _versions_by_slot) or {}

    def _read(self, name: str, parse: Callable[[Any], T]) -> T | None:
        """Return a file's parsed contents, or None if it is missing or unreadable."""
        path = self._state / name
        try:
            return parse(json.loads(path.read_text()))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            aside = path.with_name(name + ".unreadable")
            log.error(
                "%s is unreadable: %s: %s; moved to %s, serving continues without it", path, type(error).__name__, error, aside
            )
            with contextlib.suppress(FileNotFoundError):  # the app or another engine has moved it
                os.replace(path, aside)
            return None

    def _write(self, name: str, value: dict[str, Any]) -> None:
        self._state.mkdir(parents=True, exist_ok=True)
        partial = self._state / f".{name}.partial"
        partial.write_text(json.dumps(value, indent=2))
        _sync(partial)
        os.replace(partial, self._state / name)
        _sync(self._state)


def _key(source: str, store: ObjectStore) -> str | None:
    """Return the key prefix of a source; None if it is not in this store."""
    address = urlsplit(source)
    return address.path.strip("/") if address.scheme == "s3" and address.netloc == store.bucket else None


def _aliases(fields: dict[str, Any]) -> Aliases:
    given = {name: fields.pop(name, None) for name in ("experiment", "watch", "anchor")}  # not all in earlier releases
    tests: dict[str, Any] = {name: ExperimentRecord.model_validate(test) if test else None for name, test in given.items()}
    return Aliases(**fields, **tests)


def _versions_by_slot(fields: dict[str, str]) -> dict[str, str]:
    return {slot: str(version) for slot, version in fields.items()}


def files_of(path: Path) -> tuple[int, ...]:
    """Return the identity of a folder's weights, without reading them; empty if there are none."""
    found = [file.stat() for file in sorted(path.glob("*.safetensors"))]
    return tuple(number for file in found for number in (file.st_ino, file.st_size, file.st_mtime_ns))


def source_of(path: Path) -> str:
    """Return the source of the version in a folder, or of the adapter whose merged weights it has; empty if it names none."""
    return next((file.read_text() for folder in (path, path.parent) if (file := folder / SOURCE).exists()), "")


def origin_of(path: Path) -> Origin:
    """Return what the weights in a folder are, by `source_of` and `files_of`."""
    return source_of(path), files_of(path)


def sync_folder(path: Path) -> None:
    """Wait until a folder and all that is in it are on the disk."""
    for file in (*path.rglob("*"), path):
        _sync(file)


def _sync(path: Path) -> None:
    """Wait until a file's bytes, or a directory's entries, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
