"""From events to labelled requests: read, join, label, count, rows. `join_partition` is the whole way, for one partition.

The events of a partition are its own and the requests near it that its impressions may belong to, or that show its settled text
(partitions.py). What leaves it are small rows: the facts of its requests, and matches, which may belong to a neighbour's request.
`label_window` combines them, so that partitions give the same result as one join of everything. A cycle reads its window by it,
and an A/B test the requests that it counts.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import polars as pl

from infra.records import Quarantined
from infra.storage.events.read import malformed_row, time_of
from infra.storage.store import ObjectStore
from tasks.labels import attribution, hindsight
from tasks.labels.partitions import Partition, WindowPlan
from tasks.labels.read import TOKEN_FIELDS, give_back, read_completions, read_events
from tasks.labels.unreported import by_own_rules

FACTS = (
    "late",
    *("id", "time", "project", "user", "credential", "file", "policy_version", "arm", "experiment", "assigned", "assigned_arm"),
    *("temperature", "top_p", "ttft_ms", "total_ms"),
    *("finish_reason", "client", "language", "opted_out", "redacted", "mixed", "behaviour_logprobs", "withheld", "pinned"),
    *("exploring", "blank", "unreported"),
)
"""Columns of a completion that leave its partition, beside its settled text: about 330 bytes."""
TOGETHER = 100_000
"""Requests that are labelled at a time when partitions are merged."""


@dataclass(frozen=True, eq=False)
class JoinedPartition:
    """The result of joining a partition."""

    groups: tuple[tuple[pl.DataFrame, pl.DataFrame], ...]
    """By hash of the completion's id: its completions, each once, without text and tokens, and its impressions that match a
    completion (attribution.match). A frame that comes from another process has memory of its own, free once it is merged."""
    malformed: tuple[Quarantined, ...]
    """Its rows that are not valid completions."""
    duplicates: int
    """Its requests that were delivered again."""
    orphans: int
    """Its impressions that match no completion: forged, or of a completion older than the window."""

    @property
    def facts(self) -> pl.DataFrame:
        """The completions of all groups."""
        return pl.concat(facts for facts, _ in self.groups)

    @property
    def matches(self) -> pl.DataFrame:
        """The impressions of all groups."""
        return pl.concat(matches for _, matches in self.groups)


@dataclass(frozen=True, eq=False)
class LabelledWindow:
    """The requests of a window with their labels."""

    requests: pl.DataFrame
    """The requests, by time, then id, with the columns of attribution.label."""
    duplicates: int
    """Requests that were delivered again."""
    malformed: tuple[Quarantined, ...]
    """Rows that are not valid completions."""
    orphans: int
    """Impressions that match no completion."""


JoinAll = Callable[[Callable[[ObjectStore, Partition], JoinedPartition], Sequence[Partition]], Sequence[JoinedPartition]]
"""Joins partitions with a `partial` of `join_partition` (apart.ReadAll)."""


def join_partition(store: ObjectStore, partition: Partition, *, tokens: bool = True, groups: int = 1) -> JoinedPartition:
    """Return the requests of a partition and the impressions that match a completion.

    Args:
        tokens: whether tokens and settled text are read; False where only counts are needed.
        groups: number of groups of the result, the same for all partitions of a window (`groups_of`).

    Raises:
        InputChanged: an object changed after the window was planned.
    """
    completions, invalid = read_completions(store, partition, partition.reaches, () if tokens else TOKEN_FIELDS)
    if tokens:
        completions = _without_prompts(completions)
    fresh = completions.select("id", "time", "late").filter(~pl.col("late"))
    served, matches, orphans = attribution.attribute(completions, read_events(store, partition), partition.join_seconds)
    del completions  # `served` is a copy
    served = served.with_columns(late=~pl.col("id").is_in(fresh["id"].implode()))
    own = served.filter(partition.owns(served["time"].to_numpy()))
    facts = own.select(*FACTS, *(("prompt", "prompt_tokens") if tokens else ()))
    if tokens:
        settled = hindsight.settle(served, pl.concat([own["id"], matches["served"]]).unique(), partition.hindsight)
        matches = attribution.with_silent(matches, served, own, settled, reports=partition.hindsight.on)
        matches = attribution.cut(matches)
        texts = own.select("id").join(settled, on="id", how="left", maintain_order="left")
        facts = facts.hstack(texts.drop("id", hindsight.STANDS))
    matches = matches.drop("text")
    return JoinedPartition(
        tuple((_own(facts, "id", group, groups), _own(matches, "served", group, groups)) for group in range(groups)),
        tuple(malformed_row(row) for row in invalid if partition.owns(np.array([time_of(row)])).all()),
        int(partition.owns(fresh["time"].to_numpy()).sum()) - own.filter(~pl.col("late")).height,
        orphans,
    )


def _without_prompts(completions: pl.DataFrame) -> pl.DataFrame:
    """Replace the lists of token ids by the hash of the prompt and its number of tokens."""
    prompts = pl.col("prompt_token_ids")
    hashed = completions.with_columns(prompt=prompts.hash(), prompt_tokens=prompts.list.len())
    return hashed.drop("prompt_token_ids", "token_ids")


def label_window(
    store: ObjectStore, plan: WindowPlan, *, tokens: bool = True, part: bool = False, join_all: JoinAll | None = None
) -> LabelledWindow:
    """Return the requests of a planned window with their labels.

    Args:
        tokens: as in join_partition.
        part: as in attribution.label.
        join_all: joins the partitions; by default they are joined here, one after another.
    """
    join = partial(join_partition, tokens=tokens, groups=groups_of(plan.partitions))
    parts = list(join_all(join, plan.partitions) if join_all else (join(store, partition) for partition in plan.partitions))
    malformed, orphans = tuple(row for joined in parts for row in joined.malformed), sum(joined.orphans for joined in parts)
    return LabelledWindow(*merge_partitions(parts, part=part), malformed, orphans)


def groups_of(partitions: Sequence[Partition]) -> int:
    """Return the number of groups in which the requests of partitions are labelled: at most TOGETHER in each, but for chance."""
    return -(-sum(partition.requests for partition in partitions) // TOGETHER) or 1


def merge_partitions(parts: list[JoinedPartition], *, part: bool = False) -> tuple[pl.DataFrame, int]:
    """Return all partitions' completions with their labels, by time, then id, and the number of requests delivered again.

    A group is labelled at a time, and `parts` is emptied, so that only the result is in memory as a whole. `part` is as in
    attribution.label.
    """
    give_back()
    repeated = sum(joined.duplicates for joined in parts)
    divided, found = [list(joined.groups) for joined in parts], list[pl.DataFrame]()
    parts.clear()
    while divided[0]:
        labelled, again = _merge([groups.pop() for groups in divided])
        found.append(labelled)
        repeated += again
    labelled = pl.concat(found)
    if len(found) > 1:
        found.clear()
        order = labelled.select(pl.arg_sort_by("time", "id")).to_series()
        # A column at a time: DataFrame.sort has all of them in memory twice.
        labelled = pl.DataFrame([labelled.drop_in_place(name).gather(order) for name in labelled.columns])
    return labelled if part else by_own_rules(labelled), repeated


def _own(rows: pl.DataFrame, name: str, group: int, groups: int) -> pl.DataFrame:
    """Return the rows of a group, by a hash of the id in a column."""
    return rows.filter(pl.col(name).hash() % groups == group) if groups > 1 else rows


def _merge(parts: Sequence[tuple[pl.DataFrame, pl.DataFrame]]) -> tuple[pl.DataFrame, int]:
    """Return the completions of a group with their labels, and the number of those delivered again.

    `parts`: facts and matches of each partition.
    """
    facts = pl.concat([facts for facts, _ in parts])
    fresh = facts.filter(~pl.col("late"))["id"]
    completions = facts.sort("time", "id").unique("id", keep="last", maintain_order=True)
    if fresh.len() < facts.height:
        completions = completions.with_columns(late=~pl.col("id").is_in(fresh.implode()))
    repeated = fresh.len() - completions.filter(~pl.col("late")).height
    matches = pl.concat([matches for _, matches in parts])
    return attribution.label(completions, matches, part=True), repeated
