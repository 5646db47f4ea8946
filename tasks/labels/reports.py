"""Settled text that an editor reports itself: it wins over what later requests show. Pure.

Of several reports on a completion the latest counts. A report that is longer than what was shown by more than
hindsight.DIRTY_CHARACTERS is a paste's or an agent's: nothing of the completion counts as kept, and its text is no label.
An editor that may not send text reports numbers; the text is then not taken from later requests either. Of a text that was
accepted in part its number may be of the whole, and counts up to the part.
"""

from collections.abc import Sequence

import polars as pl

from tasks.labels.hindsight import DIRTY_CHARACTERS, FEEDBACK, UNSETTLED, with_kept

REPORTED_COLUMNS = ("stated_settled", "stated_kept", "stated_total", "stated_at")
REPORTS = (*REPORTED_COLUMNS, "stated_text")
"""Columns of a match with a report: its text, its number of kept characters, its time, and the completion's text."""
OWN = ["id", "time"]


def latest_report(feedback: pl.DataFrame, key: Sequence[str]) -> pl.DataFrame:
    """Return the latest report of each impression, by its key."""
    reports = feedback.filter(pl.col("settled").is_not_null() | pl.col("settled_kept").is_not_null()).sort("time", "id")
    columns = {
        "stated_settled": pl.col("settled").last(),
        "stated_kept": pl.col("settled_kept").last(),
        "stated_total": pl.col("settled_total").last(),
        "stated_at": pl.col("time").last(),
    }
    return reports.group_by(key).agg(**columns)


def with_reports(labelled: pl.DataFrame, matches: pl.DataFrame) -> pl.DataFrame:
    """Return labelled completions with their reports, and without the text of those that may have none."""
    if not set(REPORTS) <= set(matches.columns):
        return _without_hidden(labelled)
    reported = matches.drop_nulls("stated_at").sort("stated_at", "stated_settled", "stated_kept", "stated_text", nulls_last=False)
    reported = reported.unique(["served", "served_time"], keep="last", maintain_order=True)
    if reported.is_empty():
        return _without_hidden(labelled)
    rows = labelled.select(*OWN, "outcome", "extent", "shown_characters", "taken_characters").join(
        reported.select(*REPORTS, id="served", time="served_time"), on=OWN
    )
    rows = rows.filter(pl.col("outcome").is_not_null())
    rows = with_kept(rows, "stated_text", rows["stated_settled"])
    size, taken = pl.col("shown_characters"), pl.col("taken_characters")
    length = pl.coalesce(pl.col("stated_settled").str.len_chars().cast(pl.Int64), "stated_total")
    dirty = (length - size > DIRTY_CHARACTERS).fill_null(False)
    usable = pl.col("stated_settled").is_not_null() & ~dirty & (pl.col("stated_settled").str.strip_chars() != "")
    reason = (
        pl.when(usable)
        .then(pl.lit(""))
        .when(pl.col("stated_settled").is_null())
        .then(pl.lit("numbers_only"))
        .when(dirty)
        .then(pl.lit("pasted"))
        .otherwise(pl.lit("empty"))
    )
    rows = rows.select(
        *OWN,
        says_more=pl.lit(True),
        stated_settled=pl.when(usable).then("stated_settled"),
        stated_whole=pl.when(usable).then(pl.lit(True)),
        stated_unsettled=reason.cast(UNSETTLED),
        stated_typed="typed_over",
        stated_kept=pl.when(dirty)
        .then(pl.lit(0, pl.Int64))
        .when(pl.col("stated_settled").is_null() & (size > 0))
        .then(pl.min_horizontal("stated_kept", "stated_total", pl.when(taken > 0).then(taken).otherwise(size)))
        .otherwise("kept_characters"),
    )
    joined = labelled.join(rows, on=OWN, how="left").sort(*OWN)
    reported_by = pl.col("says_more").fill_null(False)
    sources = {
        "settled": "stated_settled",
        "settled_whole": "stated_whole",
        "unsettled": "stated_unsettled",
        "kept_characters": "stated_kept",
        "typed_over": "stated_typed",
    }
    joined = joined.with_columns(
        *(pl.when(reported_by).then(source).otherwise(name).alias(name) for name, source in sources.items()),
        settled_by=pl.when(reported_by)
        .then(pl.when(pl.col("stated_settled").is_not_null()).then(pl.lit(FEEDBACK)))
        .otherwise("settled_by"),
    )
    return _without_hidden(joined.drop("says_more", *sources.values()))


def _without_hidden(labelled: pl.DataFrame) -> pl.DataFrame:
    """Remove the settled text of users who opted out and of requests that held a secret.

    A completion without an answer has no outcome where neither its settled text nor its kept characters are known.
    """
    hidden = pl.col("opted_out") | pl.col("redacted")
    columns = ("settled", "settled_whole", "settled_by", "kept_characters", "written")
    labelled = labelled.with_columns(
        *(pl.when(~hidden).then(name).alias(name) for name in columns),
        unsettled=pl.when("opted_out")
        .then(pl.lit("opted_out", UNSETTLED))
        .when("redacted")
        .then(pl.lit("redacted", UNSETTLED))
        .otherwise("unsettled"),
    )
    unknown = (
        (pl.col("outcome").cast(pl.String) == "unjudged") & pl.col("settled").is_null() & pl.col("kept_characters").is_null()
    )
    return labelled.with_columns(outcome=pl.when(unknown.fill_null(False)).then(None).otherwise("outcome"))
