"""The object store, through boto3 alone: the same against the local server and AWS S3.

Bucket layout (see infra/README.md):
    events/completions/date=YYYY-MM-DD/hour=HH/SEGMENT.parquet
    events/feedback/date=YYYY-MM-DD/hour=HH/SEGMENT.parquet
    cycles/CYCLE/{manifest,settings,validation,evaluation,outcome}.json, cycles/CYCLE/samples-SHA256.parquet
    checkpoints/NAME/... and checkpoints/NAME/checksums.json, written last
    experiments/ID.json, decisions/ID.json
    forgotten/KIND-DIGEST.json, offline/SHA256.parquet
"""

import fcntl
import hashlib
import io
import json
import random
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import boto3
import pyarrow as pa
import pyarrow.parquet as pq
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, IncompleteReadError, ReadTimeoutError, ResponseStreamingError
from urllib3.exceptions import HTTPError

from infra import settings as settings_
from infra.records import Record
from infra.settings.schema import Store as StoreSettings

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
else:
    S3Client = Any

CHECKSUMS = "checksums.json"
PROBE = "probes/conditional-put"
ATTEMPTS = 4
TAKEN = ("PreconditionFailed", "ConditionalRequestConflict")
TORN = (IncompleteReadError, ResponseStreamingError, ReadTimeoutError, HTTPError, OSError)
"""What a body that is cut off, or stands still, is told as."""
R = TypeVar("R", bound=Record)


class AlreadyExists(ValueError):
    """A conditional put found an object under its key."""


class Unreachable(RuntimeError):
    """The object store did not answer, or not whole, however often it was asked."""


class ConditionalPutsIgnored(RuntimeError):
    """The server overwrites what may be written only once, and nothing else keeps writers apart."""


class Corrupt(ValueError):
    """An object's bytes are not those its checksum was made of."""


class Incomplete(KeyError):
    """A directory without checksums: its upload has not ended, or it was removed."""

    def __str__(self) -> str:
        return str(self.args[0])  # a KeyError shows its text in quotes


