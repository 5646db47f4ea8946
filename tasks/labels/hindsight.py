"""Settled text: the text at a completion's position some time later. Pure; rows in any order.

The requests of a user in a project show the positions of earlier ones again (tasks/labels/places.py). Of the later requests
between `quiet_seconds` and `most_seconds` after a request, the last that shows its place counts: if a text is written again
within that time, the later text is the settled one. Lines that changed within `quiet_seconds` before are cut off. Where the
stream does not show the text, or shows that it is still being written, there is none, and UNSETTLED says why.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import polars as pl

from infra.model.kept_text import REACH, kept_of_part
from infra.settings.schema import Hindsight
from tasks.labels.ahead import asked_ahead
from tasks.labels.documents import Documents, same_above
from tasks.labels.normal_lines import normal_completions
from tasks.labels.places import Missing, Place, View, agreed, place_of

Reason = Literal[
    Missing, "opted_out", "redacted", "short_prefix", "still_typed", "empty", "pasted", "numbers_only", "unknown_file"
]
UNSETTLED = pl.Enum(["", *get_args(Reason)])
"""Why a completion has no settled text; empty where it has one, or where hindsight is off.

not_shown: no later request shows the place in the same document. unknown_file: a later request shows the place, and one of the
two names no file, and too little around it says whether the document is the same (documents.py). ambiguous: the place is not the
only one that fits. prefix_changed: the cursor's line was changed before the place. suffix_changed: the text behind the place was
changed, so its end is not known. opted_out, redacted: the user opted out, or a secret was removed from the request or from the
later ones. short_prefix: the prefix is too short to find the place in an unnamed file. still_typed: the place was last shown
while it was being written. empty: nothing stands there. pasted: a paste or an agent wrote it. numbers_only: the editor reports
numbers, since it has no consent to send text.
"""
COLUMNS: Mapping[str, type[pl.DataType] | pl.DataType] = {
    "settled": pl.String,
    "settled_whole": pl.Boolean,
    "settled_by": pl.String,
    "unsettled": UNSETTLED,
    "written": pl.Int64,
}
"""Columns of a settled text: the text, whose lines end in LF, null if unknown; whether the suffix was found behind it, so that
nothing of it is missing; id of the later request that shows it, or FEEDBACK; why it is not known; and the characters written
between the request's cursor and that of the next request, null if unknown."""
STANDS = "stands"
"""Column of all that stands at the place, the line of the later cursor and those behind it too: a developer who goes on within an
accepted text has kept its later lines, though they are no settled text yet. Known also of a place that is empty or still typed
at, and of one whose line was changed before it or is gone: an accepted text that was undone is not kept. Cut to REACH times the
completion's length, of which the kept characters are counted, but not below DIRTY_CHARACTERS."""
FEEDBACK = "feedback"
ANCHOR_CHARACTERS = 60
"""Characters at the end of a prefix by which its position is found again, where they occur once. A shorter prefix counts only
where both requests name the same file."""
DIRTY_CHARACTERS = 512
"""Maximum characters by which the text at a position may grow beyond the completion's limit between two requests. Beyond it a
paste or an agent wrote the text, and it is no label. Nor is a reported text that is longer than what was shown by more. Longer
settled text is cut to as many characters, at the end of a line."""
CHARACTERS_A_TOKEN = 4
"""Characters that a token has, for the limit of a completion."""
NEEDED = ("id", "time", "project", "user", "client", "file", "prefix", "suffix", "text", "max_tokens", "opted_out", "redacted")


class Settled(NamedTuple):
    """The settled text of a place."""

    text: str
    whole: bool
    by: str


def none(rows: int) -> pl.DataFrame:
    """Return the columns of rows without settled text."""
    nulls = {name: pl.Series(name, [None] * rows, kind) for name, kind in COLUMNS.items()}
    return pl.DataFrame(nulls | {"unsettled": pl.Series("unsettled", [""] * rows, UNSETTLED)})


