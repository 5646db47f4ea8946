"""The measures of completions, one definition each: expressions over labelled requests, and their sums by group. Pure.

The ratios of the sums are in infra/records/measures.py; infra/docs/how/measures.md has them in words. The A/B test takes its
metrics from the same expressions (tasks/experiments/counting/metrics.py), and the reward takes the kept characters.
"""

from typing import get_args

import polars as pl

from infra.model import time_saved
from infra.records import QUICK_MS, RATIOS, Bucket, LabelOutcome, Manifest, MeasuredGroup, Measures, ServedVersion
from infra.records.measures import OTHER_LANGUAGES, MeasuredBy
from tasks.statistics.answered import per_request

LEFT_OUT: tuple[Bucket, ...] = ("duplicate", "opted_out", "waiting", "pinned")
"""Buckets whose requests are measured in another cycle, or in none."""
DECILES = 10
MOST_PROJECTS = 20
"""Projects whose acceptance by version a manifest has."""
MOST_LANGUAGES = 30
"""Languages with a group of their own, those with the most requests: clients may make up any number of names."""

JUDGED = pl.col("outcome").is_in(get_args(LabelOutcome)).fill_null(False)
"""The developer decided about it."""
_REASON = pl.col("not_taken").fill_null("")
_NOTHING = pl.col("withheld") | pl.col("blank") | _REASON.is_in(["cancelled", "empty"])
SHOWN = JUDGED | ~(_NOTHING | (pl.col("finish_reason") == "disconnected"))
"""The developer saw it. An editor closes the connection of a completion that is typed over; one that was shown has an answer."""
VISIBLE = JUDGED | ~_NOTHING
"""Text may have been shown. Unlike SHOWN it includes requests whose connection the editor closed: they are missing data, not
requests without text."""
ANSWERED = JUDGED | (VISIBLE & ~pl.col("cache_hit") & (pl.col("unreported") | _REASON.is_in(["typed_through", "replaced"])))
"""The outcome is known: the developer decided, or the editor says why nothing was taken, or leaves it unreported by its own rules
and reports other requests of the user. A completion that Continue shows again from its cache may be accepted then."""
ACCEPTED = JUDGED & (pl.col("accepted_characters") >= 0.5 * pl.max_horizontal("shown_characters", pl.lit(1)))
"""At least half of the shown text was accepted, or is still there where the editor reports that."""
_KNOWN = pl.when(pl.col("kept_characters").is_not_null()).then(pl.min_horizontal("kept_characters", "shown_characters"))
KEPT = pl.when(JUDGED).then(pl.min_horizontal("accepted_characters", _KNOWN)).otherwise(0)
"""Accepted characters that stand in the settled text; all accepted ones where that is unknown (null values are ignored)."""
COMPLETED = pl.when(pl.col("written").is_not_null()).then(KEPT)
TYPED = pl.max_horizontal(pl.col("written") - KEPT, pl.lit(0))
REJECTED = JUDGED & (pl.col("outcome") == "rejected")
CANCELLED = REJECTED & (_REASON == "rejected")
"""The developer dismissed it."""
QUICK = REJECTED & (pl.col("seen_ms") < QUICK_MS)
"""Rejected before it can have been read."""
_READ = pl.when(ACCEPTED | pl.col("kept_characters").is_null()).then("shown_characters")
_RIGHT = pl.max_horizontal("taken_characters", "kept_characters") + time_saved.FIXATION_CHARACTERS
_SEEN = pl.min_horizontal("shown_characters", _RIGHT)
_KEYS = pl.col("taken_keys") * KEPT / pl.col("taken_characters")
_DELETED = pl.col("taken_characters") - KEPT  # the rest of a partial accept was never in the file
_TAKEN = JUDGED & (pl.col("taken_characters") > 0)  # a part of any size spares its keys
SAVED = (
    pl.when(_TAKEN).then(time_saved.accepting(_KEYS, _DELETED)).otherwise(0.0)
    - pl.when(JUDGED).then(time_saved.reading(_READ.otherwise(_SEEN))).otherwise(0.0)
).fill_null(0.0)
"""Seconds that a completion saved, less its reading (infra/model/time_saved.py); negative where reading cost more.

The keys are those of the accepted text (time_saved.keystrokes); where a part of it stands, in proportion to the kept characters,
as its blanks are (infra/model/kept_text.py). All of an accepted text is read. Where less than half was accepted, that part is
read and one fixation more; of a rejected text the part up to its first wrong word. Where the settled text is unknown, all is
read, the upper bound. A text that an editor does not report costs no reading, since nothing of it is known: the saving is too
high there."""
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
    groups += [("language", str(name), rows) for (name,), rows in _largest(served).partition_by("language", as_dict=True).items()]
    by_decile = served.join(deciles(served["user"]), on="user").partition_by("decile", as_dict=True)
    groups += [("activity", str(name), rows) for (name,), rows in by_decile.items()]
    groups.append(("sampling", "exploring", values.filter("exploring")))
    found = [MeasuredGroup(by=by, name=name, measures=_summed(rows)) for by, name, rows in groups]
    return tuple(sorted((g for g in found if g.measures.requests), key=_order))


def _largest(served: pl.DataFrame) -> pl.DataFrame:
    """Return requests with OTHER_LANGUAGES in place of the languages beyond MOST_LANGUAGES."""
    ranked = served.group_by("language").len("requests").sort("requests", "language", descending=[True, False])
    beyond = ranked["language"].slice(MOST_LANGUAGES).to_list()
    return served.with_columns(
        pl.when(pl.col("language").is_in(beyond)).then(pl.lit(OTHER_LANGUAGES)).otherwise("language").alias("language")
    )


def served(classified: pl.DataFrame) -> tuple[ServedVersion, ...]:
    """Return the acceptance of each version that served in a window, over all projects and in each of the MOST_PROJECTS largest.

    Versions with fewer than two users, or without an answer, are left out: they have no interval.

    Args:
        classified: labelled requests with their `bucket` (tasks/labels/accounting.py).
    """
    rows = classified.filter(counted() & ~pl.col("exploring"))
    sums = {"accepted": ACCEPTED.fill_null(False), "judged": ANSWERED, "visible": VISIBLE, "requests": pl.lit(1)}
    keys = ("project", "policy_version", "user")
    by_user = (
        rows.select(*keys, **{name: value.cast(pl.Float64) for name, value in sums.items()})
        .group_by(keys)
        .agg(pl.col(*sums).sum())
    )
    largest = by_user.group_by("project").agg(pl.col("requests").sum()).sort("requests", "project", descending=[True, False])
    everyone = by_user.group_by("policy_version", "user").agg(pl.col(*sums).sum())
    parts = {"": everyone} | {name: by_user.filter(pl.col("project") == name) for name in largest["project"].head(MOST_PROJECTS)}
    return tuple(
        ServedVersion(project=project, version=str(version), acceptance=found, answered=True)
        for project, part in parts.items()
        for (version,), users in part.sort("policy_version", "user").partition_by("policy_version", as_dict=True).items()
        if (found := per_request(*(users[name].to_numpy() for name in sums)))
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
