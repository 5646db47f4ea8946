"""What happened: counts for each developer and policy version, frozen when handed out."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields

UNKNOWN = ""
"""Version of a request whose response named none."""


@dataclass(frozen=True)
class Counts:
    """Sums that add up: requests = cancelled + errors + nothing + shown; shown = judged + unreported."""

    requests: int = 0
    """Requests sent to the completions server."""
    errors: int = 0
    """Refused, broken off or timed out."""
    cancelled: int = 0
    """Typed over before there was anything to show."""
    nothing: int = 0
    """Answered, and the editor had nothing to show."""
    shown: int = 0
    judged: int = 0
    """Shown and reported: accepted + rejected."""
    accepted: int = 0
    rejected: int = 0
    unreported: int = 0
    """Shown, and replaced by the next before its event was sent."""
    reused: int = 0
    """Of shown: the stream went on while matching text was typed."""
    late: int = 0
    """Of accepted: first reported as not."""
    cache_hits: int = 0
    """Shown again without a request; in none of the counts above."""
    duplicates: int = 0
    """Events posted a second time."""
    lost_events: int = 0
    """Events that the feedback server did not take."""
    shown_characters: int = 0
    accepted_characters: int = 0
    """Characters of accepted suggestions as shown."""
    kept_characters: int = 0
    """Of these, what was right."""

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    @property
    def answered(self) -> int:
        """Requests that were neither typed over nor failed, nor lost their event: what acceptance is a share of."""
        return self.nothing + self.judged

    @property
    def acceptance(self) -> float:
        """Accepted suggestions per answered request; not a number where there is none."""
        return self.accepted / self.answered if self.answered else float("nan")


@dataclass(frozen=True)
class Example:
    """One suggestion, for a report."""

    user: str
    version: str
    file: str
    before: str
    """The cursor's line up to the cursor, and the line above it."""
    shown: str
    truth: str
    accepted: bool
    reason: str


@dataclass(frozen=True)
class Tally:
    """A run's sums so far."""

    cells: Mapping[tuple[str, str], Counts]
    """By (user, policy version)."""
    examples: tuple[Example, ...]
    seconds: float

    def by_user(self) -> dict[str, Counts]:
        """Sums over versions."""
        return self._sum(0)

    def by_version(self) -> dict[str, Counts]:
        """Sums over users."""
        return self._sum(1)

    @property
    def total(self) -> Counts:
        """The whole run."""
        return sum(self.cells.values(), Counts())

    def _sum(self, part: int) -> dict[str, Counts]:
        sums: dict[str, Counts] = {}
        for key, counts in self.cells.items():
            sums[key[part]] = sums.get(key[part], Counts()) + counts
        return sums

    def as_json(self) -> dict[str, object]:
        """For --report."""
        return {
            "seconds": round(self.seconds, 3),
            "acceptance": self.total.acceptance if self.total.answered else None,
            "total": asdict(self.total),
            "by_version": {version: asdict(counts) for version, counts in sorted(self.by_version().items())},
            "by_user": {user: asdict(counts) for user, counts in sorted(self.by_user().items())},
            "examples": [asdict(example) for example in self.examples],
        }


class Ledger:
    """Counts while a run goes on."""

    def __init__(self, examples: int) -> None:
        self._cells: dict[tuple[str, str], Counter[str]] = {}
        self._examples: list[Example] = []
        self._room = examples

    def add(self, user: str, version: str, **counts: int) -> None:
        """Add to a cell."""
        self._cells.setdefault((user, version), Counter()).update(counts)

    def show(self, example: Example) -> None:
        """Keep an example while there is room."""
        if len(self._examples) < self._room:
            self._examples.append(example)

    def tally(self, seconds: float) -> Tally:
        """What there is."""
        return Tally({key: Counts(**counter) for key, counter in self._cells.items()}, tuple(self._examples), seconds)
