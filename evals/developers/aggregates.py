"""Aggregates of simulated developers beside those that were published about real ones."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from evals.developers.alternatives import end_of_lines
from evals.developers.pause import SettledTruth
from evals.developers.tally import Counts
from evals.developers.taste import Reason
from infra.model import time_saved
from infra.model.kept_text import kept_characters
from tasks.evaluation.metrics import edit_similarity

SIMILAR = 0.8
"""Similarity above which a rejected text was close to the one that was written."""
LENGTHS = (10, 20, 40)
"""Bounds of the lengths of suggestions, in characters."""
NO_FIGURE = "no figure read"
CUPS = "Mozannar et al. 2024, arXiv 2210.14306"


@dataclass(frozen=True)
class Aggregate:
    """A share, in the simulation and as published."""

    name: str
    simulated: float  # NaN where there is nothing to count
    published: str
    source: str


@dataclass
class Collected:
    """Counts over the suggestions of a run."""

    shown: int = 0
    accepted: int = 0
    edited: int = 0
    """Accepted, and edited after that."""
    close: int = 0
    """Rejected although similar to the text that was written."""
    failures: int = 0
    """Shown, and not the text in mind."""
    overwritten: int = 0
    """Of these, the ones that mean the same and were overwritten."""
    unread: int = 0
    standing: int = 0
    """Accepted, and in place of the text that the file's author wrote."""
    by_length: list[list[int]] = field(default_factory=lambda: [[0, 0] for _ in range(len(LENGTHS) + 1)])
    """Suggestions shown and accepted, by LENGTHS."""
    kept: list[int] = field(default_factory=lambda: [0, 0, 0])
    """Characters of accepted texts: all, those that stand after half a minute, and after five minutes."""

    def add(self, shown: str, truth: str, accepted: bool, reason: Reason | str, settled: SettledTruth | None) -> None:
        """Count a suggestion.

        Args:
            shown: its text; empty ones do not count.
            truth: the text that the developer was about to write.
            reason: of the decision (taste.py).
            settled: the text that stood there later; None: unknown.
        """
        if not shown:
            return
        instead = truth[: end_of_lines(truth, shown.rstrip().count("\n") + 1)]
        stands = accepted and reason in ("alternative", "explored")
        edited = not stands and reason != "whole" and not truth.startswith(shown)
        self.shown += 1
        self.accepted += accepted
        self.edited += accepted and edited
        self.standing += stands
        self.unread += reason == "unread"
        self.close += not accepted and edit_similarity(shown, instead) > SIMILAR
        self.failures += shown.rstrip() != instead.rstrip()
        self.overwritten += reason == "overwritten"
        length = self.by_length[sum(len(shown) > bound for bound in LENGTHS)]
        length[0] += 1
        length[1] += accepted
        if accepted and settled is not None:
            texts = shown, settled.early or "", settled.text or ""
            self.kept = [total + kept_characters(shown, text) for total, text in zip(self.kept, texts, strict=True)]


@dataclass(frozen=True)
class Times:
    """Seconds of a run, by the developers' clocks."""

    writing: float  # typing, thinking and waiting
    reading: float  # suggestions; beside writing
    edited: int  # characters that corrected accepted texts; their time is part of writing
    saved: float  # by accepting, less reading

    @classmethod
    def of(cls, total: Counts) -> "Times":
        """Return the seconds of a run's counts."""
        return cls(total.writing_ms / 1e3, total.reading_ms / 1e3, total.edit_characters, total.saved_ms / 1e3)


def aggregates(found: Collected, times: Times) -> list[Aggregate]:
    whole = times.writing + times.reading
    return [
        Aggregate(
            "accepted per suggestion",
            _share(found.accepted, found.shown),
            "0.27 (survey, active users); 0.10 (whole lines); 0.18 to 0.34",
            "Ziegler et al. 2022, arXiv 2205.06537; Svyatkovskiy et al. 2020; arXiv 2511.18849",
        ),
        *_lengths(found.by_length),
        Aggregate(
            "edited after the accept, or rejected though more than 80 % similar",
            _share(found.edited + found.close, found.shown),
            "0.61",
            "APC, arXiv 2604.01849",
        ),
        Aggregate(
            "overwritten though valid, of suggestions that are not the text in mind",
            _share(found.overwritten, found.failures),
            "0.093",
            "Izadi et al. 2024, arXiv 2402.16197",
        ),
        Aggregate("edited, of the accepted", _share(found.edited, found.accepted), NO_FIGURE, ""),
        Aggregate("kept characters of accepted texts after 30 s", _share(found.kept[1], found.kept[0]), NO_FIGURE, ""),
        Aggregate("kept characters of accepted texts after 5 min", _share(found.kept[2], found.kept[0]), NO_FIGURE, ""),
        Aggregate("accepted texts that stand in place of another", _share(found.standing, found.accepted), NO_FIGURE, ""),
        Aggregate("rejected unread", _share(found.unread, found.shown), "0.083; 0.0036 with adapted delays", "arXiv 2511.18842"),
        Aggregate("share of the time on reading suggestions", _share(times.reading, whole), "0.224 (of several lines)", CUPS),
        Aggregate("share of the time on editing accepted texts", _share(time_saved.typing(times.edited), whole), "0.119", CUPS),
        Aggregate("seconds of reading per suggestion read", _share(times.reading, found.shown - found.unread), NO_FIGURE, ""),
        Aggregate("seconds saved per suggestion", _share(times.saved, found.shown), NO_FIGURE, ""),
    ]


def _lengths(counts: Sequence[Sequence[int]]) -> list[Aggregate]:
    names = [f"up to {LENGTHS[0]}", *(f"{one + 1} to {other}" for one, other in pairwise(LENGTHS))]
    return [
        Aggregate(f"accepted, of {name} characters", _share(accepted, shown), NO_FIGURE, "")
        for name, (shown, accepted) in zip([*names, f"more than {LENGTHS[-1]}"], counts, strict=True)
    ]


def _share(part: float, whole: float) -> float:
    return part / whole if whole else float("nan")