class ObjectStore:
    """One bucket. Objects are immutable: whole, under unique keys, never overwritten with other bytes.

    Two things alone break that, each on purpose: forgetting somebody and retention (tasks/forget.py, tasks/retention.py).
    """

    def __init__(self, client: "S3Client", bucket: str, *, lock: Path | None = None, pause: float = 0.5) -> None:
        """A bucket.

        Args:
            lock: file that is locked around conditional puts, where the server does not keep to the condition.
            pause: seconds before an answer that was cut off is asked for again; doubled each time.
        """
        self._client = client
        self.bucket = bucket
        self._lock = lock
        self._pause = pause

    @classmethod
    def connect(cls, settings: StoreSettings) -> "ObjectStore":
        """A store from settings; makes no request yet."""
        key, secret = settings.access_key, settings.secret_key
        client = boto3.client(
            "s3",
            endpoint_url=settings.endpoint,
            region_name=settings.region,
            aws_access_key_id=key.get_secret_value() if key else None,
            aws_secret_access_key=secret.get_secret_value() if secret else None,
            config=Config(
                # Refused, torn before the answer, 500, 503 and timeouts are tried again, each time after longer.
                retries={"mode": "standard", "max_attempts": ATTEMPTS},
                connect_timeout=3,
                read_timeout=30,
                # The local server answers without the checksums that newer clients ask for.
                response_checksum_validation="when_required",
                request_checksum_calculation="when_required",
            ),
        )
        return cls(client, settings.bucket, lock=settings_.path(settings.lock) if settings.lock else None)

    def ensure_bucket(self) -> None:
        """Make the bucket where it is missing."""
        with self._clearly("look for the bucket"):
            try:
                self._client.head_bucket(Bucket=self.bucket)
            except ClientError:
                self._client.create_bucket(Bucket=self.bucket)

    def check_conditional_puts(self) -> None:
        """Try whether the server keeps to conditional puts, which is what lets two flows run without undoing each other's work.

        Raises:
            ConditionalPutsIgnored: it does not, and no lock on this machine keeps writers apart.
        """
        self.put(PROBE, b"probe")
        try:
            with self._clearly("try a conditional put", PROBE):
                self._client.put_object(Bucket=self.bucket, Key=PROBE, Body=b"probe", IfNoneMatch="*")
        except ClientError as error:
            if error.response["Error"]["Code"] in TAKEN:
                return
            if error.response["Error"]["Code"] != "NotImplemented":
                raise
        host = urlsplit(self._client.meta.endpoint_url).hostname
        if self._lock is None or host not in settings_.LOOPBACK:
            raise ConditionalPutsIgnored(
                f"store.endpoint = {self._client.meta.endpoint_url!r}: a conditional put (If-None-Match: *) on "
                f"{self.uri(PROBE)}, which was there, was accepted; expected HTTP 412, as AWS S3, Ceph and SeaweedFS answer. Two "
                f"flows at once could undo each other's work. store.lock = {str(self._lock) if self._lock else None!r} keeps "
                "writers apart on one machine alone: set TABLOOP_STORE__LOCK to a file where the server is on this machine, else "
                "use another server"
            )

    def put(self, key: str, body: bytes) -> str:
        """Write an object and give back its SHA-256; the same bytes may be written again."""
        with self._clearly("write", key):
            self._client.put_object(Bucket=self.bucket, Key=key, Body=body)
        return hashlib.sha256(body).hexdigest()

    def put_new(self, key: str, body: bytes) -> str:
        """Write an object only where there is none (a conditional put).

        Where the server ignores the condition, a file on this machine is locked while the key is looked up and written.

        Raises:
            AlreadyExists: the key is taken.
        """
        with self._alone():
            if self.exists(key):
                raise AlreadyExists(f"{self.uri(key)} exists and is never overwritten")
            try:
                with self._clearly("write once", key):
                    self._client.put_object(Bucket=self.bucket, Key=key, Body=body, IfNoneMatch="*")
            except ClientError as error:
                if error.response["Error"]["Code"] not in TAKEN:
                    raise
                # An attempt whose answer was lost may have written it: what lies there is then ours.
                repeated = error.response["ResponseMetadata"].get("RetryAttempts", 0) > 0
                if not (repeated and self.get(key) == body):
                    raise AlreadyExists(f"{self.uri(key)} exists and is never overwritten") from error
        return hashlib.sha256(body).hexdigest()

    def get(self, key: str) -> bytes:
        """An object's bytes, whole. Raises KeyError where there is none."""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                with self._clearly("read", key):
                    return self._client.get_object(Bucket=self.bucket, Key=key)["Body"].read()
            except ClientError as error:
                if error.response["Error"]["Code"] in ("NoSuchKey", "404"):
                    raise KeyError(self.uri(key)) from error
                raise
            except Unreachable as error:
                # boto3 asks again for an answer, not for the rest of one that was cut off.
                if attempt == ATTEMPTS or not isinstance(error.__cause__, TORN):
                    raise
                time.sleep(self._pause * 2 ** (attempt - 1) * (0.5 + random.random() / 2))
        raise AssertionError("the last attempt returns or raises")

    def uri(self, key: str) -> str:
        """Where an object lies, for people."""
        return f"s3://{self.bucket}/{key}"

    def exists(self, key: str) -> bool:
        """Whether there is an object under the key."""
        try:
            with self._clearly("look for", key):
                self._client.head_object(Bucket=self.bucket, Key=key)
        except ClientError as error:
            if error.response["Error"]["Code"] in ("NoSuchKey", "404", "NotFound"):
                return False
            raise
        return True

    def delete(self, key: str) -> None:
        """Remove an object; nothing happens where there is none."""
        with self._clearly("remove", key):
            self._client.delete_object(Bucket=self.bucket, Key=key)

    def keys(self, prefix: str) -> Iterator[str]:
        """Keys under a prefix, sorted."""
        with self._clearly("list", prefix):
            for page in self._client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=prefix):
                yield from (entry["Key"] for entry in page.get("Contents", []))

    def put_rows(self, key: str, rows: Sequence[Record]) -> str:
        """Write records of one type as Parquet; gives back the SHA-256."""
        return self.put(key, to_parquet(rows))

    def get_rows(self, key: str, record: type[R]) -> list[R]:
        """Read records back."""
        return from_parquet(self.get(key), record)

    def put_json(self, key: str, value: Record | dict[str, Any], *, new: bool = False) -> str:
        """Write a record or a mapping as JSON, with `new` only where there is none."""
        text = value.model_dump_json(indent=2) if isinstance(value, Record) else json.dumps(value, indent=2)
        return (self.put_new if new else self.put)(key, text.encode())

    def put_once(self, key: str, record: R) -> R:
        """Write a record where there is none; gives back the one that stands, be it another writer's."""
        try:
            self.put_json(key, record, new=True)
        except AlreadyExists:
            return type(record).model_validate(self.get_json(key))
        return record

    def get_json(self, key: str) -> Any:
        """Read JSON back."""
        return json.loads(self.get(key))

    def put_directory(self, prefix: str, directory: Path) -> dict[str, str]:
        """Upload a directory's files, their checksums last: a directory without checksums is not there yet."""
        names = sorted(str(p.relative_to(directory)) for p in directory.rglob("*") if p.is_file())
        checksums = {name: self.put(f"{prefix}/{name}", (directory / name).read_bytes()) for name in names}
        self.put_json(f"{prefix}/{CHECKSUMS}", checksums)
        return checksums

    def directory_sha256(self, prefix: str) -> str:
        """Checksum of a directory's checksums: the same only for the same files. Raises Incomplete where it is not whole."""
        return sha256([self._checksums(prefix)])

    def get_directory(self, prefix: str, directory: Path) -> None:
        """Download what put_directory wrote, each file checked.

        Raises:
            Incomplete: there is no whole directory under the prefix.
            Corrupt: a file's bytes do not match their checksum.
        """
        for name, expected in json.loads(self._checksums(prefix)).items():
            body = self.get(f"{prefix}/{name}")
            if (found := hashlib.sha256(body).hexdigest()) != expected:
                raise Corrupt(f"s3://{self.bucket}/{prefix}/{name}: SHA-256 {found}, expected {expected}")
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            (directory / name).write_bytes(body)

    def _checksums(self, prefix: str) -> bytes:
        try:
            return self.get(f"{prefix}/{CHECKSUMS}")
        except KeyError as error:
            raise Incomplete(
                f"{self.uri(prefix)}: {CHECKSUMS} is missing, so it is not whole: its upload has not ended, or "
                "retention has removed it. Choose a model version without the tag checkpoint_removed"
            ) from error

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold the lock file, where there is one."""
        if self._lock is None:
            yield
            return
        self._lock.parent.mkdir(parents=True, exist_ok=True)
        with self._lock.open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    @contextmanager
    def _clearly(self, what: str, key: str = "") -> Iterator[None]:
        """Say what could not be done where the server did not answer; its own refusals pass."""
        try:
            yield
        except ClientError as error:
            if error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0) < 500:
                raise
            raise self._unreachable(what, key, error) from error
        except (BotoCoreError, HTTPError, OSError) as error:
            raise self._unreachable(what, key, error) from error

    def _unreachable(self, what: str, key: str, error: Exception) -> Unreachable:
        return Unreachable(
            f"object store {self._client.meta.endpoint_url}: could not {what} {self.uri(key)}: {error}; tried up to {ATTEMPTS} "
            "times. What was not written is written when it is tried again. Is it up (store.endpoint)? `make status`"
        )


def to_parquet(rows: Sequence[Record]) -> bytes:
    """Records of one type as Parquet bytes, the same for the same rows."""
    table = pa.Table.from_pylist([row.model_dump(mode="json") for row in rows])
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd")
    return sink.getvalue()


def from_parquet(body: bytes, record: type[R]) -> list[R]:
    """Parquet bytes as records, each checked."""
    return [record.model_validate(row) for row in pq.read_table(io.BytesIO(body)).to_pylist()]


def sha256(parts: Iterable[bytes]) -> str:
    """Checksum of byte strings read one after another."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()
