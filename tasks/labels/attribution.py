"""Attribute feedback to completions: pure functions over frames of events, in any order, delivered any number of times.

An impression (one completion shown to a developer) matches by the completion id if the client sends it, else by content (see
infra/docs/how/labels.md, "The join"):

    same place     same project and user, within join_seconds, same prefix and suffix, shown text starts the completion
    stream reuse   event prefix = request prefix + typed, same suffix, typed + shown text starts the completion

Serving keeps only the end of a long prefix (infra/redaction/texts.py). It begins at the same place of the file for request and
event, or, where the text typed between them crossed a step, at a later one for the event: then the request's is cut to the same.

    feedback -- merge --> impressions; completions x impressions -- match --> matches; completions x matches -- label --> labels

Every function accepts a part of the events (tasks/labels/pipeline.py), as long as an impression comes with all of its events
and all completions that it may belong to, and a label with all matches of its completion.
"""

from typing import get_args

import numpy as np
import polars as pl

from infra.model.kept_text import kept_of_part
from infra.model.time_saved import keystrokes
from infra.records import LabelOutcome
from infra.redaction.texts import CUT_STEP
from tasks.labels import hindsight
from tasks.labels.impressions import REPORTED, WHO, merge
from tasks.labels.normal_lines import normal_completions
from tasks.labels.reports import REPORTED_COLUMNS, REPORTS, with_reports
from tasks.labels.selected_names import with_completed
from tasks.labels.unreported import by_own_rules, unreported, with_rules

CLOCK_SLACK_SECONDS = 1.0
"""Largest difference between replicas' clocks: feedback may seem to arrive this long before its completion."""
TRIMMED_SPACES = ("", " ", "  ")
"""Spaces that Continue removes in front of a completion: one where the prefix ends in one, and before 0.8.60 one more of
Qwen's."""
SHARED_PREFIX = CUT_STEP
"""Characters at the start of an event's kept prefix that the kept prefix of its request must contain, where they begin at
different places of the file."""
MOST_STARTS = 16
"""Places of those characters in the request's prefix that are tried; text that repeats itself has many."""
BLANKS = "".join(c for c in map(chr, range(0x3001)) if c.isspace())
"""Characters that Python strips; Polars strips fewer."""
LABEL = pl.Enum([*get_args(LabelOutcome), "nothing", "unjudged"])


def attribute(completions: pl.DataFrame, feedback: pl.DataFrame, join_seconds: float) -> tuple[pl.DataFrame, pl.DataFrame, int]:
    """Return every completion once, the matches of the impressions, and the number of impressions without a completion."""
    served, impressions = unique(completions), merge(feedback)
    matches = match(served, impressions, join_seconds)
    return served, matches, impressions.height - matches.height


def unique(completions: pl.DataFrame) -> pl.DataFrame:
    """Return each completion once, by time, then id; of different deliveries under one id the latest and longest.

    The column `blank` is true if the text has nothing to show, `unreported` if its editor does not report it (unreported.py),
    `crlf` if its lines ended in CRLF. Lines of the texts end in LF (normal_lines.py).
    """
    marked = completions.with_columns(crlf=pl.col("text").str.contains("\r\n", literal=True))
    once = latest(normal_completions(marked)).with_columns(blank=pl.col("text").str.strip_chars(BLANKS) == "")
    return once.with_columns(unreported(once))


def latest(completions: pl.DataFrame) -> pl.DataFrame:
    """Return the latest and longest delivery of each completion's id, by time, then id."""
    size = [pl.col(name).list.len() for name in ("token_ends",) if name in completions.columns]
    return completions.sort("time", *size, "text").unique("id", keep="last", maintain_order=True).sort("time", "id")


def match(completions: pl.DataFrame, impressions: pl.DataFrame, join_seconds: float) -> pl.DataFrame:
    """Return the completion of each impression, with the label that it implies; impressions without a completion are left out.

    A row has the completion's id and time (`served`, `served_time`), the impression's outcome (`reported`), time and ids, and the
    columns of the label.
    """
    served = completions.select(
        *WHO, "text", "crlf", served="id", served_time="time", served_prefix="prefix", served_suffix=_suffix()
    )
    numbered = impressions.with_columns(suffix=_suffix()).with_row_index("row_number")
    by_id = _by_id(numbered.filter(pl.col("completion_id") != ""), served)
    unnamed = with_completed(numbered.filter((pl.col("completion_id") == "") & (pl.col("shown") != "")))
    at_the_place = _at_the_place(unnamed, served, join_seconds)
    reused = _reused(unnamed.join(at_the_place, on="row_number", how="anti"), served, join_seconds)
    columns = ["served", "served_time", "text", "crlf", "extent", *(c for c in numbered.columns if c != "completion_id")]
    return _labelled(pl.concat([pairs.select(columns) for pairs in (by_id, at_the_place, reused)]))


