"""The version that a cycle trains further."""

from infra.records import Decision
from infra.registry.lineage import Lineage
from infra.storage.cycles import decision_of, experiment_id
from infra.storage.store import ObjectStore

MAX_LOST_CHILDREN = 3
"""Number of candidates in a row, trained from one promising version, that are rejected and not promising, after which training
goes on from the champion again."""


def choose_parent(
    store: ObjectStore, versions: Lineage, champion: str, previous: str | None, most_lost: int = MAX_LOST_CHILDREN
) -> str:
    """Return the newest promising candidate of the store's loop that was trained from the champion, else the champion.

    One cycle's labels improve a model by less than one test can prove, so training goes on from a candidate that surely lost no
    more than the margin while the champion serves. Candidates whose ancestry holds the previous champion are left out, since that
    version was rolled back; so are candidates whose checkpoint was removed, and those whose children keep losing.

    Args:
        most_lost: number of lost children in a row from which on a candidate is no parent; 0: no limit.
    """
    own = {version for version in versions.cycles if versions.projects.get(version, "") == store.scope.project}
    for version in sorted(own - versions.removed, key=int, reverse=True):
        line = versions.ancestry(version)
        if champion not in line[1:] or previous in line[: line.index(champion)]:
            continue
        decision = _decision_on(store, versions, version)
        if decision and decision.verdict.promising and decision.experiment.champion == champion:
            if most_lost and lost_children(store, versions, version) >= most_lost:
                continue
            return version
    return champion


def lost_children(store: ObjectStore, versions: Lineage, parent: str) -> int:
    """Return how many of the newest candidates trained from a version were rejected in a row, and not promising.

    A test that ended without a verdict on its candidate, as broken or stopped, counts neither way.
    """
    lost = 0
    children = [child for child, of in versions.parents.items() if of == parent and child in versions.cycles]
    for child in sorted(children, key=int, reverse=True):
        decision = _decision_on(store, versions, child)
        if decision is None or decision.verdict.verdict in ("broken", "undecided"):
            continue
        if decision.verdict.verdict == "promote" or decision.verdict.promising:
            break
        lost += 1
    return lost


def _decision_on(store: ObjectStore, versions: Lineage, version: str) -> Decision | None:
    return decision_of(store, experiment_id(versions.cycles[version], version))
