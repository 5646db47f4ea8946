"""Labels joined to completions: a pure function over events, in any order, delivered any number of times.

By the server's completion id where the client knows it, else by content (see README.md here, "The join"):

    at the place   same project and user, within join_seconds, event prefix and suffix as served, shown a prefix of the text
    stream reuse   event prefix = served prefix + typed, same suffix, typed + shown a prefix of the text
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from infra.records import Completion, Feedback, LabelOutcome, Outcome

RANK: dict[Outcome, int] = {
    "shown": 0,
    "rejected": 1,
    "partially_accepted": 2,
    "accepted": 3,
    "retained": 4,
    "thumbs_down": 5,
}
"""A later accept is the truth: Continue rejects after 10 s by itself, and a Tab after that still counts. What is left of it
after a while tells more, and what a developer says of it most."""
LEAST_KEPT = 4
"""Characters in a row that a completion and what stands in its place share by more than chance."""
CLOCK_SLACK_SECONDS = 1.0
"""Replicas' clocks may differ by this much: feedback may seem to arrive before its completion by so much."""


@dataclass(frozen=True)
class Showing:
    """One showing of a completion in an editor: all events with one client id, told once."""

    project: str
    user: str
    client_id: str
    completion_id: str
    time: float
    """When its first event arrived."""
    outcome: Outcome
    prefix: str
    suffix: str
    shown: str
    """Empty where the client tells by id alone: then all that was served."""
    accepted_characters: int | None
    """Of a partial accept; none where the client does not say: the first line (Tabby's accept of a line)."""
    retained: str
    cache_hit: bool


@dataclass(frozen=True)
class Label:
    """What became of a completion."""

    outcome: LabelOutcome
    shown_characters: int
    """Characters shown in the end, where a stream was reused without those the developer typed over."""
    extent: int
    """Characters of the generated text, from its start, that the developer saw or typed."""
    accepted_characters: int


@dataclass(frozen=True)
class Joined:
    """A completion with what is known of it; no label: nobody judged it (yet)."""

    completion: Completion
    label: Label | None
    cache_hit: bool
    """Judged only in showings from the editor's own cache, which count for nothing."""


TRIMMED_SPACES = ("", " ", "  ")
"""What Continue removes in front of a Qwen model's completion: one space, and one more where the prefix ends in a space."""


@dataclass(frozen=True)
class Join:
    """All completions, each once, and what was left over."""

    joined: tuple[Joined, ...]
    """By time, then id."""
    duplicates: int
    """Completions that were delivered again."""
    orphans: int
    """Showings that match no completion: made-up ones, or older than the window."""


def join(completions: Iterable[Completion], feedback: Iterable[Feedback], join_seconds: float) -> Join:
    """Give every completion its label."""
    delivered = list(completions)
    unique = sorted({c.id: c for c in sorted(delivered, key=repr_key)}.values(), key=lambda c: (c.time, c.id))
    showings = merge(feedback)
    matched: dict[str, list[tuple[Showing, int]]] = defaultdict(list)
    matcher = Matcher(unique, join_seconds)
    orphans = 0
    for showing in showings:
        if (found := matcher.find(showing)) is None:
            orphans += 1
        else:
            completion, extent = found
            matched[completion.id].append((showing, extent))
    joined = tuple(_joined(c, matched.get(c.id, ())) for c in unique)
    return Join(joined=joined, duplicates=len(delivered) - len(unique), orphans=orphans)


def repr_key(completion: Completion) -> tuple[str, float, int, str]:
    """An order that any two different deliveries under one id have, too."""
    return (completion.id, completion.time, len(completion.token_ids), completion.text)


def merge(feedback: Iterable[Feedback]) -> list[Showing]:
    """One showing for all events of a client id: the highest outcome, the first time."""
    groups: dict[tuple[str, str, str], dict[str, Feedback]] = defaultdict(dict)
    for event in feedback:
        # An event without a client id stands for itself.
        groups[event.project, event.user, event.client_id or f"event {event.id}"][event.id] = event
    return [_showing(list(events.values())) for _, events in sorted(groups.items())]


def _showing(events: Sequence[Feedback]) -> Showing:
    best = max(events, key=lambda e: (RANK[e.outcome], e.accepted_characters or 0, -e.time, e.id))
    place = best if best.shown else max(events, key=lambda e: (bool(e.shown), RANK[e.outcome], -e.time, e.id))
    return Showing(
        project=best.project,
        user=best.user,
        client_id=best.client_id,
        completion_id=next((e.completion_id for e in sorted(events, key=lambda e: (e.time, e.id)) if e.completion_id), ""),
        time=min(e.time for e in events),
        outcome=best.outcome,
        prefix=place.prefix,
        suffix=place.suffix,
        shown=place.shown,
        accepted_characters=best.accepted_characters,
        retained=best.retained,
        cache_hit=any(e.cache_hit for e in events),
    )


