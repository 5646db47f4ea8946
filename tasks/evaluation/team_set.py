"""The team's own evaluation set: places where a developer wrote text outside the training data.

A place is a request whose settled text is known (tasks/labels/hindsight.py), and which is either newer than the window of the
cycle or in a file that training never reads (bucket `held_out`). If a developer accepted the served completion, it is the settled
text: this favours the champion, so the gate errs on the side of refusing. Only users who are known give places
(tasks/labels/users.py): invented ones could else steer which candidates pass.
"""

import math
from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

import polars as pl

from infra.records import HeldOutPlace
from infra.settings.evaluation import HeldOut
from infra.storage.store import ObjectStore
from tasks.evaluation.heldout.sets import Places
from tasks.labels.accounting import RequestAccounting
from tasks.labels.attribution import unique
from tasks.labels.documents import Documents
from tasks.labels.partitions import Partition, divided
from tasks.labels.read import InputChanged, read_chosen

LEAST_TRUTH = 3
"""Fewest characters, without blanks, of a place's text."""


def places(
    store: ObjectStore, partitions: Sequence[Partition], accounting: RequestAccounting, wanted: HeldOut, count: int, lines: int
) -> Places:
    """Return at most `count` places of a window, and in addition some at which developers wrote nothing.

    Args:
        lines: lines of a settled text that count; 0: all of it.

    Raises:
        InputChanged: a completion is no longer in its object.
    """
    rows = accounting.classified.filter(pl.col("bucket").is_in(["waiting", "held_out"]))
    admitted = rows.filter("admitted")
    settled = admitted.filter(pl.col("settled").is_not_null(), ~pl.col("redacted"))
    truths = [truth_of(text, whole, lines) for text, whole in settled.select("settled", "settled_whole").iter_rows()]
    known = settled.with_columns(truth=pl.Series("truth", truths, pl.String)).drop_nulls("truth")
    spoken = known.filter(pl.col("language").is_in(wanted.languages)) if wanted.languages else known
    written = pl.col("truth").str.replace_all(r"\s", "").str.len_chars()
    long, quiet = spoken.filter(written >= LEAST_TRUTH), spoken.filter(written == 0)
    asked, silent = choose(long, count, wanted.seed), choose(quiet, round(wanted.silent * count), wanted.seed)
    chosen = pl.concat([asked, silent])
    left_out = {
        "new_user": rows.height - admitted.height,
        "unsettled": admitted.height - known.height,
        "other_language": known.height - spoken.height,
        "short": spoken.height - long.height - quiet.height,
        "more_than_asked_for": long.height + quiet.height - chosen.height,
    }
    found = []
    for partition, own in divided(partitions, chosen):
        served = unique(read_chosen(store, partition, own))
        found += own.join(served.select("id", "time", "prefix", "suffix"), on=["id", "time"]).to_dicts()
    if len(found) != chosen.height:
        raise InputChanged(
            f"{len(found)} of {chosen.height} held-out requests are where they were served: a user or project was erased in the "
            "meantime. Nothing was sealed; the next run collects again: `prefect deployment run cycle/cycle`"
        )
    files = files_of(found)
    columns = ("id", "project", "user", "language", "prefix", "suffix", "truth")
    made = [HeldOutPlace(file=files[row["id"]], **{name: row[name] for name in columns}) for row in found]
    return Places(wanted.name, tuple(sorted(made, key=lambda place: place.id)), left_out)


def truth_of(settled: str, whole: bool, lines: int) -> str | None:
    """Return the text at a place up to the end of a line, at most `lines` lines; None if no whole line is known."""
    written = settled.split("\n")
    ended = written if whole else written[:-1]
    return "\n".join(ended[: lines or None]) if ended else None


def choose(rows: pl.DataFrame, count: int, seed: int) -> pl.DataFrame:
    """Return at most `count` rows at random; users take turns, so that none outweighs the others."""
    drawn = rows.with_columns(draw=pl.col("id").hash(seed))
    turn = pl.col("draw").rank("ordinal").over("project", "user")
    return drawn.with_columns(turn=turn).sort("turn", "draw").head(count).drop("turn", "draw")


def files_of(rows: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Return the file of each request, by id; where it names none, the first request of its user that shows the same document."""
    files: dict[str, str] = {}
    for _, group in groupby(sorted(rows, key=itemgetter("project", "user", "time", "id")), itemgetter("project", "user")):
        own = list(group)
        times, names, ids = ([row[name] for row in own] for name in ("time", "file", "id"))
        texts, cursors = [row["prefix"] + row["suffix"] for row in own], [len(row["prefix"]) for row in own]
        numbers = Documents(times, names, texts, cursors, [""] * len(own), [False] * len(own), math.inf).numbers
        first = [names[number] or ids[number] for number in numbers]
        files |= {id: name or shown for id, name, shown in zip(ids, names, first, strict=True)}
    return files
