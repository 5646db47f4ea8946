"""Finds a version's checkpoint for an engine: on the app's disk if the engine sees it, else in the engine's own cache, filled
from the object store."""

import os
import re
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from infra.model import adapters
from infra.storage.store import ObjectStore
from serving.engine.version_cache import Download, VersionCache, sync_folder

WHOLE = "whole"
"""Folder of the merged weights within an adapter's."""
SLOT = 0
"""The only slot in an engine's own cache."""
REGISTERED, EVALUATED = re.compile(r"\d+"), re.compile(r"evaluation-[0-9a-f]{16}")
"""Versions of the registry, and weights that an evaluation loads, which may not be registered
(tasks/evaluation/models/engine.py)."""


class Checkpoints:
    """The checkpoints of one engine. Its methods block, and may be called from threads."""

    def __init__(self, shared: VersionCache, own: VersionCache, connect: Callable[[], ObjectStore], as_adapters: int = 0) -> None:
        """Look in two caches.

        Args:
            shared: the app's cache, in serving.state; empty if the engine does not see the app's disk.
            own: the engine's cache, to which it downloads versions that the app's cache lacks.
            connect: returns the object store; called for the first download.
            as_adapters: versions that the engine holds at once, as adapters; 0: one, an adapter merged with its base.
        """
        self._as_adapters = as_adapters
        self._shared = shared
        self._own = own
        self._connect = connect
        self._lock = threading.Lock()

    @classmethod
    def of_slot(
        cls,
        state: Path,
        slot: int,
        connect: Callable[[], ObjectStore],
        most_deltas: int = 0,
        member: int = 0,
        as_adapters: int = 0,
    ) -> "Checkpoints":
        """Return the checkpoints of a slot's engine (`member` is its index among several); its state lies below serving.state."""
        name = f"engine-{slot}" + (f"-{member}" if member else "")
        return cls(VersionCache(state), VersionCache(state / name, most_deltas), connect, as_adapters)

    @classmethod
    def of_evaluation(
        cls, state: Path, connect: Callable[[], ObjectStore], most_deltas: int = 0, as_adapters: int = 0
    ) -> "Checkpoints":
        """Return the checkpoints of the evaluation's engine, whose state lies below serving.state."""
        own = VersionCache(state / "engine-evaluation", most_deltas)
        return cls(own, own, connect, as_adapters)

    def fetch(self, version: str, source: str) -> Download:
        """Return a version, whose source is the registry's; download and verify it if needed.

        Raises:
            ValueError: the version is neither a number nor an evaluation's, the source is not in this store, a file does not
                match its checksum, or an adapter does not belong to its base.
            KeyError: the checkpoint is not complete in the store.
            Unreachable: the store does not answer.
        """
        if not (REGISTERED.fullmatch(version) or EVALUATED.fullmatch(version)):
            raise ValueError(f"version {version[:40]!r}: expected a number of the registry, or evaluation-CHECKSUM")
        with self._lock:  # a download continues after its request was cancelled
            found = self._found(version, source)
            return replace(found, path=self._whole(found.path)) if self._merges(found.path) else found

    def _found(self, version: str, source: str) -> Download:
        if (path := self._shared.path(version)) and self._shared.source(version) == source:
            return Download(path, "held", 0, source)
        return self._own.download(version, source, self._connect())

    def _merges(self, path: Path) -> bool:
        return adapters.is_adapter(path) and not self._as_adapters

    def _whole(self, adapter: Path) -> Path:
        """Return the folder of an adapter's version with whole weights, made where it is missing."""
        from infra.model.adapter_files import complete  # imports torch, which reads the environment

        whole = adapter / WHOLE
        if not whole.is_dir():
            base = adapters.base_version(adapter)
            found = self._found(base.version, base.source).path
            os.utime(found)  # the next version wants it too
            partial = adapter / f".{WHOLE}.{os.getpid()}"
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            complete(found, adapter, partial)
            sync_folder(partial)
            try:
                partial.rename(whole)
            except OSError:  # another engine was quicker
                shutil.rmtree(partial)
        return whole

    def loaded(self, version: str, path: Path) -> None:
        """Remember the version that the engine loaded, if from its own cache, and delete old ones there.

        Versions of an evaluation are not remembered: after a restart the slot loads the version that it held before.
        """
        if self._own.path(version) in (path, path.parent):
            if REGISTERED.fullmatch(version):
                self._own.remember_last(version, max(1, self._as_adapters))
            remembered = self._own.slot_version(SLOT)
            self._own.prune({version, remembered[1] if remembered else ""})

    def last(self, slot: int) -> tuple[Path, str] | None:
        """Return the directory and version that the engine of a slot held last; None if neither cache knows, or if its weights
        are not merged yet."""
        last = self._shared.slot_version(slot) or self._own.slot_version(SLOT)
        if last and self._merges(last[0]):
            whole = last[0] / WHOLE
            return (whole, last[1]) if whole.is_dir() else None
        return last

    def held(self) -> list[tuple[Path, str]]:
        """Return the directories and versions that the engine took last, the newest last, and then those of the slots."""
        own = [self._own.slot_version(number) for number in reversed(range(self._as_adapters))]
        return [*(each for each in own if each), *self._shared.every_slot()]

    def folder(self, name: str) -> Path:
        """Return a folder of the engine's own."""
        return self._own.folder(name)