class Matcher:
    """Finds the completion that a showing is of."""

    def __init__(self, completions: Sequence[Completion], join_seconds: float) -> None:
        self._join_seconds = join_seconds
        self._by_id = {c.id: c for c in completions}
        self._by_place: dict[tuple[str, str, str], list[Completion]] = defaultdict(list)
        for completion in completions:
            self._by_place[completion.project, completion.user, _suffix(completion.suffix)].append(completion)

    def find(self, showing: Showing) -> tuple[Completion, int] | None:
        """The completion and how many characters of its text were seen; none where it was not served by us."""
        if showing.completion_id:
            served = self._by_id.get(showing.completion_id)
            if served is None or (served.project, served.user) != (showing.project, showing.user):
                return None
            extent = seen(served, showing)
            # A client that knows the id may send no place; the shown text must still be ours.
            if extent is None and not showing.prefix and served.text.startswith(showing.shown):
                extent = len(showing.shown) or len(served.text)
            return None if extent is None else (served, extent)
        best: tuple[tuple[bool, float, str], Completion, int] | None = None
        for served in self._by_place.get((showing.project, showing.user, _suffix(showing.suffix)), ()):
            age = showing.time - served.time
            if not -CLOCK_SLACK_SECONDS <= age <= self._join_seconds or (extent := seen(served, showing)) is None:
                continue
            # At the very place before a reused stream; then the latest request.
            rank = (served.prefix == showing.prefix, served.time, served.id)
            if best is None or rank > best[0]:
                best = (rank, served, extent)
        return None if best is None else best[1:]


def seen(served: Completion, showing: Showing) -> int | None:
    """Characters of the served text that the developer saw or typed over; none where the showing is not of it."""
    if not showing.shown or _suffix(served.suffix) != _suffix(showing.suffix) or not showing.prefix.startswith(served.prefix):
        return None
    typed = showing.prefix[len(served.prefix) :]
    for trimmed in TRIMMED_SPACES:
        if served.text.startswith(text := typed + trimmed + showing.shown):
            return len(text)
    return None


def _suffix(suffix: str) -> str:
    """Continue sends a newline in place of an empty suffix."""
    return "" if suffix == "\n" else suffix


def _joined(completion: Completion, showings: Sequence[tuple[Showing, int]]) -> Joined:
    judged = [(s, extent) for s, extent in showings if s.outcome != "shown"]
    counted = [(s, extent) for s, extent in judged if not s.cache_hit]
    if not counted:
        return Joined(completion, None, cache_hit=bool(judged))
    # Several showings of one stream: an accept is the truth, else what was seen of it in all.
    showing, extent = max(counted, key=lambda found: (RANK[found[0].outcome], found[1], found[0].time, found[0].client_id))
    return Joined(completion, _label(completion, showing, extent), cache_hit=False)


def _label(completion: Completion, showing: Showing, extent: int) -> Label:
    shown = len(showing.shown) or extent
    text = completion.text[extent - shown : extent]
    match showing.outcome:
        case "accepted":
            return Label("accepted", shown, extent, shown)
        case "partially_accepted":
            counted = showing.accepted_characters
            kept = len(text.split("\n")[0]) if counted is None else min(counted, shown)
            return Label("partially_accepted", shown, extent, kept)
        case "retained":
            kept = kept_characters(text, showing.retained)
            return Label("accepted" if kept == shown else "partially_accepted", shown, extent, kept)
        case "rejected" | "thumbs_down":
            return Label("rejected", shown, extent, 0)
        case "shown":
            raise AssertionError(f"completion {completion.id}: shown but not judged is no label")


def kept_characters(shown: str, retained: str) -> int:
    """How many of the characters shown are left in what stands there now, in runs of LEAST_KEPT and more."""
    blocks = SequenceMatcher(None, shown, retained, autojunk=False).get_matching_blocks()
    return len(shown) if shown in retained else sum(block.size for block in blocks if block.size >= LEAST_KEPT)


def cut(completion: Completion, extent: int) -> int:
    """How many of the sampled tokens the developer was shown: all, the end token too, where all but trailing blanks was."""
    if extent >= len(completion.text.rstrip()):
        return len(completion.token_ids)
    return next((i + 1 for i, end in enumerate(completion.token_ends) if end >= extent), len(completion.token_ids))
