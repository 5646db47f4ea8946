"""What people do beside the plain kind of developer; each habit has its rate, with its source, and can be switched off.

The plain kind has exactly one text in mind, accepts by how much of its beginning is right, and writes that text whatever was
shown. People also accept a near miss and edit it, take a text that means the same, take what is plausible where they have no text
in mind, and stop reading where suggestions were wrong. A rate that no publication gives is marked as assumed.
"""

import hashlib
import json
import re
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from evals.developers.alternatives import Alternative, alternative, bound_names, end_of_lines, parsed
from evals.developers.plausible import NAME, plausible
from evals.developers.taste import Opinion, Taste, opinion_on
from infra.model import time_saved
from infra.model.kept_text import common_start, kept_characters
from tasks.evaluation.metrics import distance

CUPS = "Mozannar et al. 2024, 'Reading Between the Lines', arXiv 2210.14306"
DELAY = "arXiv 2511.18842"
ASSUMED = "assumed, since no rate is published"


DEF = re.compile(r"\s*(async\s+)?def\b")


def _rate(value: Any, source: str) -> Any:
    return field(default=value, metadata={"source": source})


@dataclass(frozen=True)
class People:
    """The rates of the habits. The defaults are the kind `people`; `replace(People(), near_misses=False)` leaves one out."""

    near_misses: bool = _rate(True, "Ziegler et al. 2022, arXiv 2205.06537: a suggestion need not be right to be a useful start")
    """A text is accepted if editing it saves enough, by the developer's strictness; the edit costs its characters."""
    alternatives: float = _rate(
        0.5,
        f"{ASSUMED}: half; Izadi et al. 2024, arXiv 2402.16197: 9.3 % of failures are valid texts that were overwritten",
    )
    """Share of texts that mean the same, without being equal, that the developer takes; the others are overwritten."""
    no_text_in_mind: float = _rate(0.109, f"{CUPS}: 10.9 % of the time is thinking about new code to write; as a share of pauses")
    """Share of pauses without a text in mind: a plausible text is taken, and stays (Barke et al. 2023: exploration)."""
    unread: float = _rate(0.02, f"{DELAY}: 8.3 % are rejected unread; this rate gives 4.5 % with the base model's suggestions")
    """By how much each wrong suggestion in a row raises the chance that the next one is not read."""
    most_unread: float = _rate(0.5, f"{ASSUMED}: a developer who reads nothing never meets a better model")
    """Highest chance that a suggestion is not read."""
    recovers: float = _rate(0.5, f"{ASSUMED}: half, so that a few pauses without a suggestion are enough")
    """Share of the wrong suggestions in a row that a pause without a suggestion makes forgotten."""
    switches_off: int = _rate(10, f"{ASSUMED}: at an acceptance of 27 % ten wrong ones in a row have a chance of 4 %")
    """Wrong suggestions that were read, in a row, after which the developer switches suggestions off for a while; 0: never."""
    off_pauses: int = _rate(20, f"{ASSUMED}: a few minutes of writing")
    """Pauses for which suggestions stay off."""
    waits_seconds: float = _rate(1.5, f"{ASSUMED}: about as long as the median pause before a line (1.3 s)")
    """Median of the time that a developer looks for a suggestion (lognormal, sigma 0.5); a later one is not read."""

    def sources(self) -> dict[str, tuple[Any, str]]:
        """Return the value and the source of each rate."""
        return {one.name: (getattr(self, one.name), one.metadata["source"]) for one in fields(self)}


def digest(*parts: Any) -> str:
    """Return a name of the parameters of simulated developers, which are dataclasses: 12 hexadecimal digits."""
    body = json.dumps([asdict(part) for part in parts], sort_keys=True)
    return hashlib.sha256(body.encode()).hexdigest()[:12]


@dataclass(frozen=True)
class Sight:
    """What a developer sees at a pause, and what they are about to do."""

    prefix: str
    suffix: str
    rest: str  # the finished file's text between prefix and suffix
    shown: str
    truth: str  # the text in mind; of a developer without one, the text that the file's author wrote
    in_mind: bool  # whether the developer has it in mind
    takes_alternatives: bool  # whether they take a text that means the same


def opinion_of(people: People, taste: Taste, sight: Sight) -> Opinion:
    """Return the opinion of a person who reads a suggestion."""
    shown, truth = sight.shown, sight.truth
    plain = opinion_on(taste, shown, truth)
    if not sight.in_mind:
        return _explored(taste, sight) if plain.reason != "whole" else plain
    if plain.accepted:
        return plain
    found = alternative(sight.prefix.rpartition("\n")[2], shown, truth)
    if found is not None and _fits(found, sight):
        if not sight.takes_alternatives:
            return replace(plain, reason="overwritten")
        return Opinion(True, "alternative", plain.right, found.covered, 0, True, found.renamed)
    return _near(taste, plain, shown, truth) if people.near_misses else plain


