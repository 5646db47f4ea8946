"""The order of long texts: the credential that used the least CPU recently comes first, and its shortest text. Pure."""

from dataclasses import dataclass, field
from typing import Generic, TypeVar

Job = TypeVar("Job")
HALF_LIFE = 10.0
"""Seconds after which half of a credential's time is forgotten."""
COSTLY = 0.02
"""CPU seconds of one text above which its credential is costly: the longest that an ordinary text may wait for another's. Code of
the same length takes about 10 ms."""
COSTLY_FOR = 60.0
"""Seconds for which a credential stays costly."""
NEGLIGIBLE = 1e-3
"""CPU seconds below which a credential's time is forgotten."""


@dataclass(frozen=True)
class Waiting(Generic[Job]):
    """A text that waits."""

    who: str
    characters: int
    number: int
    """Sequence number of the text."""
    job: Job


@dataclass
class _Account:
    seconds: float = 0.0
    at: float = 0.0
    costly_until: float = 0.0


@dataclass
class Turns(Generic[Job]):
    """The texts that wait, and the CPU time of each credential."""

    most: int
    """Texts of a credential that may wait."""
    _waiting: list[Waiting[Job]] = field(default_factory=list)
    _accounts: dict[str, _Account] = field(default_factory=dict)
    _number: int = 0

    def add(self, who: str, characters: int, job: Job) -> bool:
        """Queue a text; return False without queueing it if its credential's maximum already waits."""
        if sum(waiting.who == who for waiting in self._waiting) >= self.most:
            return False
        self._number += 1
        self._waiting.append(Waiting(who, characters, self._number, job))
        return True

    def take(self, now: float, *, costly: bool) -> Waiting[Job] | None:
        """Return the next text, of costly credentials or of the others; None if no text waits."""
        of_kind = [waiting for waiting in self._waiting if self.is_costly(waiting.who, now) == costly]
        if not of_kind:
            return None
        chosen = min(of_kind, key=lambda waiting: (self._seconds(waiting.who, now), waiting.characters, waiting.number))
        self._waiting.remove(chosen)
        return chosen

    def used(self, who: str, seconds: float, now: float) -> None:
        """Add the CPU time of a text to its credential."""
        until = now + COSTLY_FOR if seconds > COSTLY else self._accounts.get(who, _Account()).costly_until
        self._accounts[who] = _Account(self._seconds(who, now) + seconds, now, until)
        for other in [name for name in self._accounts if self._seconds(name, now) < NEGLIGIBLE and not self.is_costly(name, now)]:
            del self._accounts[other]

    def is_costly(self, who: str, now: float) -> bool:
        """Return whether one of a credential's recent texts was costly."""
        account = self._accounts.get(who)
        return account is not None and account.costly_until > now

    def _seconds(self, who: str, now: float) -> float:
        account = self._accounts.get(who)
        return 0.0 if account is None else account.seconds * 0.5 ** ((now - account.at) / HALF_LIFE)
