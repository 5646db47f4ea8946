"""Put every request of a window in exactly one bucket. Pure and deterministic; the sum of the buckets is checked."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast, get_args

import polars as pl

from infra.pages.figures import sampled
from infra.pages.markdown import table
from infra.records import Bucket, Manifest
from infra.records.few import Few
from infra.settings.schema import Collect
from infra.storage.events.read import MALFORMED
from infra.storage.few import in_words
from tasks.labels.pace import too_slow
from tasks.labels.shares import choose, least_groups, sample_shares

BUCKETS: tuple[Bucket, ...] = get_args(Bucket)
BUCKET = pl.Enum(BUCKETS)
COUNTS = ("tokens", "logprobs", "logprob_lowest", "logprob_highest")
"""Counts of the sampled tokens and bounds of their log-probabilities; 0 where they are not trained on."""
TEXT_OF: tuple[Bucket, ...] = ("trained", "waiting", "held_out")
"""Buckets of which the settled texts are read: of a million requests, all texts are most of the memory of a cycle."""


class Unaccounted(AssertionError):
    """The buckets do not add up to the requests served: data were lost or counted twice."""


@dataclass(frozen=True)
class WindowCounts:
    """Rows of a window, counted before the rows were joined."""

    requests: int
    """Rows that were served, repeated deliveries included."""
    duplicates: int = 0
    """Rows that were delivered again."""
    malformed: int = 0
    """Rows that are not valid completions."""
    unsampled: int = 0
    """Rows of users outside the sample, deliveries and valid completions or not."""
    share: float = 1.0
    """Share of the users in the sample (tasks/labels/sampled.py)."""


@dataclass(frozen=True)
class Waiting:
    """Why a cycle does not begin yet, or stops."""

    state: str
    """Name of the state in which the flow ends."""
    reason: str


@dataclass(frozen=True, eq=False)
class RequestAccounting:
    """All requests of a window, each in one bucket."""

    classified: pl.DataFrame
    """A row for each completion, by time, then id: its facts, its label, its `bucket`, and its `reason` where it is quarantined
    (else the empty text). The settled text is null outside the buckets of TEXT_OF."""
    counts: WindowCounts
    settings: Collect
    seen: Collection[str] = frozenset()
    """Ids of completions that a sealed cycle has had, whose candidate is not the parent of the next one: they are trained on
    again, with new ones."""

    @property
    def requests(self) -> int:
        """Rows that were served in the window, repeated deliveries included."""
        return self.counts.requests

    @property
    def samples(self) -> pl.DataFrame:
        """The completions that are trained, without their tokens."""
        return self.classified.filter(pl.col("bucket") == "trained")

    def samples_of(self, completions: Iterable[str]) -> pl.DataFrame:
        """Return the samples of these completions, given by id."""
        return self.samples.join(pl.DataFrame({"id": list(completions)}, {"id": pl.String}), on="id", how="semi")

    @property
    def buckets(self) -> dict[Bucket, int]:
        """Requests by bucket. Raises Unaccounted: the buckets do not add up to the requests."""
        counts = Counter({"duplicate": self.counts.duplicates, "quarantined": self.counts.malformed})
        counts["unsampled"] = self.counts.unsampled
        counts += _count(self.classified["bucket"])
        if sum(counts.values()) != self.requests:
            raise Unaccounted(
                f"buckets {dict(counts)} add up to {sum(counts.values())}, but {self.requests} requests were served"
            )
        return {bucket: counts[bucket] for bucket in BUCKETS}

    @property
    def quarantined(self) -> dict[str, int]:
        counts = _count(self._quarantined["reason"]) + Counter({MALFORMED: self.counts.malformed})
        return dict(sorted(counts.items()))

    @property
    def _quarantined(self) -> pl.DataFrame:
        return self.classified.filter(pl.col("bucket") == "quarantined")

    def quarantine(self, reasons: Mapping[str, str]) -> "RequestAccounting":
        """Return the accounting with these samples moved to the quarantine; `reasons` are by completion id.

        The shares hold for the samples that remain.
        """
        reason = (
            pl.col("id").replace_strict(reasons, default=None, return_dtype=pl.String) if reasons else pl.lit(None, pl.String)
        )
        moved = self.classified.with_columns(
            bucket=pl.when(reason.is_not_null()).then(pl.lit("quarantined", BUCKET)).otherwise("bucket"),
            reason=pl.coalesce(reason, "reason"),
        )
        return replace(self, classified=cap_shares(moved, self.settings))

    @property
    def few(self) -> Few | None:
        """Return when samples that are too few will suffice at the rate so far; None where they do, or no rate is known."""
        samples, asked = self.samples.height, self.settings.min_samples
        when = self.classified.filter(~pl.col("late"))["time"]
        first, last = cast(float | None, when.min()), cast(float | None, when.max())
        if samples >= asked or first is None or last is None:
            return None
        return too_slow(samples, asked, last - first, last)

    @property
    def waiting(self) -> Waiting | None:
        """Return why the samples are too few for a cycle; None where they suffice."""
        samples, asked, buckets = self.samples.height, self.settings.min_samples, self.buckets
        if samples >= asked:
            new = samples - self.samples_of(self.seen).height
            if new >= asked:
                return None
            return Waiting(
                "TooFewNewSamples",
                f"{new} of {samples} samples are new: the others were in a cycle whose candidate is not the champion; "
                f"collect.min_samples asks for {asked} new ones",
            )
        held = buckets["over_share"] + buckets["new_user"]
        if samples + held < asked:
            reason = f"{samples} samples, collect.min_samples asks for {asked}"
            return Waiting("TooFewSamples", f"{reason}; {in_words(few)}" if (few := self.few) else reason)
        users, share = self.samples["user"].n_unique(), self.settings.max_user_share
        return Waiting(
            "WaitingForUsers",
            f"{samples} samples of {users} users, collect.min_samples asks for {asked}: {buckets['over_share']} more are over a "
            f"share (collect.max_user_share = {share:g} asks for {least_groups(share)} users or more with as many samples each; "
            f"also collect.max_credential_share, collect.max_project_share), {buckets['new_user']} are of users not known "
            "yet (collect.max_new_users); a small team sets these by infra/docs/how/caps.md",
        )


def classify(
    labelled: pl.DataFrame,
    distances: Mapping[str, int | None],
    until: float,
    settings: Collect,
    counts: WindowCounts,
    trained: Collection[str] = frozenset(),
    held_out: Collection[str] = frozenset(),
) -> RequestAccounting:
    """Put every labelled completion in its bucket.

    A request from before the window (`late`) counts only if it is trained on: an earlier cycle has counted it in another bucket.

    Args:
        labelled: completions with their labels (tasks/labels/attribution.py) and `admitted` (tasks/labels/users.py).
        distances: updates between each policy version and the version to train; None for a version that the registry lacks.
        until: requests after this time, in Unix seconds, wait for their labels.
        trained: ids of the completions on which the parent's ancestry was trained.
        held_out: files, by keyed hash, that training never touches.
    """
    classified = assign_buckets(labelled, distances, until, settings.max_staleness, trained, held_out)
    classified = cap_shares(classified, settings)
    classified = classified.filter(~pl.col("late") | (pl.col("bucket") == "trained"))
    late = int(classified["late"].sum())
    return RequestAccounting(_with_texts_of(classified, TEXT_OF), replace(counts, requests=counts.requests + late), settings)


def _with_texts_of(classified: pl.DataFrame, buckets: Collection[Bucket]) -> pl.DataFrame:
    """Return the requests with the settled texts of these buckets alone, copied: a column that shared them would hold all."""
    read = classified["bucket"].is_in(list(buckets))
    texts = pl.Series("settled", classified["settled"].filter(read).to_list(), pl.String)
    at = pl.select(pl.when(read).then(read.cum_sum() - 1)).to_series()
    return classified.with_columns(texts.gather(at))


def account_rows(buckets: Mapping[Bucket, int], quarantined: Mapping[str, int], requests: int) -> list[dict[str, Any]]:
    """Return every bucket with its share, the quarantine's reasons, and the sum, as rows of a table."""
    total = max(requests, 1)
    rows = [{"bucket": name, "requests": count, "share": f"{count / total:.1%}"} for name, count in buckets.items() if count]
    reasons = [
        {"bucket": f"quarantined: {reason}", "requests": count, "share": f"{count / total:.1%}"}
        for reason, count in quarantined.items()
    ]
    return [*rows, *reasons, {"bucket": "all requests", "requests": requests, "share": "100%"}]


