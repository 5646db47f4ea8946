"""What the object store must hold in the end: every acknowledged event, and one arm a user."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from infra.records import Completion, ExperimentRecord, Feedback
from infra.storage.store import ObjectStore


@dataclass(frozen=True)
class Stored:
    """The rows of both kinds of event."""

    completions: Sequence[Completion]
    feedback: Sequence[Feedback]


def stored(store: ObjectStore) -> Stored:
    """Read all events."""
    completions = [row for key in store.keys("events/completions/") for row in store.get_rows(key, Completion)]
    return Stored(completions, [row for key in store.keys("events/feedback/") for row in store.get_rows(key, Feedback)])


def lost(acknowledged: Mapping[str, int], feedback: Iterable[Feedback]) -> int:
    """Return how many acknowledged events are not stored."""
    rows = Counter(row.client_id for row in feedback)
    return sum(max(0, count - rows[client_id]) for client_id, count in acknowledged.items())


@dataclass(frozen=True)
class ArmCounts:
    """How the requests of an A/B test were assigned."""

    requests: int
    users: int
    changed: int
    """Users with requests in both arms."""
    without: int
    """Requests that the test did not assign."""
    elsewhere: int
    """Requests that the other arm's version answered."""
    elsewhere_outside: int
    """Of these, requests outside the times in which an engine was away."""


def arms(completions: Iterable[Completion], test: ExperimentRecord, away: Sequence[tuple[float, float]]) -> ArmCounts:
    """Count the requests since a test began.

    Args:
        completions: all that are stored.
        test: by user.
        away: begin and end of the times in which an engine was away, in Unix seconds.
    """
    rows = [row for row in completions if row.time >= test.started]
    assigned = [row for row in rows if row.assigned == test.id]
    by_user: dict[str, set[str]] = defaultdict(set)
    for row in assigned:
        by_user[row.user].add(row.assigned_arm)
    versions = {"champion": test.champion, "challenger": test.challenger}
    elsewhere = [row for row in assigned if row.policy_version != versions[row.assigned_arm]]
    outside = [row for row in elsewhere if not any(begin <= row.time < end for begin, end in away)]
    changed = sum(len(arms) > 1 for arms in by_user.values())
    return ArmCounts(len(rows), len(by_user), changed, len(rows) - len(assigned), len(elsewhere), len(outside))