def settle(completions: pl.DataFrame, wanted: pl.Series, settings: Hindsight) -> pl.DataFrame:
    """Return `id`, the COLUMNS and STANDS of each wanted completion.

    Args:
        completions: infra.records.Completion, each once, with all requests up to `most_seconds` after the wanted ones.
        wanted: ids of the completions to settle.
        settings: without `on`, no completion has a settled text.
    """
    if not settings.on:
        return wanted.to_frame("id").hstack(none(wanted.len())).with_columns(pl.lit(None, pl.String).alias(STANDS))
    needed = normal_completions(completions.select(NEEDED))
    ordered = needed.with_columns(wanted=pl.col("id").is_in(wanted.implode()))
    ordered = ordered.sort("project", "user", "time", "id")
    found: list[tuple[str, Settled | Reason, int | None, str | None]] = []
    columns = _columns(ordered)
    users = ordered.select(pl.struct("project", "user").rle_id()).to_series().to_numpy()
    begins = [*np.flatnonzero(np.diff(users, prepend=-1)).tolist(), len(users)]
    for begin, end in pairwise(begins):
        found.extend(_Requests(settings, *(column[begin:end] for column in columns)).settled())
    texts = [one if isinstance(one, Settled) else None for _, one, *_ in found]
    return pl.DataFrame(
        {
            "id": [id for id, *_ in found],
            "settled": [one and one.text for one in texts],
            "settled_whole": [one and one.whole for one in texts],
            "settled_by": [one and one.by for one in texts],
            "unsettled": ["" if isinstance(one, Settled) else one for _, one, *_ in found],
            "written": [written for *_, written, _ in found],
            STANDS: [stands for *_, stands in found],
        },
        schema={"id": pl.String, **COLUMNS, STANDS: pl.String},
    )


def _columns(rows: pl.DataFrame) -> list[list[Any]]:
    """The fields of _Requests."""
    hidden = pl.when("opted_out").then(pl.lit("opted_out")).when("redacted").then(pl.lit("redacted")).otherwise(pl.lit(""))
    document, cursor = (pl.col("prefix") + pl.col("suffix")).alias("document"), pl.col("prefix").str.len_chars().alias("cursor")
    size = pl.col("text").str.len_chars()
    fields = ("id", "time", "file", document, cursor, "max_tokens", size, hidden.alias("hidden"), "wanted")
    columns = rows.select(*fields, ahead=asked_ahead(rows))
    return [column.to_list() for column in columns.iter_columns()]


