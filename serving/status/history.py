"""The newest cycles, looks, moves and requests for moves of a loop, from the object store. What never changes is read once."""

from collections.abc import Iterator
from dataclasses import dataclass

from infra.records import CycleOutcome, Decision, ExperimentRecord, Look, Manifest, Move, MoveAnswer, MoveRequest
from infra.storage import cycles, looks, move_requests, moves
from infra.storage.store import ObjectStore

MOST_POINTS = 60
"""Looks that are read, about: enough for a chart."""


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
        while self._store.exists(cycles.key(self._name(self._newest + 1), cycles.MANIFEST)):
            self._newest += 1
        numbers = range(self._newest, max(0, self._newest - count), -1)
        self._cycles = {number: cycle for number in numbers if (cycle := self._read(number))}
        return list(self._cycles.values())

    def _read(self, number: int) -> Cycle | None:
        """Return a cycle, or None if its folder has no manifest: the cycle was never sealed."""
        cached, name = self._cycles.get(number), self._name(number)
        manifest = cached.manifest if cached else self._store.find(cycles.key(name, cycles.MANIFEST), Manifest)
        if manifest is None:
            return None
        outcome = cached.outcome if cached else None
        decision = cached.decision if cached else None
        outcome = outcome or self._store.find(cycles.key(name, cycles.OUTCOME), CycleOutcome)
        if decision is None and outcome and outcome.experiment:
            decision = cycles.decision_of(self._store, outcome.experiment)
        return Cycle(manifest, outcome, decision)

    def _name(self, number: int) -> str:
        return cycles.name(number, self._store.scope.project)


@dataclass(frozen=True)
class Watched:
    """An experiment with some of its looks."""

    experiment: ExperimentRecord
    """Its record with the plan; of a running one, with its stages."""
    looks: tuple[Look, ...]
    """Some of its looks, the newest last; there is at least one."""

    @property
    def last(self) -> Look:
        """The newest look."""
        return self.looks[-1]


class LookHistory:
    """Reads an experiment's looks. They never change, so each is read once."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._looks: dict[tuple[str, int], Look] = {}
        self._records: dict[str, ExperimentRecord] = {}

    def of(self, experiment: str, running: ExperimentRecord | None) -> Watched | None:
        """Return an experiment with its looks; None before the first. Raises the store's errors.

        `running` is its record in the registry if it runs, which has its stages.
        """
        newest = looks.newest_number(self._store, experiment)
        if not newest:
            return None
        wanted = [(experiment, number) for number in looks.thinned(newest, MOST_POINTS)]
        self._looks = {key: self._looks.get(key) or looks.read(self._store, *key) for key in wanted}
        record = running if running and running.id == experiment else self._record(experiment)
        return Watched(record, tuple(self._looks.values()))

    def _record(self, experiment: str) -> ExperimentRecord:
        if experiment not in self._records:
            record = ExperimentRecord.model_validate(self._store.get_json(f"experiments/{experiment}.json"))
            self._records = {experiment: record}
        return self._records[experiment]


class MoveHistory:
    """Reads the newest moves. They never change, so each is read once."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._newest = 0
        self._moves: dict[int, Move] = {}
        self._retired: dict[int, tuple[str, ...]] = {}
        """By number of a move, the champions that it retired."""

    def last(self, count: int) -> list[Move]:
        """Return at most `count` moves, newest first. Raises the store's errors."""
        self._newest = self._newest or moves.newest_number(self._store)
        while self._store.exists(moves.key(self._newest + 1, self._store.scope)):
            self._newest += 1
        numbers = range(self._newest, max(0, self._newest - count), -1)
        self._moves = {number: self._moves.get(number) or moves.read(self._store, number) for number in numbers}
        return list(self._moves.values())

    def retired(self) -> Iterator[str]:
        """Yield the champions that were retired until the last read, the last one first. Raises the store's errors."""
        for number in range(self._newest, 0, -1):
            if number not in self._retired:
                move = self._moves.get(number) or moves.read(self._store, number)
                self._retired[number] = tuple(change.version for change in move.changes if change.after == "retired")
            yield from self._retired[number]


@dataclass(frozen=True)
class Asked:
    """A request for a move and its answer."""

    request: MoveRequest
    answer: MoveAnswer | None
    """None before the controller has ended it."""

    def state(self, now: float) -> str:
        """Return waiting, expired, done or refused."""
        if self.answer:
            return self.answer.state
        return "waiting" if now <= self.request.expires else "expired"

    def message(self, now: float) -> str:
        """Return the answer, or what it waits for."""
        if self.answer:
            return self.answer.message
        if now <= self.request.expires:
            return "the controller carries it out at its next run"
        return "the controller did not come; check in Prefect that the flow `experiment` runs, and ask again"


class RequestHistory:
    """Reads and writes requests. Neither they nor their answers change, so each is read once."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._asked: dict[str, Asked] = {}

    def last(self, count: int) -> list[Asked]:
        """Return at most `count` requests, newest first. Raises the store's errors."""
        newest = move_requests.ids(self._store)[: -count - 1 : -1]
        self._asked = {identifier: self._read(identifier) for identifier in newest}
        return list(self._asked.values())

    def of(self, identifier: str) -> Asked:
        """Return a request. Raises KeyError if there is none."""
        return self._read(identifier)

    def ask(self, request: MoveRequest) -> None:
        move_requests.ask(self._store, request)

    def _read(self, identifier: str) -> Asked:
        known = self._asked.get(identifier)
        if known and known.answer:
            return known
        request = known.request if known else move_requests.read(self._store, identifier)
        return Asked(request, move_requests.answer_of(self._store, identifier))