def _suffix() -> pl.Expr:
    """Continue sends a newline in place of an empty suffix."""
    return pl.when(pl.col("suffix") == "\n").then(pl.lit("")).otherwise("suffix")


def _with_extent(pairs: pl.DataFrame, typed: pl.Expr) -> pl.DataFrame:
    """Add `extent`, and set `shown` to the text as it occurs in the completion."""
    whole, completed = _extent(typed), _extent(typed, "completed")
    named = whole.is_null() & completed.is_not_null()
    shown = pl.when(named).then("completed").otherwise("shown")
    return pairs.with_columns(extent=pl.coalesce(whole, completed), shown=shown)


def _extent(typed: pl.Expr, shown: str = "shown") -> pl.Expr:
    """Characters of the completion that the developer saw or typed over; null where the shown text is not part of it."""
    starts = [pl.concat_str(typed, pl.lit(trimmed), shown) for trimmed in TRIMMED_SPACES]
    return pl.coalesce(pl.when(pl.col("text").str.starts_with(text)).then(text.str.len_chars()) for text in starts).cast(pl.Int64)


def _typed() -> pl.Expr:
    """Text typed between request and impression, where the impression's prefix begins with the request's."""
    return pl.col("prefix").str.slice(pl.col("served_prefix").str.len_chars())


def _by_id(impressions: pl.DataFrame, served: pl.DataFrame) -> pl.DataFrame:
    """Match by completion id. Without a place, the shown text must begin the completion, or end it after a part was typed."""
    visible = pl.col("shown").str.head(_seen(pl.col("shown")))  # editors add blanks at the end, and remove them
    impressions = impressions.rename({"completion_id": "served"}).with_columns(shown=visible)
    pairs = _with_same_start(impressions.join(served, on=["served", *WHO]))
    text, shown = pl.col("text"), pl.col("shown").str.len_chars()
    size, trimmed = text.str.len_chars(), text.str.strip_chars_end(BLANKS)
    of_place = (shown > 0) & (pl.col("suffix") == pl.col("served_suffix")) & _begins()
    starts = (text, text.str.strip_chars_start(BLANKS))  # at the start too
    begun = [pl.when(t.str.starts_with(pl.col("shown"))).then(size - t.str.len_chars() + shown) for t in starts]
    rest = pl.when(trimmed.str.ends_with(pl.col("shown"))).then(trimmed.str.len_chars())
    of_text = pl.when(pl.col("prefix") == "").then(pl.coalesce(pl.when(shown == 0).then(size), *begun, rest))
    extent = pl.coalesce(pl.when(of_place).then(_extent(_typed())), of_text)
    return pairs.with_columns(extent=extent.cast(pl.Int64)).drop_nulls("extent")


def _at_the_place(impressions: pl.DataFrame, served: pl.DataFrame, join_seconds: float) -> pl.DataFrame:
    there = served.rename({"served_prefix": "prefix", "served_suffix": "suffix"})
    pairs = impressions.join(there, on=[*WHO, "suffix", "prefix"]).filter(_in_time(join_seconds))
    return _latest(_with_extent(pairs, pl.lit("")))


def _reused(impressions: pl.DataFrame, served: pl.DataFrame, join_seconds: float) -> pl.DataFrame:
    """Match streams that went on while the developer typed. Only requests of the same or an adjacent time slot are compared."""
    slot = max(join_seconds, CLOCK_SLACK_SECONDS)
    near = pl.concat(impressions.with_columns(slot=(pl.col("time") / slot).floor() + away) for away in (-1, 0, 1))
    there = served.rename({"served_suffix": "suffix"}).with_columns(slot=(pl.col("served_time") / slot).floor())
    on, long = [*WHO, "suffix", "slot"], near.filter(pl.col("prefix").str.len_chars() >= SHARED_PREFIX)
    pairs = near.lazy().join(there.lazy(), on=on).filter(_in_time(join_seconds) & _begins()).collect()
    cut = long.lazy().join(there.lazy(), on=on).filter(_in_time(join_seconds) & _begins_later()).collect()
    cut = _with_same_start(cut).filter(_begins())
    return _latest(_with_extent(pl.concat([pairs, cut]), _typed()))


def _begins() -> pl.Expr:
    """Whether the impression's prefix begins with the request's."""
    return pl.col("prefix").str.starts_with(pl.col("served_prefix"))