def _near(taste: Taste, plain: Opinion, shown: str, truth: str) -> Opinion:
    written = shown.rstrip()
    covered = end_of_lines(truth, written.count("\n") + 1)
    instead = truth[:covered].rstrip()
    edit = distance(written, instead)
    similar = 1 - edit / max(len(written), len(instead), 1)
    if similar < taste.strictness or len(instead) - edit < taste.least or len(shown) > taste.longest:
        return plain
    return Opinion(True, "near", plain.right, covered, edit)


def _explored(taste: Taste, sight: Sight) -> Opinion:
    """Return the opinion of a developer without a text in mind: a plausible text is taken, and stands."""
    shown, covered = sight.shown, end_of_lines(sight.truth, sight.shown.rstrip().count("\n") + 1)
    if len(shown.strip()) < taste.least or len(shown) > taste.longest:
        return Opinion(False, "short" if len(shown.strip()) < taste.least else "long", 0, 0, len(shown))
    if not plausible(sight.prefix, sight.suffix, shown):
        return Opinion(False, "implausible", 0, 0, len(shown))
    return Opinion(True, "explored", 0, covered, 0, True, _rename(sight, covered))


def _fits(found: Alternative, sight: Sight) -> bool:
    """Whether what follows can be written to fit: the name in place of another is new, and nothing that stands uses the other."""
    if found.renamed is None:
        return True
    (old, new), (above, below) = found.renamed, _scope(sight.prefix, sight.suffix)
    return new not in NAME.findall(above + sight.rest[found.covered :] + below) and old not in NAME.findall(below)


def _scope(prefix: str, suffix: str) -> tuple[str, str]:
    """Return the lines above and below the cursor that see its local names: those from the function's head to its end."""
    lines = prefix.split("\n")
    indent = _indent(lines[-1])
    head = next((n for n in range(len(lines) - 1, -1, -1) if _indent(lines[n]) < indent and DEF.match(lines[n])), 0)
    behind = suffix.split("\n")
    end = next((n for n, line in enumerate(behind) if n and line.strip() and _indent(line) < indent), len(behind))
    return "\n".join(lines[head:]) + "\n", "\n" + "\n".join(behind[:end])


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _rename(sight: Sight, covered: int) -> tuple[str, str] | None:
    """Return the name that the author bound and the one that the taken text binds, where what follows can use the latter."""
    before = sight.prefix.rpartition("\n")[2]
    taken, instead = parsed(before + sight.shown), parsed(before + sight.truth[:covered])
    if taken is None or instead is None:
        return None
    ours, theirs = bound_names(taken), bound_names(instead)
    if len(ours) == len(theirs) == 1 and ours != theirs:
        found = Alternative(covered, (theirs[0], ours[0]))
        return found.renamed if _fits(found, sight) else None
    return None


class Attention:
    """One developer's attention to suggestions over a run: wrong ones lower it, silence and right ones restore it."""

    def __init__(self, people: People | None) -> None:
        self._people = people
        self._wrong = 0.0
        self._off = 0

    @property
    def off(self) -> bool:
        """Whether the developer has switched suggestions off."""
        return self._off > 0

    def reads(self, chance: float, waits_seconds: float, seconds: float) -> bool:
        """Return whether the developer reads a suggestion that came after so many seconds; `chance` is drawn from [0, 1)."""
        if self._people is None:
            return True
        return seconds <= waits_seconds and chance >= min(self._people.most_unread, self._people.unread * self._wrong)

    def read(self, accepted: bool) -> None:
        """Note a suggestion that was read."""
        self._wrong = 0.0 if accepted else self._wrong + 1
        if self._people and self._people.switches_off and self._wrong >= self._people.switches_off:
            self._wrong, self._off = 0.0, self._people.off_pauses

    def silence(self) -> None:
        """Note a pause without a suggestion."""
        self._off = max(0, self._off - 1)
        if self._people:
            self._wrong *= 1 - self._people.recovers


def reading_seconds(shown: str, right: int) -> float:
    """Return how long a developer reads a suggestion with so many right characters from its start."""
    return time_saved.reading(time_saved.characters_read(len(shown), right))


def seconds_saved(opinion: Opinion, truth: str) -> float:
    """Return the time that accepting saves (infra/model/time_saved.py).

    Reading is not counted here: it is spent whether or not the developer accepts.

    Args:
        truth: the text that the developer would have written.
    """
    return time_saved.accepting(time_saved.keystrokes(truth[: opinion.covered]), edit_of(opinion))


def edit_of(opinion: Opinion) -> int:
    """Return the characters that a developer deletes and types to correct a text that they accepted."""
    return 0 if opinion.stands else opinion.edit


def kept_of(opinion: Opinion, shown: str, truth: str, rest: str) -> int:
    """Return the characters of an accepted text that stay after the edit.

    Args:
        rest: the finished file's text, which begins with the truth; a text that goes on after the truth may be right, too.
    """
    if opinion.stands:
        return len(shown)
    if opinion.reason == "near":
        return kept_characters(shown, truth[: opinion.covered])
    return common_start(shown, rest)