def account_page(manifest: Manifest) -> str:
    """Return the same table in Markdown."""
    rows = account_rows(manifest.buckets, manifest.quarantined, manifest.requests)
    title = f"# {manifest.cycle}: every request once{sampled(manifest.share)}\n"
    return f"{title}\n{table(('bucket', 'requests', 'share'), (row.values() for row in rows))}\n"


def assign_buckets(
    labelled: pl.DataFrame,
    distances: Mapping[str, int | None],
    until: float,
    max_staleness: int,
    trained: Collection[str],
    held_out: Collection[str] = frozenset(),
) -> pl.DataFrame:
    """Return each request with its bucket, the first that applies, before shares and totals are capped."""
    updates = pl.DataFrame(list(distances.items()), {"policy_version": pl.String, "distance": pl.Int64}, orient="row")
    versions = labelled.select("policy_version")  # alone: a join copies every other column
    distance = versions.join(updates, on="policy_version", how="left", maintain_order="left")["distance"]
    classified = with_targets(labelled.with_columns(distance), max_staleness)
    classified = classified.with_columns(reason=first_of(quarantine_conditions().items(), ""))
    labelled_at_all = pl.col("outcome").is_not_null()
    conditions: tuple[tuple[Bucket, pl.Expr], ...] = (
        ("duplicate", pl.col("id").is_in(pl.Series(list(trained), dtype=pl.String).implode())),
        ("opted_out", pl.col("opted_out")),
        ("waiting", pl.col("time") > until),
        ("held_out", pl.col("file").is_in(pl.Series(list(held_out), dtype=pl.String).implode())),
        ("pinned", pl.col("pinned")),
        ("new_user", labelled_at_all & ~pl.col("admitted")),
        ("trained", pl.col("outcome") == "unjudged"),
        ("withheld", pl.col("withheld")),
        ("quarantined", pl.col("reason") != ""),
        ("stale", pl.col("distance") > max_staleness),
        ("trained", labelled_at_all),
        ("cache_hit", pl.col("cache_hit")),
    )
    bucket = first_of(conditions, "unlabelled")
    classified = classified.with_columns(bucket=bucket.cast(BUCKET)).drop("distance").sort("time", "id")
    return classified.with_columns(reason=pl.when(pl.col("bucket") == "quarantined").then("reason").otherwise(pl.lit("")))


