"""The users whose requests are read where a window or a test holds more than `collect.most_requests`. Pure.

A keyed hash of the user, without arm, project or time, gives each user a level: half of the users are above level 0, a quarter
above level 1, and so on. A share of 1/2**n is the users of level n and above, so that a smaller sample is a part of each larger
one, and collect, gate and planner read the same users. All requests of such a user are read, none of another one.
"""

import hashlib
from functools import lru_cache

import numpy as np
import polars as pl

LEVELS = 64
KEY = b"tabloop: sample of users"
"""Key of the hash. Users are hashes under the deployment's own secret already, so nobody chooses a name by its level."""
REMEMBERED = 1 << 17
"""Levels of users in memory."""


@lru_cache(REMEMBERED)
def level(user: str) -> int:
    """Return a user's level, n with a chance of 1/2**(n + 1)."""
    return LEVELS - int.from_bytes(hashlib.blake2b(user.encode(), key=KEY, digest_size=8).digest()).bit_length()


def levels(users: pl.Series) -> pl.Series:
    once = users.unique()
    known = pl.Series([level(user) for user in once], dtype=pl.UInt8)
    return users.replace_strict(once, known, return_dtype=pl.UInt8).cast(pl.UInt8).alias("level")  # empty: text otherwise


def depth(share: float) -> int:
    """Return the least level in a share of users, which is a power of one half."""
    return round(-np.log2(share))


def in_sample(users: pl.Series, share: float) -> pl.Series:
    """Return which of these users are in a share of all."""
    return pl.repeat(True, len(users), dtype=pl.Boolean, eager=True) if share >= 1 else levels(users) >= depth(share)


def within(rows: pl.DataFrame, share: float) -> pl.DataFrame:
    """Return the rows whose `user` is in a share of all users."""
    return rows if share >= 1 else rows.filter(in_sample(rows["user"], share))


def share_of(requests: float, most: float) -> float:
    """Return the largest share of users that have at most so many of all requests, each as many as another."""
    return 1.0 if requests <= most else 0.5 ** int(np.ceil(np.log2(requests / most)))


class Sample:
    """The users whose requests are read: a given share, or the largest one that has at most `most` of the requests so far."""

    def __init__(self, most: int | None = None, share: float = 1.0) -> None:
        self.share = share
        self._most, self._counts = most, np.zeros(LEVELS + 1, dtype=np.int64)

    def of(self, rows: pl.DataFrame, counted: pl.Expr | None = None, *, instead: pl.DataFrame | None = None) -> pl.DataFrame:
        """Return the rows of the users in the sample with their `level`.

        All rows are counted first, or those that `counted` selects. The share may fall; what was returned before is then filtered
        by `again`.

        Args:
            instead: rows that were given before, in whose place these come: they count no more.
        """
        if self._most is None and self.share >= 1:
            return rows.with_columns(level=pl.lit(0, pl.UInt8))
        rows = rows.with_columns(levels(rows["user"]))
        if self._most is not None:
            self._counts += _by_level(rows, counted)
            if instead is not None:
                self._counts -= _by_level(instead.with_columns(levels(instead["user"])), counted)
            held = np.cumsum(self._counts[::-1])[::-1]  # by level: the requests of this level and above
            self.share = min(self.share, 0.5 ** int(np.argmax(held <= self._most)) if held[0] > self._most else 1.0)
        return self.again(rows)

    def again(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Return the rows that are still in the sample, by their `level`."""
        return rows if self.share >= 1 else rows.filter(pl.col("level") >= depth(self.share))


def _by_level(rows: pl.DataFrame, counted: pl.Expr | None) -> np.ndarray:
    found = rows["level"] if counted is None else rows.filter(counted)["level"]
    return np.bincount(found.to_numpy(), minlength=LEVELS + 1)
