"""Which version came from which: the tree of parents that the registry's tags tell."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from infra.registry import REMOVED_TAG, ModelVersion

PARENT_TAG = "parent"
"""Tag of a model version: the version it was trained from."""
CYCLE_TAG = "cycle"
"""Tag of a model version: the cycle that made it."""
DATASET_TAG = "manifest_sha256"
"""Tag of a model version and of its run: the id of the data set that it was trained on."""


@dataclass(frozen=True)
class Lineage:
    """Parents and cycles by version."""

    parents: Mapping[str, str]
    """Version to parent; a base has the empty one."""
    cycles: Mapping[str, str]
    """Version to the cycle that made it; a base has none."""
    removed: frozenset[str] = frozenset()
    """Versions whose checkpoint is gone (tasks/upkeep/checkpoint_gc.py)."""

    def ancestry(self, version: str) -> tuple[str, ...]:
        """A version, its parent, and so on up to the base."""
        found: list[str] = []
        while version in self.parents and version not in found:
            found.append(version)
            version = self.parents[version]
        return tuple(found)

    def distance(self, one: str, other: str) -> int | None:
        """Updates between two versions, by way of their nearest common ancestor; none where they have none."""
        first, second = self.ancestry(one), self.ancestry(other)
        for steps, version in enumerate(first):
            if version in second:
                return steps + second.index(version)
        return None

    def distances(self, versions: Iterable[str], other: str) -> dict[str, int | None]:
        """Updates between each of these versions and another one."""
        return {version: self.distance(version, other) for version in versions}


def lineage(versions: Iterable[ModelVersion]) -> Lineage:
    """The tree of all versions of the registered model."""
    known = list(versions)
    return Lineage(
        parents={v.version: v.tags.get(PARENT_TAG, "") for v in known},
        cycles={v.version: v.tags[CYCLE_TAG] for v in known if v.tags.get(CYCLE_TAG)},
        removed=frozenset(v.version for v in known if v.tags.get(REMOVED_TAG)),
    )
