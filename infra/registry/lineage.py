"""The tree of versions and their parents, from the registry's tags."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from infra.registry.client import REMOVED_TAG, ModelVersion

PARENT_TAG = "parent"
"""Tag of a model version: the version it was trained from."""
CYCLE_TAG = "cycle"
"""Tag of a model version: the cycle that made it."""
PROJECT_TAG = "project"
"""Tag of a model version: the project whose loop made it; versions of the common loop have none."""
BASE_TAG = "base"
"""Tag of a model version that is stored as an adapter: the version whose weights it belongs to."""
DATASET_TAG = "manifest_sha256"
"""Tag of a model version and of its run: the id of the data set that it was trained on."""

EVALUATION_TAG = "evaluation"
"""Tag of a model version and of its run: the verdict of the held-out gate, "passed", "failed" or "undecided"."""


@dataclass(frozen=True)
class Lineage:
    """Parents and cycles by version."""

    parents: Mapping[str, str]
    """Parent by version; "" for a base."""
    cycles: Mapping[str, str]
    """Cycle by the version that it made; a base has none."""
    removed: frozenset[str] = frozenset()
    """Versions whose checkpoint was removed (tasks/upkeep/checkpoint_gc.py)."""
    projects: Mapping[str, str] = field(default_factory=dict)
    """Project by the version that its loop made; versions of the common loop have none."""

    def ancestry(self, version: str) -> tuple[str, ...]:
        """Return a version, its parent, and so on up to the base."""
        line: list[str] = []
        while version in self.parents and version not in line:
            line.append(version)
            version = self.parents[version]
        return tuple(line)

    def distance(self, one: str, other: str) -> int | None:
        """Return the updates between two versions through their nearest common ancestor; None without one."""
        first, second = self.ancestry(one), self.ancestry(other)
        for steps, version in enumerate(first):
            if version in second:
                return steps + second.index(version)
        return None

    def distances(self, versions: Iterable[str], other: str) -> dict[str, int | None]:
        """Return the updates between each of these versions and another one."""
        return {version: self.distance(version, other) for version in versions}


def lineage(versions: Iterable[ModelVersion]) -> Lineage:
    """Return the tree of all versions of the registered model."""
    known = list(versions)
    return Lineage(
        parents={v.version: v.tags.get(PARENT_TAG, "") for v in known},
        cycles={v.version: v.tags[CYCLE_TAG] for v in known if v.tags.get(CYCLE_TAG)},
        projects={v.version: v.tags[PROJECT_TAG] for v in known if v.tags.get(PROJECT_TAG)},
        removed=frozenset(v.version for v in known if v.tags.get(REMOVED_TAG)),
    )
