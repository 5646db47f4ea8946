"""Aggregates of a run of simulated developers beside those that were published about real ones."""

from dataclasses import dataclass

from evals.developers.alternatives import end_of_lines
from evals.developers.live_session import Decision
from evals.developers.tally import Counts
from tasks.evaluation.metrics import edit_similarity

SIMILAR = 0.8
"""Similarity above which a rejected text was close to the one that was written."""

UNPUBLISHED = "not published", "keystroke-level model"


@dataclass(frozen=True)
class Aggregate:
    """A share, in the simulation and as published."""

    name: str
    simulated: float
    """NaN where there is nothing to count."""
    published: str
    source: str


@dataclass
class Collected:
    """Counts over the decisions of a run."""

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

    def add(self, decision: Decision) -> None:
        """Count a decision; `aggregates` reads the counts."""
        if not decision.shown:
            return
        shown, truth = decision.shown, decision.truth
        instead = truth[: end_of_lines(truth, shown.rstrip().count("\n") + 1)]
        self.shown += 1
        self.accepted += decision.accepted
        edited = decision.reason not in ("whole", "alternative", "explored") and not truth.startswith(shown)
        self.edited += decision.accepted and edited
        self.close += not decision.accepted and edit_similarity(shown, instead) > SIMILAR
        self.failures += shown.rstrip() != instead.rstrip()
        self.overwritten += decision.reason == "overwritten"


def aggregates(found: Collected, total: Counts) -> list[Aggregate]:
    """Return the aggregates of a run."""
    read = max(total.shown - total.unread, 0)
    return [
        Aggregate(
            "accepted per suggestion",
            _share(found.accepted, found.shown),
            "0.27 (survey, active users); 0.10 (whole lines); 0.18 to 0.34",
            "Ziegler et al. 2022, arXiv 2205.06537; Svyatkovskiy et al. 2020; arXiv 2511.18849",
        ),
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
        Aggregate("rejected unread", _share(total.unread, total.shown), "0.083; 0.0036 with adapted delays", "arXiv 2511.18842"),
        Aggregate("seconds of reading per suggestion read", _share(total.reading_ms / 1e3, read), *UNPUBLISHED),
        Aggregate("seconds saved per suggestion", _share(total.saved_ms / 1e3, total.shown), *UNPUBLISHED),
    ]


def _share(part: float, whole: float) -> float:
    return part / whole if whole else float("nan")
