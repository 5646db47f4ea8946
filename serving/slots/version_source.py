"""The source of versions: the registry, the object store with the checkpoints, and the cache on this machine's disk."""

import logging
from collections.abc import Collection
from dataclasses import dataclass

from infra.model.showing import FILE, Estimate
from infra.registry.client import Aliases, Registry, RegistryError
from infra.storage.store import ObjectStore
from serving.engine.version_cache import Download, VersionCache

log = logging.getLogger(__name__)


class SourceMismatch(RuntimeError):
    """A version that a slot holds comes from another checkpoint than the registry's version of the same number."""


@dataclass(frozen=True)
class VersionSource:
    """Reads aliases and fetches checkpoints; works from the cache while the registry is unavailable."""

    registry: Registry
    store: ObjectStore
    cache: VersionCache

    def aliases(self) -> Aliases:
        """Return the registry's aliases. Raises RegistryError."""
        return self.registry.aliases()

    def fetch(self, version: str) -> Download:
        """Return a version on this disk, downloading it if needed. Raises what VersionCache.download raises, or RegistryError."""
        try:
            source = self.registry.version(version).source
        except RegistryError:
            if path := self.cache.path(version):
                return Download(path, "held", 0, self.cache.source(version) or "")
            raise
        return self.cache.download(version, source, self.store)

    def check(self, version: str, source: str) -> bool:
        """Compare the source of a version that a slot holds with the registry's: it may be a version of another registry. Return
        whether they are the same; False also if one of them is not known, such as an empty one.

        Raises:
            SourceMismatch: the registry names another source.
        """
        if not source:
            return False
        try:
            registered = self.registry.version(version).source
        except RegistryError:
            return False
        if source != registered:
            raise SourceMismatch(f"version {version} comes from {source}, the registry's comes from {registered}")
        return True

    def estimate(self, version: str) -> Estimate | None:
        """Return a version's estimate of kept text; None if it is missing or unreadable, which is logged."""
        folder = self.cache.path(version)
        file = folder / FILE if folder else None
        if file is None or not file.exists():
            return None
        try:
            return Estimate.model_validate_json(file.read_bytes())
        except ValueError as error:
            log.error("version %s: %s is unreadable, so all of its completions are shown: %s", version, file, error)
            return None

    def remember_slot(self, slot: int, version: str, in_use: Collection[str]) -> None:
        """Write the version that a slot holds, and delete old versions that are not in use."""
        self.cache.remember_slot(slot, version)
        self.cache.prune(in_use)
