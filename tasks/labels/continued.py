"""Suggestions that the next one continues, of which the editor tells nothing. Pure; rows in any order.

Continue starts a timer of ten seconds when it shows a suggestion, and tells at its end that it was not taken. The next suggestion
stops the timer, and nothing is told, if the first line of one of the two is the start or the end of the other's
(`markDisplayed` in Continue's core/autocomplete/util/AutocompleteLoggingService.ts): most often the developer typed on along the
first, and the rest of it is shown again. A suggestion that is taken is always told.

So these are not missing at random: none was taken. How many there are depends on the model, since long lines are typed along more
often than short ones. An A/B test that left them out found a version of shorter suggestions 2.8 points worse than it was
(infra/docs/measurements.md).
"""

import polars as pl

TIMER_SECONDS = 10.0
"""Seconds after which Continue tells of a suggestion that was not taken."""
CLIENTS = ("continue",)
"""Clients (Completion.client) that follow this rule."""


def continued(served: pl.DataFrame) -> pl.Series:
    """Return which completions the next suggestion to the same user in the same project continues.

    Args:
        served: infra.records.Completion with `blank`, each once, and all up to TIMER_SECONDS after those that matter.
    """
    displayed = (
        pl.col("client").cast(pl.String).is_in(CLIENTS)
        & ~pl.col("withheld")
        & ~pl.col("blank")
        & ~pl.col("finish_reason").cast(pl.String).is_in(["disconnected", "error"])
    )
    line, following = pl.col("line"), pl.col("following")
    related = line.str.starts_with(following) | line.str.ends_with(following)
    related |= following.str.starts_with(line) | following.str.ends_with(line)
    shown = (
        served.lazy()
        .with_row_index("row")
        .filter(displayed)
        .select("row", "project", "user", "time", "id", line=pl.col("text").str.split("\n").list.first())
        .sort("project", "user", "time", "id")
        .with_columns(
            following=line.shift(-1).over("project", "user"),
            gap=pl.col("time").shift(-1).over("project", "user") - pl.col("time"),
        )
        .filter(related & (pl.col("gap") <= TIMER_SECONDS))
        .select("row")
        .collect()
    )
    rows = pl.int_range(served.height, eager=True, dtype=pl.UInt32)
    return rows.is_in(shown["row"].implode()).alias("continued")