def _begins_later() -> pl.Expr:
    """Whether the impression's kept prefix may begin later in the file than the request's."""
    start = pl.col("prefix").str.slice(0, SHARED_PREFIX)
    long = pl.col("prefix").str.len_chars() >= SHARED_PREFIX
    return ~_begins() & long & pl.col("served_prefix").str.contains(start, literal=True)


def _with_same_start(pairs: pl.DataFrame) -> pl.DataFrame:
    """Cut the requests' prefixes to the start of the impressions' where those begin later in the file."""
    pairs = pairs.with_row_index("pair")
    later = pairs.filter(_begins_later()).select("pair", "prefix", "served_prefix")
    if not later.height:
        return pairs.drop("pair")
    cut = [from_start_of(prefix, served) for _, prefix, served in later.iter_rows()]
    return pairs.update(later.select("pair", served_prefix=pl.Series(cut, dtype=pl.String)), on="pair").drop("pair")


def from_start_of(prefix: str, served: str) -> str:
    """Return the end of the served prefix that an event's prefix begins with, or all of it."""
    start = prefix[:SHARED_PREFIX]
    at = CUT_STEP if served.startswith(start, CUT_STEP) else served.find(start)
    for _ in range(MOST_STARTS):
        if at < 0:
            break
        if prefix.startswith(served[at:]):
            return served[at:]
        at = served.find(start, at + 1)
    return served


def _in_time(join_seconds: float) -> pl.Expr:
    return (pl.col("time") - pl.col("served_time")).is_between(-CLOCK_SLACK_SECONDS, join_seconds)


def _latest(pairs: pl.DataFrame) -> pl.DataFrame:
    """Keep the latest of the requests that an impression may belong to."""
    fitting = pairs.drop_nulls("extent").sort("served_time", "served")
    return fitting.unique("row_number", keep="last", maintain_order=True)


def _labelled(pairs: pl.DataFrame) -> pl.DataFrame:
    """Turn each impression's outcome into a label of its completion."""
    pairs = pairs.with_columns(
        reported="outcome",
        shown_characters=pl.when(pl.col("shown") == "").then("extent").otherwise(pl.col("shown").str.len_chars()),
    )
    length = pl.col("shown_characters").cast(pl.Int64)
    # An event without the text counts the characters as they were sent.
    text = pl.when("crlf", "bare").then(pl.col("text").str.replace_all("\n", "\r\n", literal=True))
    accepted = text.str.head("accepted_characters").str.replace_all("\r\n", "\n", literal=True).str.len_chars()
    pairs = pairs.with_columns(accepted_characters=pl.coalesce(accepted.cast(pl.Int64), "accepted_characters"))
    shown = pl.col("text").str.slice(pl.col("extent") - length, length)
    seen = _seen(shown)
    pairs = pairs.with_columns(shown_text=shown.str.head(seen), extent=pl.col("extent") - length + seen, shown_characters=seen)
    reported = pl.col("reported")
    lines = pl.when(pl.col("lines").is_not_null()).then("shown_text").str.split("\n")
    words = pl.col("rest") & (pl.col("lines") >= lines.list.len())  # the lines were accepted, and something is left
    by_line = lines.list.head(pl.when(words).then(1).otherwise("lines")).list.join("\n").str.len_chars().cast(pl.Int64)
    part = pl.coalesce("accepted_characters", by_line, length)
    part = pl.when(reported.is_in(["partially_accepted", "retained"])).then(pl.min_horizontal(part, length)).otherwise(0)
    pairs = pairs.with_columns(taken_characters=pl.when(reported == "accepted").then(length).otherwise(part))
    later = pairs.filter(reported == "retained").select("row_number", "shown_text", "taken_characters", "retained")
    remaining = [kept_of_part(shown, taken, retained) for _, shown, taken, retained in later.iter_rows()]
    pairs = pairs.join(later.select("row_number", remaining=pl.Series(remaining, dtype=pl.Int64)), on="row_number", how="left")
    stays = pl.coalesce("remaining", "taken_characters")
    outcome = (
        pl.when(reported.is_in(["shown", "rejected", "thumbs_down"]))
        .then(pl.lit("rejected"))
        .when((reported == "accepted") | ((stays == length) & (length > 0)))  # word by word too
        .then(pl.lit("accepted"))
        .otherwise(pl.lit("partially_accepted"))
    )
    texts = pairs.select(pl.col("shown_text").str.head("taken_characters")).to_series()
    return pairs.select(
        *("served", "served_time", "text", "reported", "client_id", "impression", "time", "cache_hit", "not_taken", "seen_ms"),
        *("shown_characters", "extent", "taken_characters", *REPORTED_COLUMNS),
        stated_text=pl.when(pl.col("stated_at").is_not_null()).then("text"),
        outcome=outcome.cast(LABEL),
        accepted_characters=stays,
        taken_keys=pl.Series([keystrokes(text) for text in texts], dtype=pl.Int64),
        reported_language="language",
        reporter="client",
    )


