"""The newest training cycles with their outcomes and decisions, read from the object store."""

from dataclasses import dataclass
from typing import TypeVar

from infra.records import CycleOutcome, Decision, Manifest, Record
from infra.storage import cycles
from infra.storage.store import ObjectStore

R = TypeVar("R", bound=Record)


@dataclass(frozen=True)
class Cycle:
    """One cycle, as far as it has run."""

    manifest: Manifest
    outcome: CycleOutcome | None
    """None while the cycle runs."""
    decision: Decision | None
    """The decision that ended its A/B test; None without a test or while it runs."""


class CycleHistory:
    """Reads the newest cycles. Their objects never change, so each is read once."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._newest = 0
        self._cycles: dict[int, Cycle] = {}

    def last(self, count: int) -> list[Cycle]:
        """Return at most `count` cycles, newest first. Raises the store's errors."""
        self._newest = self._newest or cycles.newest_number(self._store)
        while self._store.exists(cycles.key(cycles.name(self._newest + 1), cycles.MANIFEST)):
            self._newest += 1
        numbers = range(self._newest, max(0, self._newest - count), -1)
        self._cycles = {number: cycle for number in numbers if (cycle := self._read(number))}
        return list(self._cycles.values())

    def _read(self, number: int) -> Cycle | None:
        """Return a cycle, or None if its folder has no manifest: the cycle was never sealed."""
        cached, name = self._cycles.get(number), cycles.name(number)
        manifest = cached.manifest if cached else self._object(cycles.key(name, cycles.MANIFEST), Manifest)
        if manifest is None:
            return None
        outcome = cached.outcome if cached else None
        decision = cached.decision if cached else None
        outcome = outcome or self._object(cycles.key(name, cycles.OUTCOME), CycleOutcome)
        if decision is None and outcome and outcome.experiment:
            decision = cycles.decision_of(self._store, outcome.experiment)
        return Cycle(manifest, outcome, decision)

    def _object(self, key: str, record: type[R]) -> R | None:
        try:
            return record.model_validate(self._store.get_json(key))
        except KeyError:
            return None
