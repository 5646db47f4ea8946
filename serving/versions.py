"""Versions on this machine's disk, and what was last known of who serves: all that a restart without registry needs.

STATE/versions/VERSION/...   complete checkpoints (renamed into place when they are), source.txt says where they came from
STATE/slots.json             which version each slot held last
STATE/aliases.json           what the registry said last
"""

import json
import os
import shutil
from collections.abc import Collection
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from infra.records import ExperimentRecord
from infra.registry import Aliases
from infra.store import ObjectStore

SOURCE = "source.txt"
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
        shutil.rmtree(path, ignore_errors=True)
        os.replace(partial, path)
        return path

    def prune(self, in_use: Collection[str]) -> None:
        """Delete old versions that nobody uses."""
        found = [p for p in (self._state / "versions").glob("*") if p.is_dir() and p.name not in in_use]
        for path in sorted(found, key=lambda p: p.stat().st_mtime)[:-KEEP]:
            shutil.rmtree(path, ignore_errors=True)

    def held(self, slot: int) -> tuple[Path, str] | None:
        """The version that a slot held last, if it is still here."""
        version = self._read("slots.json").get(str(slot))
        path = self.path(version) if version else None
        return (path, version) if path and version else None

    def remember_slot(self, slot: int, version: str) -> None:
        self._write("slots.json", {**self._read("slots.json"), str(slot): version})

    def aliases(self) -> Aliases | None:
        """What the registry said last."""
        found = self._read("aliases.json")
        if not found:
            return None
        experiment = found.pop("experiment")
        return Aliases(**found, experiment=ExperimentRecord.model_validate(experiment) if experiment else None)

    def remember_aliases(self, aliases: Aliases) -> None:
        experiment = aliases.experiment.model_dump() if aliases.experiment else None
        self._write("aliases.json", {**asdict(aliases), "experiment": experiment})

    def _read(self, name: str) -> dict[str, Any]:
        try:
            return json.loads((self._state / name).read_text())
        except FileNotFoundError:
            return {}

    def _write(self, name: str, value: dict[str, Any]) -> None:
        self._state.mkdir(parents=True, exist_ok=True)
        partial = self._state / f".{name}.partial"
        partial.write_text(json.dumps(value, indent=2))
        os.replace(partial, self._state / name)
