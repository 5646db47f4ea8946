"""Requests that an editor sends ahead, as if the completion that it shows were accepted. Pure.

llama.vim and llama.vscode ask for the next completion as soon as they show one, and keep it in their cache: the prefix is the
earlier request's with the text that it was served, without blank lines at its end. So such a request shows a text that nobody may
have written. If it was accepted, the next request that is not sent ahead shows it: the editor shows the next completion from its
cache, and asks ahead of that one.
"""

import polars as pl

CLIENT = "llama"
"""Client (Completion.client) of these editors. They report nothing; of a client that does, a request after an accept shows text
that was written."""
SECONDS = 30.0
"""Time after a request within which its completion is shown: from the cache, once the one before it was accepted."""
REQUESTS = 3
"""Latest requests of which one may be the earlier one."""
ENDS = (r"\n+$", r"(?:\n[ \t]*)+$")
"""Ends of a served text that llama.vim and llama.vscode remove."""


def asked_ahead(requests: pl.DataFrame) -> pl.Series:
    """Return whether each request was sent ahead.

    Args:
        requests: infra.records.Completion, by project, user, time, then id.
    """
    columns = requests.select("project", "user", "client", "time", "prefix", "text").with_row_index("row")
    rows, prefix, ahead = columns.filter(pl.col("client") == CLIENT), pl.col("prefix"), pl.lit(False)
    for back in range(1, REQUESTS + 1):
        same = (pl.col(name) == pl.col(name).shift(back) for name in ("project", "user"))
        near = pl.all_horizontal(*same, pl.col("time") - pl.col("time").shift(back) <= SECONDS)
        for end in ENDS:
            shown = pl.col("text").shift(back).str.replace(end, "")
            # The lines that are sent may begin farther down than the earlier request's.
            goes_on = prefix.str.ends_with(shown) & prefix.shift(back).str.ends_with(prefix.str.strip_suffix(shown))
            ahead |= near & (shown.str.strip_chars() != "") & goes_on
    return columns["row"].is_in(rows.filter(ahead)["row"].implode())