def _seen(shown: pl.Expr) -> pl.Expr:
    """Return the characters of shown texts without the blanks at their end, which nobody sees, or all those of a blank one."""
    visible = shown.str.strip_chars_end(BLANKS).str.len_chars()
    return pl.when(visible > 0).then(visible).otherwise(shown.str.len_chars()).cast(pl.Int64)


def nothing_to_show(completions: pl.DataFrame) -> pl.DataFrame:
    """Return completions that the model ended before there was anything to show, as matches with the outcome `nothing`."""
    ended = pl.col("blank") & ~pl.col("withheld") & (pl.col("finish_reason") == "stop")
    return _without_event(completions.filter(ended, pl.col("token_ends").list.len() > 0), "nothing", pl.lit(0, pl.Int64))


def unjudged(completions: pl.DataFrame) -> pl.DataFrame:
    """Return completions as matches without an answer: their whole text counts as shown, with the outcome `unjudged`."""
    return _without_event(completions, "unjudged", _seen(pl.col("text"))).with_columns(extent="shown_characters")


def _without_event(completions: pl.DataFrame, outcome: str, shown_characters: pl.Expr) -> pl.DataFrame:
    return completions.select(
        *("text", "held_back", "token_ends", "logprobs"),
        served="id",
        served_time="time",
        reported=pl.lit(outcome, REPORTED),
        outcome=pl.lit(outcome, LABEL),
        cache_hit=pl.lit(False),
        shown_characters=shown_characters,
        accepted_characters=pl.lit(0, pl.Int64),
        extent=pl.col("text").str.len_chars().cast(pl.Int64),
    )


def with_silent(
    matches: pl.DataFrame, served: pl.DataFrame, own: pl.DataFrame, settled: pl.DataFrame, *, reports: bool
) -> pl.DataFrame:
    """Return matches with their tokens and kept characters, and with those that no event reports: empty and unjudged ones.

    Args:
        served: all completions that are read; `own`: those of the partition.
        settled: the settled text of the completions in `own` and `matches` (hindsight.settle).
        reports: whether the settled texts that editors report are used.
    """
    if not reports:
        matches = matches.with_columns(pl.lit(None, matches.schema[name]).alias(name) for name in REPORTS)
    judged = matches.filter(pl.col("reported") != "shown", ~pl.col("cache_hit")).select(id="served")
    known = settled.drop_nulls("settled").select("id").join(judged, on="id", how="anti")
    reported = matches.drop_nulls("stated_at").select(id="served", time="served_time")
    silent = pl.concat([own.join(known, on="id", how="semi"), served.join(reported, on=["id", "time"], how="semi")])
    silent = silent.unique("id", maintain_order=True)
    lists = served.select("token_ends", "logprobs", "held_back", served="id")
    matches = pl.concat([matches.join(lists, on="served"), nothing_to_show(own), unjudged(silent)], how="diagonal")
    stands = settled.select(hindsight.STANDS, served="id")
    texts = matches.select("served").join(stands, on="served", how="left", maintain_order="left")
    return hindsight.with_kept(matches, "text", texts[hindsight.STANDS])


