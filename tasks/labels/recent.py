"""What became of a user's newest requests, before a cycle too: `tabloop requests --user NAME`."""

import io
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import polars as pl
from pydantic import Field

from infra.records import Record
from infra.settings.schema import Collect
from infra.storage import cycles
from infra.storage.store import ObjectStore
from tasks.labels.explain import key
from tasks.labels.partitions import plan_window
from tasks.labels.pipeline import label_window
from tasks.labels.window import Window

ANSWERS: Mapping[str, str] = {
    "accepted": "accepted",
    "partially_accepted": "accepted in part",
    "rejected": "not accepted",
    "nothing": "the model had nothing to show",
    "unjudged": "no answer yet",
}


class RecentRequest(Record):
    """A request, and what is known about it now."""

    id: str
    """Id of the completion."""
    time: float
    """When the request arrived, in Unix seconds."""
    project: str
    language: str
    """Language of the code; empty if unknown."""
    version: str
    """Version that answered."""
    answer: str
    """What the developer did, in words (ANSWERS)."""
    accepted_characters: int | None
    """Characters that were accepted; none without an answer."""
    settled: str
    """What stands at the place now: "known", or why it is not known yet (infra/docs/how/labels.md)."""
    kept_characters: int | None
    """Characters of the completion in the settled text; none where that is not known."""
    flags: tuple[str, ...] = Field(default=())
    """What keeps it out of training: opted out, secret removed, withheld, pinned, exploring."""
    cycle: str = ""
    """The newest cycle whose window held it; empty before one."""
    bucket: str = ""
    """Where that cycle put it."""

    def __str__(self) -> str:
        when = datetime.fromtimestamp(self.time, UTC).strftime("%m-%d %H:%M:%S")
        kept = f", {self.kept_characters} characters stand" if self.kept_characters is not None else ""
        settled = "settled text known" if self.settled == "known" else f"settled text not known ({self.settled})"
        flags = "".join(f"; {flag}" for flag in self.flags)
        cycle = f"; {self.cycle}: {self.bucket}" if self.cycle else "; in no cycle yet"
        return f"{when}  {self.id}  v{self.version}  {self.language or '-':<4}  {self.answer}; {settled}{kept}{flags}{cycle}"


FLAGS = {
    **{"opted_out": "opted out", "redacted": "a secret was removed", "withheld": "withheld", "pinned": "pinned"},
    "exploring": "exploring",
}


def recent(store: ObjectStore, collect: Collect, user: str, now: float, hours: float, last: int) -> list[RecentRequest]:
    """Return the newest requests of a user, oldest first.

    Args:
        user: keyed hash.
        now: Unix seconds.
        hours: age of the oldest request that is looked for.
        last: most requests.
    """
    since = now - 3_600 * hours
    window = Window(since=since, until=now, oldest=since, known={})
    plan = plan_window(store, window, now, collect.join_seconds, hindsight=collect.hindsight)
    if not plan.partitions:
        return []
    requests = label_window(store, plan).requests
    own = requests.filter(pl.col("user") == user, pl.col("time") > since).tail(last)
    buckets = _buckets(store, own["id"], since)
    return [_request(row, *buckets.get(row["id"], ("", ""))) for row in own.iter_rows(named=True)]


def _request(row: Mapping[str, object], cycle: str, bucket: str) -> RecentRequest:
    outcome = str(row["outcome"]) if row["outcome"] is not None else "unjudged"
    return RecentRequest.model_validate(
        {
            **{name: row[name] or "" for name in ("id", "time", "project", "language")},
            "version": row["policy_version"],
            "answer": ANSWERS[outcome],
            "accepted_characters": row["accepted_characters"],
            "settled": "known" if row["settled"] is not None else str(row["unsettled"] or "not_shown"),
            "kept_characters": row["kept_characters"],
            "flags": tuple(words for name, words in FLAGS.items() if row[name]),
            "cycle": cycle,
            "bucket": bucket,
        }
    )


def _buckets(store: ObjectStore, ids: Sequence[str] | pl.Series, since: float) -> dict[str, tuple[str, str]]:
    """Return cycle and bucket of requests, by id, of the newest cycle whose window held each."""
    found: dict[str, tuple[str, str]] = {}
    for index in cycles.by_loop(store).values():
        for cycle in reversed(cycles.sealed(index)):
            manifest = cycles.manifest_of(store, cycle)
            if manifest.until < since:
                break
            name = key(cycle, manifest.samples.sha256)
            if name.rsplit("/", 1)[-1] in index[cycle]:
                rows = pl.read_parquet(io.BytesIO(store.get(name)), columns=["id", "bucket"])
                for identifier, bucket in rows.filter(pl.col("id").is_in(pl.Series(ids).implode())).iter_rows():
                    found.setdefault(identifier, (cycle, str(bucket)))
    return found