@dataclass(frozen=True)
class _Requests:
    """The requests of a user in a project, by time, then id."""

    settings: Hindsight
    ids: Sequence[str]
    times: Sequence[float]
    files: Sequence[str]
    documents: Sequence[str]
    cursors: Sequence[int]
    limits: Sequence[int]
    sizes: Sequence[int]
    """Characters of their completions."""
    hidden: Sequence[str]
    """Why a request's text cannot be used; empty if it can."""
    wanted: Sequence[bool]
    ahead: Sequence[bool]
    """Whether a request shows a text that nobody may have written (ahead.py)."""

    @cached_property
    def shown(self) -> Documents:
        """The documents that the requests show, numbered only where one of two names no file."""
        texts = (self.documents, self.cursors, self.hidden, self.ahead)
        return Documents(self.times, self.files, *texts, self.settings.most_seconds)

    def settled(self) -> Iterator[tuple[str, Settled | Reason, int | None, str | None]]:
        """Yield the settled text of each wanted request, or why it has none, the characters written until the next one, and what
        stands at the place."""
        stop = 0
        for at, (id, time) in enumerate(zip(self.ids, self.times, strict=True)):
            while stop < len(self.times) and not self.times[stop] - time > self.settings.most_seconds:
                stop += 1
            if self.wanted[at]:
                views = self._views(at, stop)
                if not isinstance(views, _Views):
                    yield id, views, None, None
                    continue
                quiet = self.times[stop - 1] - time >= self.settings.quiet_seconds
                found, stands = self._last(at, stop, views) if quiet else ("not_shown", None)
                most = max(DIRTY_CHARACTERS, REACH * self.sizes[at])
                yield id, found, self._written(at, stop, views), stands and stands[:most]

    def _views(self, at: int, stop: int) -> "_Views | Reason":
        """Return the views of later requests at a place, or why they show none."""
        if self.hidden[at]:
            return "opted_out" if self.hidden[at] == "opted_out" else "redacted"
        if stop == at + 1:
            return "not_shown"
        document, cursor = self.documents[at], self.cursors[at]
        place = place_of(document, cursor, ANCHOR_CHARACTERS)
        anchor = place.anchor
        if not anchor.strip() or (cursor < ANCHOR_CHARACTERS and not self.files[at]):
            return "short_prefix"
        if document.find(anchor) + len(anchor) != cursor or document.find(anchor, cursor - len(anchor) + 1) >= 0:
            return "ambiguous"
        return _Views(self, at, place, short=cursor < ANCHOR_CHARACTERS)

    def _written(self, at: int, stop: int, views: "_Views") -> int | None:
        """Return the characters between this cursor and that of the next request; None if unknown, or if they were pasted.

        No cursor stands where a request was sent ahead.
        """
        following = next((later for later in range(at + 1, stop) if not self.ahead[later]), None)
        size = None if following is None or self.ahead[at] else views.size(following)
        return None if size is None or size > CHARACTERS_A_TOKEN * self.limits[at] + DIRTY_CHARACTERS else size

    def _last(self, at: int, stop: int, views: "_Views") -> tuple[Settled | Reason, str | None]:
        """Return the text in the last request that shows the place, or why there is none, and what stands there (STANDS)."""
        reason: Reason = "not_shown"
        revisited: View | None = None
        for later in range(stop - 1, at, -1):
            if self.times[later] - self.times[at] < self.settings.quiet_seconds:
                break
            found = views.of(later)
            if found in ("prefix_changed", "suffix_changed"):
                return found, views.place.instead(self.documents[later]) if found == "prefix_changed" else None
            if not isinstance(found, View):
                reason = found if reason == "not_shown" else reason
                continue
            if revisited is not None and revisited.standing not in (found.text, found.standing):
                return "still_typed", revisited.stands
            if found.text or found.whole:
                settled = self._accept(at, later, found, views)
                return settled, None if settled == "pasted" else found.stands
            # The cursor is back in the first line; if nothing changed there, the text of an earlier view still stands.
            if not found.standing:
                return "still_typed", found.stands
            revisited, reason = found, "still_typed"
        return reason, revisited and revisited.stands

    def _accept(self, at: int, later: int, found: View, views: "_Views") -> Settled | Reason:
        if not found.text.strip():
            return "empty" if found.whole else "still_typed"
        text, whole = found.text, found.whole
        for between in range(later - 1, at, -1):
            if self.times[later] - self.times[between] >= self.settings.quiet_seconds:
                break
            if isinstance(view := views.of(between), View):
                text, whole = agreed(text, whole, view)
        if not text.strip():
            return "still_typed"
        if len(text) > DIRTY_CHARACTERS:
            step = CHARACTERS_A_TOKEN * self.limits[at] + DIRTY_CHARACTERS
            if self._grew_at_once((at, 0, later, found.size), views, step):
                return "pasted"
            text, whole = text[: text.rfind("\n", 0, DIRTY_CHARACTERS) + 1], False
        return Settled(text, whole, self.ids[later]) if text.strip() else "pasted"

    def _grew_at_once(self, span: tuple[int, int, int, int], views: "_Views", step: int) -> bool:
        """Whether the place grew by more than `step` characters from one request that shows it to the next.

        `span` is the first request and the size of the place in it, and the same of the last.

        The requests are halved, since text that grew by less between two of them grew by less between all in between.
        """
        spans = [span]
        while spans:
            first, before, last, after = spans.pop()
            if after - before <= step:
                continue
            middle = (first + last) // 2
            inner = (*range(middle, last), *range(middle - 1, first, -1)) if middle > first else ()
            shown = next(((between, size) for between in inner if (size := views.size(between)) is not None), None)
            if shown is None:
                return True
            spans += [(first, before, *shown), (*shown, last, after)]
        return False


