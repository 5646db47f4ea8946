"""Import the labels in Continue's log on a developer's disk: python -m tasks.offline FILE --user NAME

    ~/.continue/dev_data/0.2.0/autocomplete.jsonl, one event a line (schema 0.1.0 too)

The policy and the log-probabilities of these texts are unknown, so they are OfflineExample records, which have no field for them
and are refused where samples are read; PPO never trains on one.

Every line is in exactly one bucket, and the buckets add up. Secrets are redacted, users are keyed hashes, and importing the same
file again writes the same object.
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

from infra import settings as settings_
from infra.identity import user_hash
from infra.model import fim
from infra.records import OfflineExample
from infra.redaction.redactor import Redactor
from infra.redaction.texts import Texts
from infra.storage.events import tombstones
from infra.storage.store import ObjectStore, to_parquet
from tasks.labels.attribution import after_selected

Bucket = Literal["kept", "superseded", "cache_hit", "unjudged", "no_code", "malformed", "other_event"]
BUCKETS: tuple[Bucket, ...] = get_args(Bucket)
EVENT = "autocomplete"


@dataclass(frozen=True)
class Imported:
    """The examples of a file, and its lines by bucket."""

    examples: tuple[OfflineExample, ...]
    """In the order of their completions."""
    buckets: dict[Bucket, int]
    """Lines by bucket: superseded by a later event of the same completion, shown from the editor's cache, without a
    judgement, logged without code, not readable, of another kind."""


def parse(lines: Iterable[str], user: str, project: str, redactor: Redactor) -> Imported:
    """Return the examples in an editor's log; `user` is the keyed hash."""
    counts: Counter[Bucket] = Counter()
    by_id: dict[str, OfflineExample] = {}
    for number, line in enumerate(lines):
        result = example(line, f"line {number}", user, project)
        if isinstance(result, str):
            counts[result] += 1
            continue
        counts["kept"] += 1
        if earlier := by_id.get(result.id):
            counts["kept"] -= 1
            counts["superseded"] += 1
            # Continue rejects after 10 s by itself, and logs a later Tab in another event: the accept counts.
            result = earlier if earlier.accepted else result
        by_id[result.id] = result
    cleaned = (_redacted(example, redactor) for example in by_id.values())
    return Imported(tuple(sorted(cleaned, key=lambda e: (e.time, e.id))), {bucket: counts[bucket] for bucket in BUCKETS})


def _redacted(row: OfflineExample, redactor: Redactor) -> OfflineExample:
    texts = redactor.redact(Texts(row.prefix, (row.shown,), row.suffix))
    return row.model_copy(update={"prefix": texts.prefix, "shown": texts.middles[0], "suffix": texts.suffix})


def example(line: str, name: str, user: str, project: str) -> OfflineExample | Bucket:
    """Return the example of a line, or the bucket of a line without one."""
    try:
        event = json.loads(line)
        # A sent event is in an envelope; on disk it is not.
        fields: dict[str, Any] = event["data"] if isinstance(event.get("data"), dict) else event
        if (event.get("name") or fields.get("eventName") or EVENT) != EVENT:
            return "other_event"
        if fields.get("cacheHit"):
            return "cache_hit"
        if not isinstance(fields.get("accepted"), bool):
            return "unjudged"
        if not all(isinstance(fields.get(field), str) for field in ("prefix", "suffix")) or not fields.get("completion"):
            return "no_code"
        prefix, suffix = fim.request_context(str(fields.get("prompt") or ""), fields["prefix"], fields["suffix"])
        return OfflineExample(
            id=str(fields.get("completionId") or name),
            time=seconds(fields.get("timestamp")),
            project=project,
            user=user,
            model=str(fields.get("modelName") or ""),
            prefix=prefix,
            suffix=suffix,
            shown=after_selected(prefix, fields["completion"]) or fields["completion"],
            accepted=fields["accepted"],
        )
    except (ValueError, AttributeError):
        return "malformed"


def seconds(stamp: object) -> float:
    """Return an ISO time, by default in UTC, as Unix seconds; 0 without one."""
    if not stamp:
        return 0.0
    parsed = datetime.fromisoformat(str(stamp))
    return (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp()


def write(store: ObjectStore, examples: Sequence[OfflineExample]) -> str:
    """Write examples as one object and return its key, which is the same for the same examples."""
    body = to_parquet(examples)
    key = f"offline/{hashlib.sha256(body).hexdigest()}.parquet"
    store.put(key, body)
    return key


def read(store: ObjectStore) -> list[OfflineExample]:
    """Return all examples, each completion once, without those of erased subjects."""
    erased = tombstones.subjects(tombstones.read_all(store))
    examples = (e for key in store.keys("offline/") for e in store.get_rows(key, OfflineExample))
    return list({(e.user, e.id): e for e in examples if not erased.hold(e.user, e.project)}.values())


def main(arguments: Sequence[str] | None = None) -> int:
    """Import files and print the buckets of each."""
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
        imported = parse(file.read_text().splitlines(), user, options.project, Redactor())
        print(f"{file}: {', '.join(f'{n} {bucket}' for bucket, n in imported.buckets.items() if n) or 'no lines'}")
        if imported.examples and not options.dry_run:
            store = ObjectStore.connect(settings.store)
            where = store.uri(write(store, imported.examples))
            print(f"  {where}: {len(imported.examples)} examples, without behaviour log-probabilities")
    return 0


if __name__ == "__main__":
    sys.exit(main())
