"""Counts of a run for each developer and policy version."""

from dataclasses import asdict, dataclass, field, fields

from evals.developers.seen import Seen
from infra.model import time_saved


@dataclass(frozen=True)
class Counts:
    """Sums over requests: requests = cancelled + errors + nothing + shown; shown = judged + unreported."""

    requests: int = 0  # requests sent to the completions server
    errors: int = 0  # requests refused, interrupted or timed out
    cancelled: int = 0  # requests whose answer the developer typed over before the editor could show it
    nothing: int = 0  # answered requests for which the editor had nothing to show
    shown: int = 0
    judged: int = 0  # impressions with an event: accepted + rejected
    accepted: int = 0
    rejected: int = 0
    unreported: int = 0  # impressions without an event: replaced by the next one before it was due, or the editor is silent
    silent: int = 0  # of unreported: the editor sends no events
    reused: int = 0  # of shown: the stream continued while the developer typed matching text
    late: int = 0  # of accepted: first reported as not accepted
    cache_hits: int = 0  # impressions from the editor's cache, without a request; in none of the counts above
    duplicates: int = 0  # events posted a second time
    lost_events: int = 0  # events that the feedback server did not accept
    shown_characters: int = 0
    accepted_characters: int = 0  # characters of accepted suggestions, as shown
    kept_characters: int = 0  # of these, the ones that stay; of the plain kind, right characters from the start
    unread: int = 0  # of shown: not read, since it came late or earlier ones were wrong
    off: int = 0  # pauses at which the developer had switched suggestions off; no requests
    standing: int = 0  # of accepted: the text stays in place of the text in mind
    edit_characters: int = 0  # characters that developers deleted and typed to correct what they accepted
    reading_ms: int = 0  # time spent on reading what was shown
    saved_ms: int = 0  # time saved by what was accepted, less that of reading; can be negative
    written_keys: int = 0  # keys of the text that was written, by hand or by accepting; of no version
    writing_ms: int = 0  # time that writing it took by the developers' own clocks, reading left out; of no version

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def __sub__(self, other: "Counts") -> "Counts":
        return Counts(*(getattr(self, f.name) - getattr(other, f.name) for f in fields(self)))

    @property
    def answered(self) -> int:
        """The denominator of acceptance: requests that were not typed over, did not fail and did not stay unreported."""
        return self.nothing + self.judged

    @property
    def completed(self) -> int:
        """Requests that the gate of an A/B test counts: those that got their answer, whatever became of it."""
        return self.nothing + self.shown

    @property
    def telling(self) -> int:
        """Requests that a cycle may learn from: answered ones, and those of silent editors, whose later requests show it."""
        return self.answered + self.silent

    @property
    def saved_per_hour(self) -> float:
        """Seconds saved per hour of writing (infra/model/time_saved.py); NaN where nothing was written."""
        return time_saved.per_hour(self.saved_ms / 1e3, self.written_keys)

    @property
    def acceptance(self) -> float:
        """Accepted suggestions per answered request; NaN without answered requests."""
        return self.accepted / self.answered if self.answered else float("nan")


def costs(seen: Seen) -> dict[str, int]:
    """Return the counts of time and edits of a shown suggestion."""
    return {
        "unread": int(not seen.read),
        "standing": int(seen.stands),
        "edit_characters": seen.edit,
        "reading_ms": round(1e3 * seen.reading),
        "saved_ms": round(1e3 * (seen.saved - seen.reading)),
    }


@dataclass(frozen=True)
class Example:
    """One suggestion for a report; of a paired run, also a position at which nothing was shown."""

    user: str
    version: str
    file: str
    before: str  # of last_lines
    shown: str
    truth: str
    accepted: bool
    reason: str


@dataclass
class Tally:
    """The sums of a run so far."""

    cells: dict[tuple[str, str], Counts] = field(default_factory=dict)
    """By (user, policy version); the version is empty where the response names none."""
    examples: list[Example] = field(default_factory=list)
    seconds: float = 0.0
    most_examples: int = 0

    def add(self, user: str, version: str, **counts: int) -> None:
        """Add to the counts of a user and version."""
        self.cells[user, version] = self.cells.get((user, version), Counts()) + Counts(**counts)

    def keep(self, example: Example) -> None:
        """Keep an example, up to the maximum number."""
        if len(self.examples) < self.most_examples:
            self.examples.append(example)

    def by_user(self) -> dict[str, Counts]:
        """Return the sums over versions, by user."""
        return self._sum_by(0)

    def by_version(self) -> dict[str, Counts]:
        """Return the sums over users, by version; time of writing belongs to none."""
        return {version: counts for version, counts in self._sum_by(1).items() if version}

    @property
    def total(self) -> Counts:
        """Sums of the whole run."""
        return sum(self.cells.values(), Counts())

    def _sum_by(self, part: int) -> dict[str, Counts]:
        sums: dict[str, Counts] = {}
        for key, counts in self.cells.items():
            sums[key[part]] = sums.get(key[part], Counts()) + counts
        return sums

    def as_json(self) -> dict[str, object]:
        """Return the report that `--report` writes."""
        return {
            "seconds": round(self.seconds, 3),
            "acceptance": self.total.acceptance if self.total.answered else None,
            "saved_seconds_per_hour": self.total.saved_per_hour if self.total.written_keys else None,
            "total": asdict(self.total),
            "by_version": {version: asdict(counts) for version, counts in sorted(self.by_version().items())},
            "by_user": {user: asdict(counts) for user, counts in sorted(self.by_user().items())},
            "examples": [asdict(example) for example in self.examples],
        }


def last_lines(prefix: str) -> str:
    """Return the cursor's line up to the cursor, and the line above it."""
    return "\n".join(prefix.split("\n")[-2:])
