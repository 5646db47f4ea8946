"""Merge the events of an impression, one completion shown to a developer, into its outcome and its place. Pure.

An event with a reason why nothing was taken may carry no decision: a completion that nobody saw or answered is not rejected.
"""

import polars as pl

from infra.model.verdicts import NOT_JUDGED, STRENGTH
from tasks.labels.normal_lines import normal_feedback
from tasks.labels.reports import latest_report

WHO = ["project", "user"]
REPORTED = pl.Enum(["shown", "unjudged", "nothing", *STRENGTH[1:]])


def impression() -> pl.Expr:
    """Return the id that the events of one impression share within project and user; an event without a client id has its own."""
    return pl.when(pl.col("client_id") != "").then("client_id").otherwise(pl.lit("event ") + pl.col("id")).alias("impression")


def judged_outcome() -> pl.Expr:
    """Return the outcome of an event; a rejection for one of NOT_JUDGED counts as shown."""
    none = (pl.col("outcome").cast(pl.String) == "rejected") & pl.col("reason").cast(pl.String).is_in(NOT_JUDGED)
    return pl.when(none).then(pl.lit("shown")).otherwise(pl.col("outcome").cast(pl.String)).cast(REPORTED).alias("outcome")


def merge(feedback: pl.DataFrame) -> pl.DataFrame:
    """Return one row per impression: its strongest outcome, the time of its first event, and the place that an event names.

    Of several partial accepts the longest counts, of several retained texts the latest. Lines of the texts end in LF
    (normal_lines.py). `lines` and `rest` say how much was accepted without a number (_with_lines).
    """
    key = [*WHO, "impression"]
    part = pl.when(pl.col("outcome") == "partially_accepted").then("accepted_characters").fill_null(0)
    first = pl.when(pl.col("outcome") == "retained").then(-pl.col("time")).otherwise("time")
    strongest = (
        normal_feedback(feedback)
        .with_columns(impression(), judged_outcome())
        .sort("outcome", part, first, "id", descending=[True, True, False, True])
    )
    impressions = strongest.group_by(key).agg(
        pl.col(
            "outcome", "client", "client_id", "prefix", "suffix", "shown", "accepted_characters", "retained", "completion_id"
        ).first(),
        pl.col("time").min(),
        pl.col("cache_hit").any(),
        pl.col("language").max(),  # the language that an event names, if any does
        pl.col("seen_ms").first(),
        not_taken=pl.col("reason").filter(pl.col("reason") != "").first().fill_null(""),
        part=pl.col("accepted_characters").filter(pl.col("outcome") == "partially_accepted").first(),
        bare=(pl.col("shown") == "").filter(pl.col("outcome") == "partially_accepted").first(),
        whole=(pl.col("outcome") == "accepted").any(),
    )
    # A retained text was accepted in whole, unless another event of the impression says that a part of it was.
    accepted = pl.when(pl.col("outcome") != "retained").then("accepted_characters").when(~pl.col("whole")).then("part")
    impressions = impressions.with_columns(accepted_characters=accepted).drop("part", "whole")
    # An event that names only the id may lack the place that another event of the impression has.
    placeless = strongest.join(impressions.filter(pl.col("shown") == ""), on=key, how="semi")
    places = placeless.sort(pl.col("shown") != "", "outcome", "time", "id", descending=[True, True, False, True])
    named = strongest.filter(pl.col("completion_id") != "").sort("time", "id")
    impressions = impressions.join(latest_report(strongest, key), on=key, how="left")
    impressions = impressions.update(places.group_by(key).agg(pl.col("prefix", "suffix", "shown").first()), on=key)
    return _with_lines(impressions.update(named.group_by(key).agg(pl.col("completion_id").first()), on=key))


def _with_lines(impressions: pl.DataFrame) -> pl.DataFrame:
    """Add `lines` and `rest`, for partial accepts without a number; `lines` is null for other impressions.

    Each accepts the next line of its completion, whose rest then has an impression of its own. `lines`: such impressions of the
    completion; `rest`: whether it has an impression after the last of them.
    """
    completion, time = [*WHO, "completion_id"], pl.col("time")
    unnumbered = (pl.col("outcome") == "partially_accepted") & pl.col("accepted_characters").is_null()
    accepts = impressions.filter(unnumbered, pl.col("completion_id") != "").group_by(completion)
    counted = accepts.agg(lines=pl.len().cast(pl.Int64), last=time.max())
    of_completion = impressions.join(counted, on=completion).group_by(completion)
    found = impressions.join(
        of_completion.agg(pl.col("lines").first(), rest=(time > pl.col("last")).any()), on=completion, how="left"
    )
    return found.with_columns(lines=pl.when(unnumbered).then(pl.col("lines").fill_null(1)))
