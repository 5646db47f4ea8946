"""The version that a cycle trains further."""

from infra.cycles import decision_of, experiment_id
from infra.lineage import Lineage
from infra.store import ObjectStore


def choose_parent(store: ObjectStore, versions: Lineage, champion: str, previous: str | None) -> str:
    """Return the newest promising candidate that was trained from the champion, else the champion.

    One cycle's labels improve a model by less than one test can prove, so training goes on from a candidate that did no worse
    while the champion serves. Candidates whose ancestry holds the previous champion are left out, since that version was rolled
    back; so are candidates whose checkpoint was removed.
    """
    for version in sorted(versions.cycles.keys() - versions.removed, key=int, reverse=True):
        line = versions.ancestry(version)
        if champion not in line[1:] or previous in line[: line.index(champion)]:
            continue
        decision = decision_of(store, experiment_id(versions.cycles[version], version))
        if decision and decision.verdict.promising and decision.experiment.champion == champion:
            return version
    return champion
