"""No user, credential or project has more than its share of a batch, whatever was served, by whom, when and how much of it."""

import math
import random
from collections import Counter
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.settings.schema import Collect
from tasks.labels.accounting import BUCKET, cap_shares
from tasks.labels.shares import choose, least_groups, occurrences, sample_shares
from tests.tasks.labels.test_accounting import account
from tests.tasks.made import NOW, completion, feedback

GROUPS = ("user", "credential", "project")
few = st.integers(0, 5)
crowds = st.lists(st.tuples(few, few, few, st.integers(0, 20), st.integers(1, 12)), min_size=1, max_size=12)
shares = st.fixed_dictionaries({name: st.sampled_from([0.05, 0.2, 1 / 3, 0.5, 0.9, 1.0]) for name in GROUPS})


def frame(crowd: list[tuple[int, ...]]) -> pl.DataFrame:
    """Samples: for each entry, so many of a user, a credential and a project from a time on."""
    rows = [
        (f"{i}-{n}", float(at + n), f"u{u}", f"c{c}", f"p{p}") for i, (u, c, p, at, many) in enumerate(crowd) for n in range(many)
    ]
    return pl.DataFrame(rows, ["id", "time", *GROUPS], orient="row")


@settings(max_examples=200)
@given(crowds, shares, st.integers(1, 60), st.randoms())
def test_no_group_has_more_than_its_share_in_any_order(crowd, shares, most: int, draw: random.Random) -> None:
    samples = frame(crowd)
    chosen = samples.with_columns(bucket=choose(samples, shares, most))
    trained = chosen.filter(pl.col("bucket") == "trained")
    assert trained.height <= most
    for name, share in shares.items():
        assert max(Counter(trained[name]).values(), default=0) <= share * trained.height + 1e-6
    order = draw.sample(range(samples.height), samples.height)
    shuffled = samples[order]
    again = shuffled.with_columns(bucket=choose(shuffled, shares, most))
    assert again.sort("id").equals(chosen.sort("id"))
    assert choose(trained, shares, most).unique().to_list() in (["trained"], [])


@given(st.lists(st.integers(1, 60), min_size=1, max_size=12), st.floats(0.05, 1))
def test_with_users_alone_the_batch_is_the_largest(counts: list[int], share: float) -> None:
    samples = frame([(u, 0, 0, 0, n) for u, n in enumerate(counts)])
    found = (choose(samples, {"user": share}, 10**6) == "trained").sum()

    def filled(size: int) -> int:
        return sum(min(n, math.floor(share * size + 1e-9)) for n in counts)

    assert found == max((size for size in range(sum(counts) + 1) if filled(size) >= size), default=0)
    assert bool(found) or len(counts) < least_groups(share) or min(counts) < 1 / share


@given(st.lists(st.integers(0, 4), max_size=30))
def test_occurrences(names: list[int]) -> None:
    assert occurrences(np.array(names, dtype=np.int64)).tolist() == [names[:i].count(name) for i, name in enumerate(names)]


def test_of_a_user_over_the_share_the_newest_stay_and_users_take_turns() -> None:
    samples = frame([(0, 0, 0, 0, 8), (1, 0, 0, 0, 2), (2, 0, 0, 0, 2)])
    kept = samples.filter(choose(samples, {"user": 0.5}, 100) == "trained")
    assert kept["id"].to_list() == ["0-4", "0-5", "0-6", "0-7", "1-0", "1-1", "2-0", "2-1"]
    turns = samples.with_columns(bucket=choose(samples, {"user": 0.5}, 5))
    assert turns.filter(pl.col("bucket") == "trained")["id"].to_list() == ["0-6", "0-7", "1-1", "2-0", "2-1"]
    assert Counter(turns["bucket"]) == {"trained": 5, "over_share": 6, "surplus": 1}


def test_a_flood_of_newer_requests_leaves_its_user_the_share() -> None:
    """40,000 requests of 100 users and 20,000 newer ones of one, which made all of a cycle's samples."""
    honest = pl.DataFrame({"user": [f"u{i % 100}" for i in range(40_000)], "time": [float(i) for i in range(40_000)]})
    flood = pl.DataFrame({"user": ["mallory"] * 20_000, "time": [50_000.0 + i for i in range(20_000)]})
    rows = (
        pl.concat([honest, flood])
        .with_row_index("id")
        .with_columns(pl.col("id").cast(pl.String), credential=pl.lit("c"), project=pl.lit("p"), bucket=pl.lit("trained"))
    )
    found = cap_shares(rows.cast({"bucket": BUCKET}), Collect(max_samples=3600))
    trained = found.filter(pl.col("bucket") == "trained")
    assert trained.height == 3600
    assert (trained["user"] == "mallory").sum() == 3600 // 101 + 1, "a turn as everybody"


def crowd_of(users: int, each: int):
    """Completions and their accepts."""
    names = [f"{u}-{i}" for u in range(users) for i in range(each)]
    served = [completion(n, prefix=n, user=f"u{n.split('-')[0]}", time=NOW + i / 1000) for i, n in enumerate(names)]
    return served, [feedback(c.id, prefix=c.prefix, user=c.user, time=c.time + 1) for c in served]


def test_a_batch_of_one_user_waits_and_a_team_of_three_learns_knowingly() -> None:
    limits = Collect(min_samples=20)
    alone = account(*crowd_of(1, 40), limits=limits)
    assert alone.buckets["trained"] == 0
    assert alone.waiting is not None
    assert alone.waiting.state == "WaitingForUsers"
    assert "max_user_share = 0.2 asks for 5 users" in alone.waiting.reason
    three = crowd_of(3, 20)
    assert account(*three, limits=limits).buckets["trained"] == 0
    team = account(*three, limits=limits.model_copy(update={"max_user_share": 0.5}))
    assert (team.buckets["trained"], team.waiting) == (60, None)
    few = account(*crowd_of(3, 2), limits=limits)
    assert few.waiting is not None and few.waiting.state == "TooFewSamples"


def test_a_cycle_waits_for_labels_that_no_sealed_cycle_had() -> None:
    found = account(*crowd_of(5, 8), limits=Collect(min_samples=20))
    assert found.waiting is None
    seen = replace(found, seen=frozenset(found.samples["id"].head(21)))
    assert seen.samples.height == 40, "what was in the other cycle is trained on again"
    assert seen.waiting is not None and seen.waiting.state == "TooFewNewSamples"
    assert seen.waiting.reason.startswith("19 of 40 samples are new")
    assert replace(found, seen=frozenset(found.samples["id"].head(20))).waiting is None


def test_what_is_quarantined_leaves_the_shares_as_they_are_asked() -> None:
    """Five users of eight each; the rows of one fail validation, and the others are more than a fifth each."""
    found = account(*crowd_of(5, 8), limits=Collect(min_samples=20))
    assert found.buckets["trained"] == 40
    failed = found.quarantine({f"0-{i}": "logprobs_are_finite" for i in range(4)})
    assert (failed.buckets["trained"], failed.buckets["quarantined"]) == (20, 4)
    assert max(Counter(failed.samples["user"]).values()) == 4
    assert failed.quarantine({}).buckets == failed.buckets


@pytest.mark.parametrize("group", GROUPS)
def test_every_group_has_its_setting(group: str) -> None:
    settings = Collect(**{f"max_{group}_share": 0.3})
    assert sample_shares(settings)[group] == 0.3
