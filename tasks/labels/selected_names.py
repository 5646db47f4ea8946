"""Shown text that begins with a name selected in the list of suggestions. Pure.

With such a name, Continue requests a completion as if it were in the file, and repeats it in the shown text: the prefix ends with
it and the shown text begins with it.
"""

import polars as pl

LEAST_SELECTED, MOST_SELECTED = 4, 200
"""Characters of a name selected in the list of suggestions; Continue sends one only after four characters of it are typed."""


def with_completed(impressions: pl.DataFrame) -> pl.DataFrame:
    """Add `completed`: the shown text after a selected name that the prefix also ends with; null without such a name."""
    ends = pl.col("prefix").str.slice(-MOST_SELECTED)
    first = pl.col("shown").str.slice(0, LEAST_SELECTED)
    likely = (pl.col("shown").str.len_chars() > LEAST_SELECTED) & ends.str.contains(first, literal=True)
    near = impressions.filter(likely).select("row_number", "prefix", "shown")
    completed = [after_selected(prefix, shown) for _, prefix, shown in near.iter_rows()]
    texts = near.select("row_number", completed=pl.Series(completed, dtype=pl.String))
    return impressions.join(texts, on="row_number", how="left")


def after_selected(prefix: str, shown: str) -> str | None:
    """Return the shown text after its longest start, neither blank nor all of it, that the prefix ends with; None without one."""
    lengths = range(min(len(shown) - 1, MOST_SELECTED), LEAST_SELECTED - 1, -1)
    return next((shown[n:] for n in lengths if shown[:n].strip() and prefix.endswith(shown[:n])), None)
