"""Events in the normal form of their line ends (infra/model/line_ends.py), so that all texts of labels compare. Pure.

An editor may send its document's CRLF, and report a completion with the LF of its own lines, as Continue does. Numbers of
characters then count the normal form too. Events without CR, which are most, are not touched; the order of rows may change.
"""

from collections.abc import Sequence

import polars as pl

from infra.model.line_ends import normal


def normal_completions(completions: pl.DataFrame) -> pl.DataFrame:
    """Return completions with texts in normal form; `token_ends`, where they are read, count it."""
    others, found = _divided(completions, ("prefix", "suffix", "text", "held_back"))
    if found.is_empty():
        return completions
    # A cursor between CR and LF stands at the end of its line.
    within = pl.col("prefix").str.ends_with("\r") & pl.col("suffix").str.starts_with("\n")
    prefix = pl.when(within).then(pl.col("prefix").str.head(-1)).otherwise("prefix")
    if "token_ends" in found.columns:
        counted = found.select("text", "held_back", "token_ends").iter_rows()
        found = found.with_columns(pl.Series("token_ends", [_ends(*row) for row in counted], found.schema["token_ends"]))
    texts = (_normal(pl.col(name)) for name in ("suffix", "text", "held_back") if name in found.columns)
    return pl.concat([others, found.with_columns(_normal(prefix).alias("prefix"), *texts)])


def normal_feedback(feedback: pl.DataFrame) -> pl.DataFrame:
    """Return events with texts in normal form; `accepted_characters` counts it where the event has the shown text.

    Without it, attribution.match counts it by the completion's text.
    """
    texts = ("prefix", "suffix", "shown", "retained", "settled")
    others, found = _divided(feedback, texts)
    if found.is_empty():
        return feedback
    rows = found.select("shown", "accepted_characters").iter_rows()
    counts = [None if count is None else count - shown.count("\r\n", 0, count) for shown, count in rows]
    accepted = pl.Series("accepted_characters", counts, found.schema["accepted_characters"])
    return pl.concat([others, found.with_columns(accepted, *(_normal(pl.col(name)) for name in texts))])


def _divided(events: pl.DataFrame, texts: Sequence[str]) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the events without CR in these texts, and those with one."""
    names = [name for name in texts if events.schema.get(name) == pl.String]  # an empty column may have no type
    has = events.select(pl.any_horizontal(pl.col(names).str.contains("\r", literal=True)).fill_null(False)).to_series()
    return (events.filter(~has), events.filter(has)) if has.any() else (events, events.clear())


def _normal(text: pl.Expr) -> pl.Expr:
    return text.str.replace_all("\r\n", "\n", literal=True).str.replace_all("\r", "\n", literal=True)


def _ends(text: str, held_back: str, ends: Sequence[int]) -> list[int]:
    """Return the ends of tokens in the normal form of a text and what was held back behind it."""
    size = len(normal(text))
    return [
        end - text.count("\r\n", 0, end)
        if end <= len(text)
        else size + (end - len(text)) - held_back.count("\r\n", 0, end - len(text))
        for end in ends
    ]
