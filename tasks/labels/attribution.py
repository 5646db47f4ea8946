"""Labels joined to completions: pure functions over frames of events, in any order, delivered any number of times.

By the server's completion id where the client knows it, else by content (see README.md here, "The join"):

    at the place   same project and user, within join_seconds, event prefix and suffix as served, shown a prefix of the text
    stream reuse   event prefix = served prefix + typed, same suffix, typed + shown a prefix of the text

With a name selected in the list of suggestions, Continue asks as if it stood there already, and tells it again in front of what
was shown: the prefix ends with it and the shown text begins with it.

    feedback -- merge --> showings; completions x showings -- match --> matches; completions x matches -- label --> labels

Every step may be given a part of the events (tasks/labels/partitions.py): a showing needs all of its own events and all completions that
it may be of, a label all matches of its completion.
"""

from difflib import SequenceMatcher
from typing import get_args

import numpy as np
import polars as pl

from infra.records import LabelOutcome, Outcome

STRENGTH: tuple[Outcome, ...] = ("shown", "rejected", "partially_accepted", "accepted", "retained", "thumbs_down")
"""A later accept is the truth: Continue rejects after 10 s by itself, and a Tab after that still counts. What is left of it
after a while tells more, and what a developer says of it most."""
LEAST_KEPT = 4
"""Characters in a row that a completion and what stands in its place share by more than chance."""
CLOCK_SLACK_SECONDS = 1.0
"""Replicas' clocks may differ by this much: feedback may seem to arrive before its completion by so much."""
TRIMMED_SPACES = ("", " ", "  ")
"""What Continue removes in front of a completion: a space where the prefix ends in one, and before 0.8.60 one more of Qwen's."""
LEAST_SELECTED, MOST_SELECTED = 4, 200
"""Characters of a name selected in the list of suggestions; Continue asks with one only when four of it are typed."""
BLANKS = "".join(c for c in map(chr, range(0x3001)) if c.isspace())
"""What Python strips, which is more than Polars does."""
WHO = ["project", "user"]
TOLD_AS = pl.Enum(["shown", "nothing", *STRENGTH[1:]])
LABEL = pl.Enum([*get_args(LabelOutcome), "nothing"])


def join(completions: pl.DataFrame, feedback: pl.DataFrame, join_seconds: float) -> tuple[pl.DataFrame, int]:
    """Every completion with its label, by time, then id; and how many showings are of none of them.

    To the columns of infra.records.Completion come those of `label`.
    """
    served, showings = unique(completions), merge(feedback)
    matches = match(served, showings, join_seconds)
    return label(served, matches), showings.height - matches.height


def unique(completions: pl.DataFrame) -> pl.DataFrame:
    """Each completion once, by time, then id; of different deliveries under one id the latest and longest.

    `blank` says whether there is nothing in it to show.
    """
    size = [pl.col(name).list.len() for name in ("token_ends",) if name in completions.columns]
    once = completions.sort("time", *size, "text").unique("id", keep="last", maintain_order=True).sort("time", "id")
    return once.with_columns(blank=pl.col("text").str.strip_chars(BLANKS) == "")


def impression() -> pl.Expr:
    """What the events of one showing share beside project and user: an event without a client id stands for itself."""
    return pl.when(pl.col("client_id") != "").then("client_id").otherwise(pl.lit("event ") + pl.col("id")).alias("showing")


def merge(feedback: pl.DataFrame) -> pl.DataFrame:
    """One row for all events of a showing: the strongest word, the time of the first, the place where one was told."""
    key = [*WHO, "showing"]
    strongest = feedback.with_columns(impression(), pl.col("outcome").cast(TOLD_AS)).sort(
        "outcome", pl.col("accepted_characters").fill_null(0), "time", "id", descending=[True, True, False, True]
    )
    found = strongest.group_by(key).agg(
        pl.col("outcome", "client_id", "prefix", "suffix", "shown", "accepted_characters", "retained", "completion_id").first(),
        pl.col("time").min(),
        pl.col("cache_hit").any(),
        pl.col("language").max(),  # the one that is told, if one is
    )
    # A word by id alone may come without the place that another one told.
    placeless = strongest.join(found.filter(pl.col("shown") == ""), on=key, how="semi")
    places = placeless.sort(pl.col("shown") != "", "outcome", "time", "id", descending=[True, True, False, True])
    named = strongest.filter(pl.col("completion_id") != "").sort("time", "id")
    found = found.update(places.group_by(key).agg(pl.col("prefix", "suffix", "shown").first()), on=key)
    return found.update(named.group_by(key).agg(pl.col("completion_id").first()), on=key)