def label(completions: pl.DataFrame, matches: pl.DataFrame, *, part: bool = False) -> pl.DataFrame:
    """Return the completions with their labels, by time, then id.

    outcome                null without feedback (yet)
    shown_characters       shown in the end, but for blanks at its end; without the characters typed over, if a stream was reused
    extent                 characters of the completion, from its start, that the developer saw or typed
    accepted_characters    of a retained text those that are still there
    taken_characters       of the shown text, from its start, that the accept put into the file; 0 if it was not taken
    taken_keys             keystrokes of them (infra/model/time_saved.py)
    not_taken              why the completion was not taken (Feedback.reason); null or empty if unknown
    seen_ms                from showing to the developer's action; null if unknown
    cache_hit              has feedback only on impressions from the editor's own cache, which are ignored
    rules                  whether events of the user come from a client with rules of its own (unreported.py)
    unreported             as before (unreported.py), of these users alone
    language               named by the feedback, else by the request

    settled, settled_whole, settled_by, unsettled, written
                           the columns of the settled text (tasks/labels/hindsight.py)
    kept_characters        of the shown text, or of the part that was taken, in the settled text; null if unknown
    typed_over             at the begin of the settled text, typed before the shown text was shown; null without feedback

    Of several impressions of one completion the strongest outcome counts, then the largest extent, then the longest part
    that was accepted. Further columns of `matches` stay with the label. A settled text that an editor reports wins over one from
    later requests, unless it is longer than what was shown by more than hindsight.DIRTY_CHARACTERS.

    `part`: whether the completions are a part of a window: then `unreported` is that of every user, and `rules` says which
    requests a client with such rules reports (unreported.by_own_rules brings the two together).
    """
    if "settled" not in completions.columns:
        completions = completions.hstack(hindsight.none(completions.height))
    if "kept_characters" not in matches.columns:
        matches = matches.with_columns(pl.lit(None, pl.Int64).alias(name) for name in ("kept_characters", "typed_over"))
    # The ids make the order total, so that the result does not depend on the order of the events.
    longest = pl.when(pl.col("reported") == "partially_accepted").then("taken_characters")
    order = ["reported", "extent", longest, "time", "client_id", "impression", "kept_characters"]
    best = matches.sort(order, descending=[True, True, True, True, True, False, True], nulls_last=True)
    labels = best.filter(pl.col("reported") != "shown", ~pl.col("cache_hit")).unique(
        ["served", "served_time"], keep="first", maintain_order=True
    )
    unused = ("reported", "reporter", "time", "client_id", "impression", "cache_hit", "text", "not_taken", *REPORTS)
    labels = labels.drop(unused, strict=False)
    reasons = best.filter(pl.col("not_taken") != "", ~pl.col("cache_hit")).unique(
        ["served", "served_time"], keep="first", maintain_order=True
    )
    cached = (
        matches.filter(pl.col("reported") != "shown", "cache_hit")
        .select("served", "served_time")
        .unique()
        .with_columns(cached=pl.lit(True))
    )
    own, served = ["id", "time"], ["served", "served_time"]
    labelled = completions.join(labels, left_on=own, right_on=served, how="left")
    for more in (cached, reasons.select(*served, "not_taken")):
        labelled = labelled.join(more, left_on=own, right_on=served, how="left")
    labelled = labelled.sort("time", "id")
    named = pl.col("reported_language").fill_null("")
    ruled = with_rules(labelled, matches)
    labelled = with_reports(ruled if part else by_own_rules(ruled), matches)
    return labelled.with_columns(
        cache_hit=pl.col("outcome").is_null() & pl.col("cached").fill_null(False),
        language=pl.when(named == "").then("language").otherwise(named),
    ).drop("cached", "reported_language")


def cut(frame: pl.DataFrame) -> pl.DataFrame:
    """Count the sampled tokens that the developer was shown, and bound their log-probabilities.

    All tokens count, the end token too, where all but trailing blanks was shown. Replaces `held_back` and the lists `token_ends`
    and `logprobs` by `tokens` and `logprobs` (counts), `logprob_lowest` and `logprob_highest`; also needs `text` and `extent`. A
    log-probability that is not finite becomes an infinite one, which fails every bound.
    """
    ends, logprobs = frame["token_ends"].to_arrow(), frame["logprobs"].to_arrow()
    lengths = frame["token_ends"].list.len().to_numpy().astype(np.int64)
    row = np.repeat(np.arange(frame.height), lengths)
    place = np.arange(len(row)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    kept = lengths.copy()
    reached = ends.flatten().to_numpy() >= frame["extent"].to_numpy()[row]
    np.minimum.at(kept, row[reached], place[reached] + 1)
    text, held_back = (pl.col(name).str.strip_chars_end(BLANKS) for name in ("text", "held_back"))
    whole = frame.select(whole=(pl.col("extent") >= text.str.len_chars()) & (held_back == ""))["whole"].to_numpy()
    kept = np.where(whole, lengths, kept)
    seen = place < kept[row]
    values = logprobs.flatten().to_numpy()[seen]
    lowest, highest = np.full(frame.height, np.inf), np.full(frame.height, -np.inf)
    np.minimum.at(lowest, row[seen], np.where(np.isfinite(values), values, -np.inf))
    np.maximum.at(highest, row[seen], np.where(np.isfinite(values), values, np.inf))
    return frame.with_columns(
        tokens=kept,
        logprobs=np.minimum(kept, frame["logprobs"].list.len().to_numpy()),
        logprob_lowest=np.where(kept > 0, lowest, -np.inf),
        logprob_highest=np.where(kept > 0, highest, np.inf),
    ).drop("token_ends", "held_back")
