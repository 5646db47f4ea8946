"""Measures of the value of completions to the people who write: sums over requests, and the ratios that follow from them.

Every page and metric that shows one of these ratios takes it from here. The sums are computed from labelled requests by
tasks/labels/measures.py, which says what counts.
"""

from typing import Literal

from pydantic import Field

from infra.records.base import Record
from infra.records.experiments import Rate

MeasuredBy = Literal["all", "language", "activity", "sampling"]
OTHER_LANGUAGES = "(other)"
"""Name of the group of the languages without one of their own; no language has it (infra/model/language.py)."""
QUICK_MS = 750.0
"""Milliseconds below which nobody can have read what they reject (arXiv 2511.18842)."""
RATIOS: dict[str, str] = {
    "accepted_per_request": "reported accepts per request",
    "accepted_per_shown": "reported accepts per shown",
    "shown_per_request": "reported shown per request",
    "kept_characters_per_request": "reported kept characters per request",
    "completed_share": "share of completed code",
    "explicit_cancels_per_shown": "explicit cancels per shown",
    "quick_rejections_per_shown": "rejections under 750 ms per shown",
}
"""The ratios of Measures, with their names for people. Each counts a shown completion without an answer as not accepted, so it is
not the acceptance of an A/B test (tasks/statistics/answered.py) and has another name."""


class Measures(Record):
    """Sums over the requests of a group. Measures of groups without a common request can be added."""

    requests: int = Field(0, ge=0)
    """Requests of users whose editor reports what became of completions."""
    shown: int = Field(0, ge=0)
    """Of these, completions that the developer saw."""
    accepted: int = Field(0, ge=0)
    """Of shown: at least half of the characters were accepted."""
    kept_characters: int = Field(0, ge=0)
    """Accepted characters that still stand in the settled text, or all accepted ones where that is unknown."""
    completed_characters: int = Field(0, ge=0)
    """Of kept_characters: those of requests whose typed characters are known."""
    typed_characters: int = Field(0, ge=0)
    """Characters between a request's cursor and that of the user's next request at the place, without the kept ones."""
    explicit_cancels: int = Field(0, ge=0)
    """Of shown: the developer dismissed it (Feedback.reason "rejected")."""
    quick_rejections: int = Field(0, ge=0)
    """Of shown: rejected within 750 ms of being shown, so hardly read."""

    def __add__(self, other: "Measures") -> "Measures":
        return Measures(**{name: getattr(self, name) + getattr(other, name) for name in Measures.model_fields})

    def ratios(self) -> dict[str, float | None]:
        """Return every ratio of RATIOS by its name; None without requests, without anything shown, or where it is unknown what
        was typed."""
        written = self.completed_characters + self.typed_characters
        parts = {
            "accepted_per_request": (self.accepted, self.requests),
            "accepted_per_shown": (self.accepted, self.shown),
            "shown_per_request": (self.shown, self.requests),
            "kept_characters_per_request": (self.kept_characters, self.requests),
            "completed_share": (self.completed_characters, written),
            "explicit_cancels_per_shown": (self.explicit_cancels, self.shown),
            "quick_rejections_per_shown": (self.quick_rejections, self.shown),
        }
        return {name: part / whole if whole else None for name, (part, whole) in parts.items()}


class MeasuredGroup(Record):
    """The measures of a group of requests."""

    by: MeasuredBy
    """How the requests are divided; each request is in one group of each kind, exploring ones in that of "sampling" alone."""
    name: str
    """"" for all requests; the language, "" if unknown, OTHER_LANGUAGES for those with few requests; the decile of users by their
    number of requests, "1" the least active to "10"; "exploring"."""
    measures: Measures
    """The group's sums."""


class ServedVersion(Record):
    """How often the completions of one version were accepted in a window."""

    project: str
    """The project; empty: all of them."""
    version: str
    """Policy version that served."""
    acceptance: Rate
    """Acceptance per request of those that Measures.requests counts, exploring ones aside; its interval is clustered by user."""
    answered: bool = False
    """Whether it is the acceptance of an A/B test (tasks/statistics/answered.py), in which a shown completion without an answer
    is missing data; False in manifests of earlier versions, where it is not accepted."""
