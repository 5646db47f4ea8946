"""The labels of the keep estimate (infra/model/showing.py): whether a completion was kept, up to each of its tokens.

Where the settled text of a completion is known, every beginning has a label, shown or not: it is kept if the settled text begins
with it. Where only the developer's answer is known, the shown text has a label: it is kept if it was accepted in whole.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from infra.model.showing import Place
from infra.storage.store import ObjectStore
from tasks.labels.attribution import unique
from tasks.labels.partitions import Partition
from tasks.labels.read import read_chosen

JUDGED = {"accepted": 1.0, "rejected": 0.0}
"""Labels of outcomes; a partial accept is no label of the whole shown text."""


@dataclass(frozen=True, eq=False)
class LabelledCompletion:
    """A completion of T tokens with the label of each beginning."""

    place: Place
    temperature: float
    logprobs: Sequence[float]
    """[T]"""
    ends: Sequence[int]
    """Characters of the text up to each token [T]."""
    kept: np.ndarray
    """1 where the text up to a token is kept, 0 where not, NaN where it is unknown [T]."""
    accepted: bool | None
    """Whether the developer accepted it; None without an answer."""
    decided: tuple[float, int] | None = None
    """The chance by which serving showed it, and the number of tokens shown; None where the chance did not decide."""


def labelled_completions(
    store: ObjectStore, partitions: Sequence[Partition], chosen: pl.DataFrame
) -> Iterator[LabelledCompletion]:
    """Yield the labelled completions among classified requests (tasks/labels/accounting.py), by time, then id, in each partition.

    Completions without log-probabilities, or without a labelled beginning, are left out.
    """
    for partition in partitions:
        own = chosen.filter(partition.owns(chosen["time"].to_numpy()))
        if own.is_empty():
            continue
        usable = ~pl.col("mixed") & (pl.col("token_ends").list.len() > 0) & (pl.col("finish_reason") != "error")
        served = unique(read_chosen(store, partition, own, ("prompt_token_ids",)).filter(usable))
        labels = own.select("id", "settled", "settled_whole", "outcome", "extent")
        for row in served.join(labels, on="id").sort("time", "id").iter_rows(named=True):
            completion = labelled(row)
            if not np.isnan(completion.kept).all():
                yield completion


def labelled(row: dict[str, Any]) -> LabelledCompletion:
    """Return a recorded completion with its labels."""
    ends, generated = row["token_ends"], row["text"] + row["held_back"]
    if row["settled"] is not None:
        kept = kept_up_to(generated, ends, row["settled"], bool(row["settled_whole"]))
    else:
        kept = np.full(len(ends), np.nan)
        if (at := tokens_of(ends, row["extent"] or 0)) and row["outcome"] in JUDGED:
            kept[at - 1] = JUDGED[row["outcome"]]
    shown = tokens_of(ends, len(row["text"]))
    decided = row["chance"] is not None and not row["audited"] and shown > 0
    return LabelledCompletion(
        Place(row["prefix"], row["suffix"], row["language"], row["user_acceptance"], row["project_acceptance"]),
        row["temperature"],
        row["logprobs"],
        ends,
        kept,
        {"accepted": True, "partially_accepted": True, "rejected": False}.get(row["outcome"]),
        (row["chance"], shown) if decided else None,
    )


def kept_up_to(generated: str, ends: Sequence[int], settled: str, whole: bool) -> np.ndarray:
    """Return whether the text up to each token is the beginning of a settled text [T]; blanks at its end do not count.

    NaN for a blank text, and for one that goes on beyond a settled text that is not whole.
    """
    kept = np.zeros(len(ends))
    for token, end in enumerate(ends):
        text = generated[:end].rstrip()
        beyond = not whole and text.startswith(settled)
        if not text or beyond:
            kept[token] = np.nan
        elif settled.startswith(text):
            kept[token] = 1.0
    return kept


def tokens_of(ends: Sequence[int], characters: int) -> int:
    """Return the number of tokens that make up so many characters; 0 for none, or where they are not all there."""
    return next((token for token, end in enumerate(ends, 1) if end >= characters), 0) if characters else 0
