"""Requests that the editor does not report by its own rules, since they were not taken. Pure; rows in any order.

Continue starts a timer of ten seconds when it shows a suggestion, and reports at its end that it was not taken. It reports
nothing (`markDisplayed` in Continue's core/autocomplete/util/AutocompleteLoggingService.ts) where, before that,

- the next suggestion continues it: the first line of one of the two is the start or the end of the other's. Most often the
  developer typed on along the first, and the rest of it is shown again;
- or the next suggestion replaces it within half a second.

Nor does it report a request that it closed, since something else was typed: its answer is not shown. It always reports a
suggestion that is taken.

So these are not missing at random: none was taken. How many there are depends on the model, since long lines are typed along more
often than short ones, slow answers are closed more often, and unsteady ones replaced. An A/B test that left the continued ones
out found a version of shorter suggestions 2.8 points worse than it was (infra/docs/measurements.md).
"""

import polars as pl

TIMER_SECONDS = 10.0
"""Seconds after which Continue reports a suggestion that was not taken."""
REPLACED_SECONDS = 0.5
"""Seconds before which a suggestion that another one replaces does not count for Continue."""
REACH_SECONDS = 2 * TIMER_SECONDS
"""Seconds after a request within which the one arrives whose suggestion continues its own. An answer that takes longer than the
timer counts as shown when the timer would end, so that nothing depends on requests further away."""
CLIENTS = ("continue",)
"""Clients (Completion.client) that follow these rules."""


def unreported(served: pl.DataFrame) -> pl.Series:
    """Return which completions the editor does not report, if it reports any (metrics.py checks that).

    Args:
        served: infra.records.Completion with `blank`, each once, and all up to REACH_SECONDS after those that matter.
    """
    follows_the_rules = pl.col("client").cast(pl.String).is_in(CLIENTS) & ~pl.col("withheld")
    ended = pl.col("finish_reason").cast(pl.String)
    displayed = follows_the_rules & ~pl.col("blank") & ~ended.is_in(["disconnected", "error"])
    # After a space the editor removes a leading one.
    text = pl.when(pl.col("prefix").str.ends_with(" ")).then(pl.col("text").str.strip_prefix(" ")).otherwise("text")
    line, following = pl.col("line"), pl.col("following")
    related = line.str.starts_with(following) | line.str.ends_with(following)
    related |= following.str.starts_with(line) | following.str.ends_with(line)
    missing = (
        served.lazy()
        .with_row_index("row")
        .filter(displayed)
        .select(
            *("row", "project", "user", "id"),
            displayed=pl.col("time") + pl.min_horizontal(pl.col("total_ms") / 1000.0, TIMER_SECONDS),
            line=text.str.split("\n").list.first(),
        )
        .sort("project", "user", "displayed", "id")
        .with_columns(
            following=line.shift(-1).over("project", "user"),
            gap=pl.col("displayed").shift(-1).over("project", "user") - pl.col("displayed"),
        )
        .filter((pl.col("gap") < REPLACED_SECONDS) | (related & (pl.col("gap") <= TIMER_SECONDS)))
        .select("row")
        .collect()
    )
    closed = served.select((follows_the_rules & (ended == "disconnected")).fill_null(False)).to_series()
    rows = pl.int_range(served.height, eager=True, dtype=pl.UInt32)
    return (closed | rows.is_in(missing["row"].implode())).alias("unreported")


def with_rules(labelled: pl.DataFrame, matches: pl.DataFrame) -> pl.DataFrame:
    """Add the column `rules`: whether an event of a client with such rules reports the request."""
    reports = matches.filter(pl.col("reporter").is_in(CLIENTS), pl.col("reported") != "shown").select(
        id="served", time="served_time"
    )
    reported = labelled.select("id", "time").join(
        reports.unique().with_columns(rules=pl.lit(True)), on=["id", "time"], how="left", maintain_order="left"
    )
    return labelled.with_columns(reported["rules"].fill_null(False))


def by_own_rules(labelled: pl.DataFrame) -> pl.DataFrame:
    """Clear `unreported` of users whose events come from other clients: only Continue leaves out what its rules say, and RLinf's
    Continue, whose requests are the same, reports in a way of its own.

    Args:
        labelled: all labelled requests of a window, with `rules`, which then says so of all requests of a user.
    """
    by_rules = pl.col("rules").any().over("user")
    return labelled.with_columns(rules=by_rules, unreported=pl.col("unreported") & by_rules)