class _Views(NamedTuple):
    """The views of later requests at a place."""

    requests: _Requests
    at: int
    place: Place
    short: bool
    """The anchor is short: only a request that names the same file may show the place."""

    def size(self, later: int) -> int | None:
        """Return the characters that a later request shows at the place; None if it does not show it."""
        return found.size if isinstance(found := self.of(later), View) else None

    def of(self, later: int) -> View | Missing | Literal["redacted", "opted_out", "unknown_file"]:
        """Return the view of a later request at the place, or why it is not known."""
        requests = self.requests
        here, there = requests.files[self.at], requests.files[later]
        if requests.ahead[later] or (here != there and (self.short or (here and there))):
            return "not_shown"
        if requests.hidden[later]:
            return "opted_out" if requests.hidden[later] == "opted_out" else "redacted"
        view = self.place.view(requests.documents[later], requests.cursors[later])
        if view == "not_shown":  # the documents need no comparison, which takes longer than the search for the place
            return view
        if here and there:
            return view if view == "ambiguous" or self._same_above(later, view) else "not_shown"
        same = requests.shown.same(self.at, later)
        if same is None:
            return "unknown_file" if isinstance(view, View) else "not_shown"
        return view if same else "not_shown"

    def _same_above(self, later: int, view: View | Missing) -> bool:
        """Whether the lines above the place are those of the request: windows of a file may show two places that are alike."""
        requests, place = self.requests, self.place
        document, there = requests.documents[self.at], requests.documents[later]
        mark, cursor = place.anchor, requests.cursors[self.at]
        if view == "prefix_changed":
            mark, cursor = place.before, document.rfind("\n", 0, cursor) + 1
        return same_above(document, cursor, there, there.find(mark), mark, requests.shown.requests.known)


def with_kept(shown: pl.DataFrame, text: str, settled: pl.Series) -> pl.DataFrame:
    """Return shown texts with `typed_over` and `kept_characters`.

    The first are the characters at the begin of the settled text that were typed before the rest of the completion was shown. The
    second are those of the shown text, or of the part of it that was taken, that stand behind them; null where the settled text
    is unknown or nothing was shown.

    Args:
        shown: with `extent`, `shown_characters` and `taken_characters`; `text`: its column of the completions' texts.
        settled: all that stands at each place (STANDS), or what the editor reports of it.
    """
    rows = shown.select(text, "extent", "shown_characters", pl.lit(settled).alias("stands"), "taken_characters").iter_rows()
    found = [kept_of(whole[: end - size], whole[end - size : end], stands, taken) for whole, end, size, stands, taken in rows]
    typed, kept = ([pair[number] for pair in found] for number in (0, 1))
    return shown.with_columns(pl.Series("typed_over", typed, pl.Int64), pl.Series("kept_characters", kept, pl.Int64))


def kept_of(before: str, shown: str, stands: str | None, taken: int | None = None) -> tuple[int, int | None]:
    """Return `typed_over` and `kept_characters` (with_kept) of a shown text, from what stands at its place.

    Args:
        before: the completion's text before the shown part.
        taken: characters of the shown text that the accept put into the file; without any, all of it counts.
    """
    typed = len(before) if stands is not None and stands.startswith(before) else 0
    return typed, kept_of_part(shown, taken or len(shown), stands[typed:]) if shown and stands is not None else None
