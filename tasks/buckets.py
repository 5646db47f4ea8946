"""Every request of the window in exactly one bucket: pure, deterministic, and checked to add up."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import get_args

import polars as pl

from infra.records import Bucket
from infra.settings.schema import Collect
from tasks.lineage import Lineage
from tasks.window import MALFORMED

BUCKETS: tuple[Bucket, ...] = get_args(Bucket)
BUCKET = pl.Enum(BUCKETS)
NEWEST = ["time", "id"]


class Unaccounted(AssertionError):
    """The buckets do not add up to the requests served: data were lost or counted twice."""


@dataclass(frozen=True, eq=False)
class Accounts:
    """All requests of a window."""

    placed: pl.DataFrame
    """A row for each completion, by time, then id: what is known of it and its label, `bucket`, and the `reason` where it is
    quarantined, else the empty text."""
    duplicates: int
    malformed: int
    requests: int
    """Rows served in the window, however often one was delivered."""

    @property
    def samples(self) -> pl.DataFrame:
        """What is trained, without its tokens."""
        return self.placed.filter(pl.col("bucket") == "trained")

    def of(self, completions: Iterable[str]) -> pl.DataFrame:
        """The samples of these completions."""
        return self.samples.join(pl.DataFrame({"id": list(completions)}, {"id": pl.String}), on="id", how="semi")

    @property
    def buckets(self) -> dict[Bucket, int]:
        """Requests by bucket.

        Raises:
            Unaccounted: they do not add up.
        """
        counts = Counter({"duplicate": self.duplicates, "quarantined": self.malformed}) + _count(self.placed["bucket"])
        if sum(counts.values()) != self.requests:
            raise Unaccounted(
                f"buckets {dict(counts)} add up to {sum(counts.values())}, but {self.requests} requests were served"
            )
        return {bucket: counts[bucket] for bucket in BUCKETS}

    @property
    def quarantined(self) -> dict[str, int]:
        """Quarantined requests by reason."""
        return dict(sorted((_count(self._unfit["reason"]) + Counter({MALFORMED: self.malformed})).items()))

    @property
    def reasons(self) -> dict[str, str]:
        """Quarantined requests with their reason, by completion id."""
        return dict(self._unfit.select("id", "reason").iter_rows())

    @property
    def _unfit(self) -> pl.DataFrame:
        return self.placed.filter(pl.col("bucket") == "quarantined")

    def quarantine(self, reasons: Mapping[str, str]) -> "Accounts":
        """Move samples out, each with its reason, by completion id."""
        reason = (
            pl.col("id").replace_strict(reasons, default=None, return_dtype=pl.String) if reasons else pl.lit(None, pl.String)
        )
        return replace(
            self,
            placed=self.placed.with_columns(
                bucket=pl.when(reason.is_not_null()).then(pl.lit("quarantined", BUCKET)).otherwise("bucket"),
                reason=pl.coalesce(reason, "reason"),
            ),
        )


def account(
    labelled: pl.DataFrame,
    *,
    parent: str,
    lineage: Lineage,
    until: float,
    settings: Collect,
    requests: int,
    duplicates: int = 0,
    seen: Collection[str] = frozenset(),
    malformed: int = 0,
) -> Accounts:
    """Put every labelled completion (tasks/join.py) in its bucket.

    Args:
        requests: rows that were served in the window, as they were counted before anything was joined.
        seen: ids that the parent's ancestry was trained on.
    """
    distances = {version: lineage.distance(version, parent) for version in labelled["policy_version"].unique()}
    placed = place(labelled, distances, until, settings.max_staleness, seen)
    placed = cap_users(placed, settings.max_user_share)
    placed = cap_total(placed, settings.max_samples)
    placed = cap_users(placed, settings.max_user_share)
    return Accounts(placed, duplicates, malformed, requests)


def place(
    labelled: pl.DataFrame, distances: Mapping[str, int | None], until: float, max_staleness: int, seen: Collection[str]
) -> pl.DataFrame:
    """The bucket of each request, before shares and totals are capped: the first that fits counts."""
    far = pl.DataFrame(list(distances.items()), {"policy_version": pl.String, "distance": pl.Int64}, orient="row")
    placed = labelled.join(far, on="policy_version", how="left").with_columns(reason=unfit())
    bucket = (
        pl.when(pl.col("id").is_in(pl.Series(list(seen), dtype=pl.String).implode()))
        .then(pl.lit("duplicate"))
        .when("opted_out")
        .then(pl.lit("opted_out"))
        .when(pl.col("time") > until)
        .then(pl.lit("waiting"))
        .when("pinned")
        .then(pl.lit("pinned"))
        .when("withheld")
        .then(pl.lit("withheld"))
        .when(pl.col("reason") != "")
        .then(pl.lit("quarantined"))
        .when(pl.col("distance") > max_staleness)
        .then(pl.lit("stale"))
        .when(pl.col("outcome").is_not_null())
        .then(pl.lit("trained"))
        .when("cache_hit")
        .then(pl.lit("cache_hit"))
        .otherwise(pl.lit("unlabelled"))
    )
    placed = placed.with_columns(bucket=bucket.cast(BUCKET)).drop("distance").sort("time", "id")
    return placed.with_columns(reason=pl.when(pl.col("bucket") == "quarantined").then("reason").otherwise(pl.lit("")))


def unfit() -> pl.Expr:
    """Why what was served cannot be trained on, or the empty text."""
    return (
        pl.when("redacted")
        .then(pl.lit("secret"))
        .when("mixed")
        .then(pl.lit("mixed_weights"))
        .when(pl.col("behaviour_logprobs") == "unknown")
        .then(pl.lit("no_logprobs"))
        .when(pl.col("top_p") < 1)
        .then(pl.lit("cut_distribution"))
        .when(pl.col("finish_reason") == "error")
        .then(pl.lit("engine_error"))
        .when(pl.col("distance").is_null())
        .then(pl.lit("unknown_policy_version"))
        .when(pl.col("outcome").is_not_null(), pl.col("tokens") == 0)
        .then(pl.lit("no_tokens"))
        .otherwise(pl.lit(""))
    )


def cap_users(placed: pl.DataFrame, share: float) -> pl.DataFrame:
    """Keep each user's newest samples, so that nobody has more than a share of what is kept."""
    trained = placed.filter(pl.col("bucket") == "trained")
    cap = user_cap(trained.group_by("user").len()["len"].to_list(), share)
    newest = trained.sort(NEWEST, descending=True).with_columns(rank=pl.int_range(pl.len()).over("user"))
    return _moved(placed, newest.filter(pl.col("rank") >= cap), "over_share")


def user_cap(counts: Sequence[int], share: float) -> int:
    """The largest cap c with c <= share * sum(min(count, c)); with fewer users than 1 / share, equal shares for all."""
    if not counts:
        return 0
    allowed = max(share, 1 / len(counts))
    low, high = 1, max(counts)
    while low < high:
        middle = (low + high + 1) // 2
        # Rounding must not make an equal share look too large.
        if middle <= allowed * sum(min(n, middle) for n in counts) + 1e-9:
            low = middle
        else:
            high = middle - 1
    return low


def cap_total(placed: pl.DataFrame, most: int) -> pl.DataFrame:
    """Keep the newest samples."""
    return _moved(placed, placed.filter(pl.col("bucket") == "trained").sort(NEWEST, descending=True)[most:], "surplus")


def _moved(placed: pl.DataFrame, out: pl.DataFrame, bucket: Bucket) -> pl.DataFrame:
    if out.is_empty():
        return placed
    moves = pl.col("id").is_in(out["id"].implode())
    return placed.with_columns(bucket=pl.when(moves).then(pl.lit(bucket, BUCKET)).otherwise("bucket"))


def _count(values: pl.Series) -> Counter[str]:
    return Counter(dict(values.cast(pl.String).value_counts().iter_rows()))
