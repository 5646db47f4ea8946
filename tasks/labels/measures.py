"""The measures of completions, one definition each: expressions over labelled requests, and their sums by group. Pure.

The ratios of the sums are in infra/records/measures.py; infra/docs/how/measures.md has them in words. The A/B test takes its
metrics from the same expressions (tasks/experiments/counting/metrics.py), and the reward takes the kept characters.
"""

from typing import get_args

import polars as pl

from infra.records import QUICK_MS, RATIOS, Bucket, LabelOutcome, Manifest, MeasuredGroup, Measures, ServedVersion
from infra.records.measures import MeasuredBy
from tasks.statistics.ratios import rate

LEFT_OUT: tuple[Bucket, ...] = ("duplicate", "opted_out", "waiting", "pinned")
"""Buckets whose requests are measured in another cycle, or in none."""
DECILES = 10
MOST_PROJECTS = 20
"""Projects whose acceptance by version a manifest has."""

JUDGED = pl.col("outcome").cast(pl.String).is_in(get_args(LabelOutcome)).fill_null(False)
"""The developer decided about it."""
SHOWN = JUDGED | ~(
    pl.col("withheld")
    | pl.col("blank")
    | (pl.col("finish_reason").cast(pl.String) == "disconnected")
    | pl.col("not_taken").cast(pl.String).is_in(["cancelled", "empty"]).fill_null(False)
)
"""The developer saw it. An editor closes the connection of a completion that is typed over; one that was shown has an answer."""
ACCEPTED = JUDGED & (pl.col("accepted_characters") >= 0.5 * pl.max_horizontal("shown_characters", pl.lit(1)))
"""At least half of the shown text was accepted, or is still there where the editor reports that."""
_KNOWN = pl.when(pl.col("kept_characters").is_not_null()).then(pl.min_horizontal("kept_characters", "shown_characters"))
KEPT = pl.when(JUDGED).then(pl.min_horizontal("accepted_characters", _KNOWN)).otherwise(0)
"""Accepted characters that stand in the settled text; all accepted ones where that is unknown (null values are ignored)."""
COMPLETED = pl.when(pl.col("written").is_not_null()).then(KEPT)
TYPED = pl.max_horizontal(pl.col("written") - KEPT, pl.lit(0))
REJECTED = JUDGED & (pl.col("outcome").cast(pl.String) == "rejected")
CANCELLED = REJECTED & (pl.col("not_taken").cast(pl.String) == "rejected")
"""The developer dismissed it."""
QUICK = REJECTED & (pl.col("seen_ms") < QUICK_MS)
"""Rejected before it can have been read."""
SUMS: dict[str, pl.Expr] = {
    "requests": pl.lit(1),
    "shown": SHOWN,
    "accepted": ACCEPTED,
    "kept_characters": KEPT,
    "completed_characters": COMPLETED,
    "typed_characters": pl.when(pl.col("written").is_not_null()).then(TYPED),
    "explicit_cancels": CANCELLED,
    "quick_rejections": QUICK,
}
"""The fields of infra.records.Measures, for one request; null counts as 0."""
assert SUMS.keys() == Measures.model_fields.keys()


def measure(classified: pl.DataFrame) -> tuple[MeasuredGroup, ...]:
    """Return the measures of a window's requests: of all, by language, by decile of users, and of the exploring ones.

    Requests of users whose editor reported nothing in the window count nowhere: their outcome is not known.

    Args:
        classified: labelled requests with their `bucket` (tasks/labels/accounting.py).
    """
    values = classified.filter(counted()).select(
        "user",
        pl.col("language").fill_null(""),
        "exploring",
        **{name: value.fill_null(False).cast(pl.Int64) for name, value in SUMS.items()},
    )
    served = values.filter(~pl.col("exploring"))
    groups: list[tuple[MeasuredBy, str, pl.DataFrame]] = [("all", "", served)]
    groups += [("language", str(name), rows) for (name,), rows in served.partition_by("language", as_dict=True).items()]
    by_decile = served.join(deciles(served["user"]), on="user").partition_by("decile", as_dict=True)
    groups += [("activity", str(name), rows) for (name,), rows in by_decile.items()]
    groups.append(("sampling", "exploring", values.filter("exploring")))
    found = [MeasuredGroup(by=by, name=name, measures=_summed(rows)) for by, name, rows in groups]
    return tuple(sorted((g for g in found if g.measures.requests), key=_order))


def served(classified: pl.DataFrame) -> tuple[ServedVersion, ...]:
    """Return the acceptance of each version that served in a window, over all projects and in each of the MOST_PROJECTS largest.

    Versions with fewer than two users are left out: they have no interval.

    Args:
        classified: labelled requests with their `bucket` (tasks/labels/accounting.py).
    """
    rows = classified.filter(counted() & ~pl.col("exploring"))
    by_user = rows.group_by("project", "policy_version", "user").agg(
        requests=pl.len(), accepted=ACCEPTED.fill_null(False).cast(pl.Int64).sum()
    )
    largest = by_user.group_by("project").agg(pl.col("requests").sum()).sort("requests", "project", descending=[True, False])
    everyone = by_user.group_by("policy_version", "user").agg(pl.col("requests", "accepted").sum())
    parts = {"": everyone} | {name: by_user.filter(pl.col("project") == name) for name in largest["project"].head(MOST_PROJECTS)}
    return tuple(
        ServedVersion(
            project=project, version=str(version), acceptance=rate(users["accepted"].to_list(), users["requests"].to_list())
        )
        for project, part in parts.items()
        for (version,), users in part.sort("policy_version", "user").partition_by("policy_version", as_dict=True).items()
        if len(users) > 1
    )


def counted() -> pl.Expr:
    """Return whether a request of a window is measured: it is the window's own, and its user's editor reports something there."""
    own = ~pl.col("bucket").cast(pl.String).is_in(LEFT_OUT) & ~pl.col("late")
    return own & (JUDGED & own).any().over("user")


def deciles(users: pl.Series) -> pl.DataFrame:
    """Return `user` and `decile`: 1 for the tenth of users with the fewest requests, up to 10.

    Args:
        users: the user of each request.
    """
    ranked = users.to_frame("user").group_by("user").len("requests").sort("requests", "user")
    return ranked.select("user", decile=pl.int_range(pl.len()) * DECILES // pl.len() + 1)


def measures_table(manifest: Manifest) -> str:
    """Return a cycle's measures by group as a table in Markdown."""
    rows = [
        [group.by, group.name, str(group.measures.requests), *(_cell(value) for value in group.measures.ratios().values())]
        for group in manifest.measures
    ]
    table = [["by", "group", "requests", *RATIOS.values()], ["---"] * (3 + len(RATIOS)), *rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in table) + "\n"


def _cell(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.4g}"


def _summed(rows: pl.DataFrame) -> Measures:
    return Measures(**rows.select(pl.col(*SUMS).sum()).row(0, named=True))


def _order(group: MeasuredGroup) -> tuple[int, int, str]:
    """All, then languages, the most used first, then deciles from the least active, then the exploring ones."""
    place = int(group.name) if group.by == "activity" else -group.measures.requests
    return get_args(MeasuredBy).index(group.by), place, group.name
