"""The last training cycles and what was decided of them, as the flows left it in the object store."""

from dataclasses import dataclass
from typing import TypeVar

from infra.records import CycleOutcome, Decision, Manifest, Record
from infra.store import ObjectStore

R = TypeVar("R", bound=Record)
DIGITS = 6
"""Of a cycle's number in its name."""


@dataclass(frozen=True)
class Cycle:
    """One cycle, as far as it has come."""

    manifest: Manifest
    outcome: CycleOutcome | None
    """None: under way."""
    decision: Decision | None
    """What ended its test; none while there is none."""


class Cycles:
    """The newest cycles. What was written is never written anew, so each object is read once."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._newest = 0
        self._found: dict[int, Cycle] = {}

    def last(self, most: int) -> list[Cycle]:
        """So many, newest first. Raises what the store raises."""
        self._newest = self._newest or self._search()
        while self._store.exists(f"{_folder(self._newest + 1)}/manifest.json"):
            self._newest += 1
        wanted = range(self._newest, max(0, self._newest - most), -1)
        self._found = {number: found for number in wanted if (found := self._read(number))}
        return list(self._found.values())

    def _search(self) -> int:
        """The newest number, digit by digit: there may be more cycles than can be listed while somebody waits."""
        number = ""
        for _ in range(DIGITS):
            digits = (d for d in "9876543210" if any(True for _ in self._store.keys(f"cycles/cycle-{number}{d}")))
            if (digit := next(digits, None)) is None:
                return 0
            number += digit
        return int(number)

    def _read(self, number: int) -> Cycle | None:
        """None where there is no manifest: the folder was begun and the cycle was not."""
        known, folder = self._found.get(number), _folder(number)
        manifest = known.manifest if known else self._object(f"{folder}/manifest.json", Manifest)
        if manifest is None:
            return None
        outcome = known.outcome if known else None
        decision = known.decision if known else None
        outcome = outcome or self._object(f"{folder}/outcome.json", CycleOutcome)
        if decision is None and outcome and outcome.experiment:
            decision = self._object(f"decisions/{outcome.experiment}.json", Decision)
        return Cycle(manifest, outcome, decision)

    def _object(self, key: str, record: type[R]) -> R | None:
        try:
            return record.model_validate(self._store.get_json(key))
        except KeyError:
            return None


def _folder(number: int) -> str:
    return f"cycles/cycle-{number:0{DIGITS}d}"