def match(completions: pl.DataFrame, showings: pl.DataFrame, join_seconds: float) -> pl.DataFrame:
    """The completion that each showing is of, and what the showing says of it; showings of nothing that was served are left out.

    A row has the completion's id and time (`served`, `served_time`), the showing's word (`told`), time and names, and the label
    that it would be.
    """
    served = completions.select(*WHO, "text", served="id", served_time="time", served_prefix="prefix", served_suffix=_suffix())
    told = showings.with_columns(suffix=_suffix()).with_row_index("telling")
    by_id = _by_id(told.filter(pl.col("completion_id") != ""), served)
    unnamed = _selected(told.filter((pl.col("completion_id") == "") & (pl.col("shown") != "")))
    at_the_place = _at_the_place(unnamed, served, join_seconds)
    reused = _reused(unnamed.join(at_the_place, on="telling", how="anti"), served, join_seconds)
    columns = ["served", "served_time", "text", "extent", *(c for c in told.columns if c != "completion_id")]
    return _labelled(pl.concat([found.select(columns) for found in (by_id, at_the_place, reused)]))


def _suffix() -> pl.Expr:
    """Continue sends a newline in place of an empty suffix."""
    return pl.when(pl.col("suffix") == "\n").then(pl.lit("")).otherwise("suffix")


def _selected(told: pl.DataFrame) -> pl.DataFrame:
    """With `completed`: what was shown less a selected name in front that the prefix ends with too; nothing without one."""
    ends = pl.col("prefix").str.slice(-MOST_SELECTED)
    first = pl.col("shown").str.slice(0, LEAST_SELECTED)
    likely = (pl.col("shown").str.len_chars() > LEAST_SELECTED) & ends.str.contains(first, literal=True)
    near = told.filter(likely).select("telling", "prefix", "shown")
    completed = [after_selected(prefix, shown) for _, prefix, shown in near.iter_rows()]
    found = near.select("telling", completed=pl.Series(completed, dtype=pl.String))
    return told.join(found, on="telling", how="left")


def after_selected(prefix: str, shown: str) -> str | None:
    """What follows the longest start of the shown text, neither blank nor all of it, that the prefix ends with."""
    lengths = range(min(len(shown) - 1, MOST_SELECTED), LEAST_SELECTED - 1, -1)
    return next((shown[n:] for n in lengths if shown[:n].strip() and prefix.endswith(shown[:n])), None)


def _told_of(pairs: pl.DataFrame, typed: pl.Expr) -> pl.DataFrame:
    """With `extent`, and `shown` as it is in the served text."""
    whole, completed = _extent(typed), _extent(typed, "completed")
    named = whole.is_null() & completed.is_not_null()
    shown = pl.when(named).then("completed").otherwise("shown")
    return pairs.with_columns(extent=pl.coalesce(whole, completed), shown=shown)


def _extent(typed: pl.Expr, shown: str = "shown") -> pl.Expr:
    """Characters of the served text that the developer saw or typed over; nothing where what was shown is not of it."""
    seen = [pl.concat_str(typed, pl.lit(trimmed), shown) for trimmed in TRIMMED_SPACES]
    return pl.coalesce(pl.when(pl.col("text").str.starts_with(text)).then(text.str.len_chars()) for text in seen).cast(pl.Int64)


def _typed() -> pl.Expr:
    """What was typed between request and showing, where the showing's prefix begins with the request's."""
    return pl.col("prefix").str.slice(pl.col("served_prefix").str.len_chars())