def with_targets(labelled: pl.DataFrame, max_staleness: int) -> pl.DataFrame:
    """Return the requests with the targets of those without an answer; without a target these lose the outcome `unjudged`.

    Their sampled tokens count where they can be corrected for the policy that sampled them and the settled text gives them a
    reward, else their settled text alone does. Of a version that the registry lacks nothing counts.
    """
    judged = pl.col("outcome").cast(pl.String).fill_null("") != "unjudged"
    sound = ~pl.col("mixed") & (pl.col("behaviour_logprobs") == "known") & (pl.col("top_p") >= 1)
    sound &= (
        (pl.col("finish_reason") != "error") & (pl.col("distance") <= max_staleness) & pl.col("kept_characters").is_not_null()
    )
    sampled = judged | (sound & (pl.col("tokens") > 0)).fill_null(False)
    usable = (sampled | pl.col("settled").is_not_null()) & pl.col("distance").is_not_null() & (pl.col("prompt_tokens") > 0)
    counts = [pl.when(sampled).then(name).otherwise(pl.lit(0, labelled.schema[name])).alias(name) for name in COUNTS]
    return labelled.with_columns(*counts, outcome=pl.when(judged | usable).then("outcome"))


def first_of(conditions: Iterable[tuple[str, pl.Expr]], default: str) -> pl.Expr:
    """Return the name of the first condition that holds, else the default."""
    return pl.coalesce(*(pl.when(condition).then(pl.lit(name)) for name, condition in conditions), pl.lit(default))


def quarantine_conditions() -> dict[str, pl.Expr]:
    """Return the condition of each quarantine reason (meanings: tasks/labels/meanings.json); the first that holds counts."""
    return {
        "secret": pl.col("redacted"),
        "mixed_weights": pl.col("mixed"),
        "no_logprobs": pl.col("behaviour_logprobs") == "unknown",
        "cut_distribution": pl.col("top_p") < 1,
        "engine_error": pl.col("finish_reason") == "error",
        "unknown_policy_version": pl.col("distance").is_null(),
        "no_tokens": (pl.col("outcome").cast(pl.String).fill_null("unjudged") != "unjudged") & (pl.col("tokens") == 0),
    }


def cap_shares(classified: pl.DataFrame, settings: Collect) -> pl.DataFrame:
    """Keep the samples of a batch in which no user, credential or project has more than its share."""
    shares = sample_shares(settings)
    trained = classified.lazy().filter(pl.col("bucket") == "trained").select("id", "time", *shares).collect()
    chosen = trained.select("id", chosen=choose(trained, shares, settings.max_samples).cast(BUCKET))
    for bucket in ("over_share", "surplus"):
        classified = _move(classified, chosen.filter(pl.col("chosen") == bucket), bucket)
    return classified


def _move(classified: pl.DataFrame, surplus: pl.DataFrame, bucket: Bucket) -> pl.DataFrame:
    if surplus.is_empty():
        return classified
    moved = pl.col("id").is_in(surplus["id"].implode())
    return classified.with_columns(bucket=pl.when(moved).then(pl.lit(bucket, BUCKET)).otherwise("bucket"))


def _count(values: pl.Series) -> Counter[str]:
    return Counter(dict(values.cast(pl.String).value_counts().iter_rows()))
