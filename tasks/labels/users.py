"""The known users, who count in training and in A/B tests, and the time from which they count.

A credential that may name users can invent them. So at most `collect.max_new_users` users a credential and day, the first to send
a request, become known; requests before that count nowhere. The known users pass from cycle to cycle in a register, an
object of the last sealed cycle, a row a user:

    user, credential   the credential with which the user became known
    admitted           time of the first request that counts
    last               time of the last request that was counted
    requests           requests since `admitted`, up to `last`
"""

import io
from collections import Counter
from collections.abc import Collection, Iterator

import polars as pl

from infra.records import Manifest
from infra.storage import cycles
from infra.storage.events.read import erased_subjects
from infra.storage.store import ObjectStore
from tasks.labels.sampled import share_of

DAY = 86_400.0
KNOWN_DAYS = 90.0
"""Days without a request after which a user is new again."""
REGISTER = {"user": pl.String, "credential": pl.String, "admitted": pl.Float64, "last": pl.Float64, "requests": pl.Int64}
NOBODY = pl.DataFrame(schema=REGISTER)
USERS = "users-"
"""Prefix of the name of a cycle's register."""


def admit(requests: pl.DataFrame, known: pl.DataFrame, max_new_users: int) -> pl.DataFrame:
    """Return the register with the new users who become known, and with these requests counted.

    Args:
        requests: columns `user`, `credential` and `time`, in any order.
        known: the register before.
        max_new_users: users of a credential who become known a day (UTC); 0: all.
    """
    day = (pl.col("time") // DAY).alias("day")
    by_day = requests.group_by("user", "credential", day).agg(admitted=pl.col("time").min())
    waiting = by_day.join(known, on="user", how="anti").sort("admitted", "user", "credential")
    places: Counter[tuple[str, float]] = Counter(known.select("credential", pl.col("admitted") // DAY).iter_rows())
    new: dict[str, tuple[str, float]] = {}
    for user, credential, number, first in waiting.select("user", "credential", "day", "admitted").iter_rows():
        # One by one: a user of two credentials takes the place of one of them alone.
        if user not in new and (not max_new_users or places[credential, number] < max_new_users):
            places[credential, number] += 1
            new[user] = (credential, first)
    rows = [(user, credential, admitted, 0.0, 0) for user, (credential, admitted) in new.items()]
    return _counted(requests, pl.concat([known, pl.DataFrame(rows, REGISTER, orient="row")]))


def _counted(requests: pl.DataFrame, register: pl.DataFrame) -> pl.DataFrame:
    """Count the requests after each user's last one; windows overlap, and no request counts twice."""
    counting = requests.join(register.select("user", "admitted", "last"), on="user")
    counting = counting.filter(pl.col("time") >= pl.col("admitted"), pl.col("time") > pl.col("last"))
    more = counting.group_by("user").agg(more=pl.len().cast(pl.Int64), newest=pl.col("time").max())
    counted = register.join(more, on="user", how="left").with_columns(
        requests=pl.col("requests") + pl.col("more").fill_null(0), last=pl.coalesce("newest", "last")
    )
    return counted.select(*REGISTER).sort("user")


def with_admission(labelled: pl.DataFrame, register: pl.DataFrame) -> pl.DataFrame:
    """Add the column `admitted`: whether the request's user was known at its time."""
    since = register.select("user", since="admitted")
    # Of two columns alone: a join copies every other one.
    joined = labelled.select("user", "time").join(since, on="user", how="left", maintain_order="left")
    admitted = joined.select((pl.col("time") >= pl.col("since")).fill_null(False).alias("admitted"))
    return labelled.with_columns(admitted.to_series())


def with_history(register: pl.DataFrame, before: float, requests: int) -> Collection[str]:
    """Return the users who were known before a time and have at least so many requests."""
    known = register.filter(pl.col("admitted") < before, pl.col("requests") >= requests)
    return frozenset(known["user"])


def read(store: ObjectStore, oldest: float) -> pl.DataFrame:
    """Return the register of the last sealed cycle that has one, without those erased or silent since `oldest`."""
    index = cycles.index(store)
    for cycle in reversed(cycles.sealed(index)):
        register = key(cycle, cycles.manifest_of(store, cycle).samples.sha256)
        if register.rsplit("/", 1)[-1] in index[cycle]:
            known = pl.read_parquet(io.BytesIO(store.get(register))).select(*REGISTER).filter(pl.col("last") >= oldest)
            return known.filter(~pl.col("user").is_in(list(erased_subjects(store).users)))
    return NOBODY


def share_for(store: ObjectStore, seconds: float, most: float) -> float:
    """Return the share of users who make at most so many requests in some seconds, at the rate of the newest cycle's window.

    They are in the sample of that cycle, which alone knows its users.
    """
    last = next(_windows(store), None)
    return 1.0 if last is None else min(last.share, share_of(_rate(last) * seconds, most))


def share_before(store: ObjectStore, now: float, seconds: float, most: float) -> float:
    """Return the share of users who made at most so many requests in the last seconds, by the windows of the cycles.

    The requests of a window are spread evenly over it, and its rate holds until the next window, or until now. The users are in
    the sample of the newest cycle, as for `share_for`.
    """
    share, made, begin, end = 1.0, 0.0, now - seconds, now
    for number, window in enumerate(_windows(store)):
        share = share if number else window.share
        # The cycle after a rejected candidate reads that one's requests again: a window counts up to the next one's begin.
        made += _rate(window) * max(end - max(window.since, begin), 0.0)
        end = min(end, window.since)
        if end <= begin:
            break
    return min(share, share_of(made, most))


def _windows(store: ObjectStore) -> Iterator[Manifest]:
    """Yield the manifests of the sealed cycles that read requests, the newest first."""
    manifests = (cycles.manifest_of(store, cycle) for cycle in reversed(cycles.sealed(cycles.index(store))))
    return (manifest for manifest in manifests if not manifest.learned)


def _rate(window: Manifest) -> float:
    """Return the requests a second of a cycle's window."""
    return window.requests / max(window.until - window.since, 1.0)


def key(cycle: str, samples_sha256: str) -> str:
    """Return the key of a cycle's register; the samples' checksum ties it to the manifest that names these samples."""
    return cycles.key(cycle, f"{USERS}{samples_sha256}.parquet")


def write(store: ObjectStore, cycle: str, samples_sha256: str, register: pl.DataFrame) -> None:
    """Write a cycle's register, without users who were erased since it was read."""
    body = io.BytesIO()
    known = register.filter(~pl.col("user").is_in(list(erased_subjects(store).users)))
    known.write_parquet(body, compression="zstd")
    store.put(key(cycle, samples_sha256), body.getvalue())