def _by_id(told: pl.DataFrame, served: pl.DataFrame) -> pl.DataFrame:
    """A client that knows the id may send no place; the shown text must still be ours."""
    pairs = told.rename({"completion_id": "served"}).join(served, on=["served", *WHO])
    of_place = (pl.col("shown") != "") & (pl.col("suffix") == pl.col("served_suffix"))
    of_place &= pl.col("prefix").str.starts_with(pl.col("served_prefix"))
    whole = (pl.col("prefix") == "") & pl.col("text").str.starts_with(pl.col("shown"))
    extent = pl.coalesce(
        pl.when(of_place).then(_extent(_typed())),
        pl.when(whole & (pl.col("shown") != "")).then(pl.col("shown").str.len_chars()),
        pl.when(whole).then(pl.col("text").str.len_chars()),
    )
    return pairs.with_columns(extent=extent.cast(pl.Int64)).drop_nulls("extent")


def _at_the_place(told: pl.DataFrame, served: pl.DataFrame, join_seconds: float) -> pl.DataFrame:
    there = served.rename({"served_prefix": "prefix", "served_suffix": "suffix"})
    pairs = told.join(there, on=[*WHO, "suffix", "prefix"]).filter(_in_time(join_seconds))
    return _latest(_told_of(pairs, pl.lit("")))


def _reused(told: pl.DataFrame, served: pl.DataFrame, join_seconds: float) -> pl.DataFrame:
    """Streams that went on while the developer typed. Only requests of nearby slots of time are looked at."""
    slot = max(join_seconds, CLOCK_SLACK_SECONDS)
    near = pl.concat(told.with_columns(slot=(pl.col("time") / slot).floor() + away) for away in (-1, 0, 1))
    there = served.rename({"served_suffix": "suffix"}).with_columns(slot=(pl.col("served_time") / slot).floor())
    begins = pl.col("prefix").str.starts_with(pl.col("served_prefix"))
    pairs = near.lazy().join(there.lazy(), on=[*WHO, "suffix", "slot"]).filter(_in_time(join_seconds) & begins).collect()
    return _latest(_told_of(pairs, _typed()))


def _in_time(join_seconds: float) -> pl.Expr:
    return (pl.col("time") - pl.col("served_time")).is_between(-CLOCK_SLACK_SECONDS, join_seconds)


def _latest(pairs: pl.DataFrame) -> pl.DataFrame:
    """Of the requests that a showing may be of, the latest."""
    fitting = pairs.drop_nulls("extent").sort("served_time", "served")
    return fitting.unique("telling", keep="last", maintain_order=True)


def _labelled(pairs: pl.DataFrame) -> pl.DataFrame:
    """Each showing's word on its completion, as a label."""
    pairs = pairs.with_columns(
        told="outcome", shown_characters=pl.when(pl.col("shown") == "").then("extent").otherwise(pl.col("shown").str.len_chars())
    )
    length = pl.col("shown_characters").cast(pl.Int64)
    pairs = pairs.with_columns(seen=pl.col("text").str.slice(pl.col("extent") - length, length), shown_characters=length)
    later = pairs.filter(pl.col("told") == "retained").select("telling", "seen", "retained")
    left = [kept_characters(seen, retained) for _, seen, retained in later.iter_rows()]
    pairs = pairs.join(later.select("telling", left=pl.Series(left, dtype=pl.Int64)), on="telling", how="left")
    line = pl.col("seen").str.split("\n").list.first().str.len_chars().cast(pl.Int64)
    told, accepted, partially = pl.col("told"), pl.lit("accepted"), pl.lit("partially_accepted")
    outcome = (
        pl.when(told.is_in(["shown", "rejected", "thumbs_down"]))
        .then(pl.lit("rejected"))
        .when((told == "accepted") | (pl.col("left") == length))
        .then(accepted)
        .otherwise(partially)
    )
    kept = (
        pl.when(told == "accepted")
        .then(length)
        .when(told == "partially_accepted")
        .then(
            pl.when(pl.col("accepted_characters").is_null())
            .then(line)
            .otherwise(pl.min_horizontal("accepted_characters", length))
        )
        .otherwise(pl.coalesce("left", pl.lit(0)))
    )
    return pairs.select(
        *("served", "served_time", "text", "told", "client_id", "showing", "time", "cache_hit", "shown_characters", "extent"),
        outcome=outcome.cast(LABEL),
        accepted_characters=kept,
        told_language="language",
    )


