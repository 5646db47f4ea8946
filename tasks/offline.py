"""Labels that Continue kept on a developer's disk, for a first offline training set: python -m tasks.offline FILE --user NAME

    ~/.continue/dev_data/0.2.0/autocomplete.jsonl, one event a line (schema 0.1.0 too)

Nobody knows which policy sampled these texts, nor with which probabilities: they are kept as records of their own, which have no
field for them. A record of this kind is not a sample, and is refused wherever samples are read; PPO never sees one.

Every line ends in exactly one bucket, and the buckets add up. Secrets are taken out first, users stand there as keyed hashes, and
the same file imported again is the same object.
"""

import argparse
import hashlib
import json
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, get_args

from infra import fim
from infra import settings as settings_
from infra.events import tombstones
from infra.identity import user_hash
from infra.records import OfflineExample
from infra.redaction import Redactor
from infra.store import ObjectStore, to_parquet
from tasks.labels.attribution import after_selected

Bucket = Literal["kept", "superseded", "cache_hit", "unjudged", "no_code", "malformed", "other_event"]
BUCKETS: tuple[Bucket, ...] = get_args(Bucket)
EVENT = "autocomplete"


@dataclass(frozen=True)
class Imported:
    """What became of a file's lines."""

    examples: tuple[OfflineExample, ...]
    """In the order of their completions."""
    buckets: dict[Bucket, int]
    """Lines by what became of them: superseded by a later event of the same completion, shown from the editor's cache, without a
    judgement, logged without code, not readable, of another kind."""


def parse(lines: Iterable[str], user: str, project: str, redactor: Redactor) -> Imported:
    """The examples in an editor's log; `user` is the keyed hash."""
    counts: Counter[Bucket] = Counter()
    by_id: dict[str, OfflineExample] = {}
    for number, line in enumerate(lines):
        found = example(line, f"line {number}", user, project)
        if isinstance(found, str):
            counts[found] += 1
            continue
        counts["kept"] += 1
        if earlier := by_id.get(found.id):
            counts["kept"] -= 1
            counts["superseded"] += 1
            # Continue rejects after 10 s by itself, and a Tab after that is told once more: the accept is the truth.
            found = earlier if earlier.accepted else found
        by_id[found.id] = found
    names = ("prefix", "shown", "suffix")
    cleaned = (
        e.model_copy(update=dict(zip(names, redactor.around(e.prefix, e.shown, e.suffix), strict=True))) for e in by_id.values()
    )
    return Imported(tuple(sorted(cleaned, key=lambda e: (e.time, e.id))), {bucket: counts[bucket] for bucket in BUCKETS})


def example(line: str, name: str, user: str, project: str) -> OfflineExample | Bucket:
    """One line, or why it is none."""
    try:
        event = json.loads(line)
        # As it is sent, the event lies in an envelope; on disk it does not.
        told: dict[str, Any] = event["data"] if isinstance(event.get("data"), dict) else event
        if (event.get("name") or told.get("eventName") or EVENT) != EVENT:
            return "other_event"
        if told.get("cacheHit"):
            return "cache_hit"
        if not isinstance(told.get("accepted"), bool):
            return "unjudged"
        if not all(isinstance(told.get(field), str) for field in ("prefix", "suffix")) or not told.get("completion"):
            return "no_code"
        prefix, suffix = fim.request_context(str(told.get("prompt") or ""), told["prefix"], told["suffix"])
        return OfflineExample(
            id=str(told.get("completionId") or name),
            time=seconds(told.get("timestamp")),
            project=project,
            user=user,
            model=str(told.get("modelName") or ""),
            prefix=prefix,
            suffix=suffix,
            shown=after_selected(prefix, told["completion"]) or told["completion"],
            accepted=told["accepted"],
        )
    except (ValueError, AttributeError):
        return "malformed"


def seconds(stamp: object) -> float:
    """An ISO time as Unix seconds; 0 where there is none. One without a zone is UTC."""
    if not stamp:
        return 0.0
    found = datetime.fromisoformat(str(stamp))
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


def write(store: ObjectStore, examples: Sequence[OfflineExample]) -> str:
    """Write examples as an object of their own; gives back its key, the same for the same ones."""
    body = to_parquet(examples)
    key = f"offline/{hashlib.sha256(body).hexdigest()}.parquet"
    store.put(key, body)
    return key


def read(store: ObjectStore) -> list[OfflineExample]:
    """All examples, each completion once, without those of who is forgotten."""
    unwanted = tombstones.subjects(tombstones.read_all(store))
    every = (e for key in store.keys("offline/") for e in store.get_rows(key, OfflineExample))
    return list({(e.user, e.id): e for e in every if not unwanted.hold(e.user, e.project)}.values())


def main(arguments: Sequence[str] | None = None) -> int:
    """Import files; prints the accounts of each."""
    parser = argparse.ArgumentParser(prog="python -m tasks.offline", description=__doc__.split("\n")[0])
    parser.add_argument("files", type=Path, nargs="+", help="autocomplete.jsonl of one developer")
    parser.add_argument("--user", required=True, help="the developer's id, as clients send it in X-User-ID")
    parser.add_argument("--project", default="default", help="as in X-Project-ID (default %(default)s)")
    parser.add_argument("--dry-run", action="store_true", help="count and write nothing")
    options = parser.parse_args(arguments)
    settings = settings_.load()
    if settings.serving.user_secret is None:
        raise SystemExit("serving.user_secret is not set: `make up` generates one, or set TABLOOP_SERVING__USER_SECRET")
    user = user_hash(settings.serving.user_secret.get_secret_value().encode(), options.user)
    for file in options.files:
        found = parse(file.read_text().splitlines(), user, options.project, Redactor())
        print(f"{file}: {', '.join(f'{n} {bucket}' for bucket, n in found.buckets.items() if n) or 'no lines'}")
        if found.examples and not options.dry_run:
            store = ObjectStore.connect(settings.store)
            where = store.uri(write(store, found.examples))
            print(f"  {where}: {len(found.examples)} examples, without behaviour log-probabilities")
    return 0


if __name__ == "__main__":
    sys.exit(main())