def nothing_to_show(completions: pl.DataFrame) -> pl.DataFrame:
    """Completions that the model ended by itself before there was anything to show, as matches: the weakest word on them."""
    chosen = completions.filter(pl.col("blank"), pl.col("finish_reason") == "stop", pl.col("token_ends").list.len() > 0)
    return chosen.select(
        *("text", "token_ends", "logprobs"),
        served="id",
        served_time="time",
        told=pl.lit("nothing", TOLD_AS),
        outcome=pl.lit("nothing", LABEL),
        cache_hit=pl.lit(False),
        shown_characters=pl.lit(0, pl.Int64),
        accepted_characters=pl.lit(0, pl.Int64),
        extent=pl.col("text").str.len_chars().cast(pl.Int64),
    )


def kept_characters(shown: str, retained: str) -> int:
    """How many of the characters shown are left in what stands there now, in runs of LEAST_KEPT and more."""
    blocks = SequenceMatcher(None, shown, retained, autojunk=False).get_matching_blocks()
    return len(shown) if shown in retained else sum(block.size for block in blocks if block.size >= LEAST_KEPT)


def label(completions: pl.DataFrame, matches: pl.DataFrame) -> pl.DataFrame:
    """The completions with what became of them, by time, then id.

    outcome                nothing where nobody judged it (yet)
    shown_characters       shown in the end, where a stream was reused without those that the developer typed over
    extent                 characters of the generated text, from its start, that the developer saw or typed
    accepted_characters
    cache_hit              judged only in showings from the editor's own cache, which count for nothing
    language               as who judged it tells it, else as the request did

    Several showings of one completion: an accept is the truth, else what was seen of it in all. Further columns of `matches`
    stay with the label.
    """
    judged = matches.filter(pl.col("told") != "shown")
    # Showings that are alike in all that matters are told apart by their names, so that their order cannot be.
    order = ["told", "extent", "time", "client_id", "showing"]
    best = judged.filter(~pl.col("cache_hit")).sort(order, descending=[True, True, True, True, False])
    labels = best.unique(["served", "served_time"], keep="first", maintain_order=True)
    labels = labels.drop("told", "time", "client_id", "showing", "cache_hit", "text", strict=False)
    cached = judged.filter("cache_hit").select("served", "served_time").unique().with_columns(cached=pl.lit(True))
    of, told = ["id", "time"], ["served", "served_time"]
    found = completions.join(labels, left_on=of, right_on=told, how="left").join(cached, left_on=of, right_on=told, how="left")
    found = found.sort("time", "id")
    told_so = pl.col("told_language").fill_null("")
    return found.with_columns(
        cache_hit=pl.col("outcome").is_null() & pl.col("cached").fill_null(False),
        language=pl.when(told_so == "").then("language").otherwise(told_so),
    ).drop("cached", "told_language")


def cut(frame: pl.DataFrame) -> pl.DataFrame:
    """How many of the sampled tokens the developer was shown, and what their log-probabilities are.

    All, the end token too, where all but trailing blanks was shown. Needs `text`, `extent`, `token_ends` and `logprobs`, and puts
    `tokens` and `logprobs` (how many), `logprob_lowest` and `logprob_highest` in place of the two lists. A log-probability that
    is not finite becomes one that no bound lets through.
    """
    ends, logprobs = frame["token_ends"].to_arrow(), frame["logprobs"].to_arrow()
    lengths = frame["token_ends"].list.len().to_numpy().astype(np.int64)
    row = np.repeat(np.arange(frame.height), lengths)
    place = np.arange(len(row)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    kept = lengths.copy()
    reached = ends.flatten().to_numpy() >= frame["extent"].to_numpy()[row]
    np.minimum.at(kept, row[reached], place[reached] + 1)
    whole = frame.select(whole=pl.col("extent") >= pl.col("text").str.strip_chars_end(BLANKS).str.len_chars())["whole"].to_numpy()
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
    ).drop("token_ends")
