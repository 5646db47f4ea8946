"""The object store: one bucket of an S3 server, through boto3 alone. infra/docs/operations.md describes the bucket's layout."""

import fcntl
import hashlib
import io
import json
import random
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar
from urllib.parse import urlsplit

import boto3
import pyarrow as pa
import pyarrow.parquet as pq
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    IncompleteReadError,
    NoCredentialsError,
    ReadTimeoutError,
    ResponseStreamingError,
)
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
KEY_TAKEN_CODES = ("PreconditionFailed", "ConditionalRequestConflict")
INTERRUPTED = (IncompleteReadError, ResponseStreamingError, ReadTimeoutError, HTTPError, OSError)
"""Exceptions raised if the body of a response is cut off or stalls."""
R = TypeVar("R", bound=Record)


class AlreadyExists(ValueError):
    """The key of a conditional put is taken."""


class Unreachable(RuntimeError):
    """The object store did not respond completely in any attempt."""


class Refused(RuntimeError):
    """The object store refuses the credentials or the bucket."""


class ConditionalPutsIgnored(RuntimeError):
    """The server ignores conditional puts, and no file lock replaces them."""


class Corrupt(ValueError):
    """An object's bytes do not match their checksum."""


class Incomplete(KeyError):
    """A directory has no checksums: its upload has not finished, or it was removed."""

    def __str__(self) -> str:
        return str(self.args[0])  # KeyError puts its text in quotes


class ObjectStore:
    """A bucket of immutable objects: each has a unique key and is never overwritten with other bytes.

    Only erasure and retention (tasks/upkeep/forget.py, tasks/upkeep/retention.py) rewrite or remove objects.
    """

    def __init__(self, client: "S3Client", bucket: str, *, lock: Path | None = None, pause: float = 0.5) -> None:
        """Use a bucket through an S3 client.

        Args:
            lock: file to lock around conditional puts, for a server that ignores the condition.
            pause: seconds before the first retry of an interrupted response; doubled at each retry.
        """
        self._client = client
        self.bucket = bucket
        self._lock = lock
        self._pause = pause

    @classmethod
    def connect(cls, settings: StoreSettings) -> "ObjectStore":
        """Return a store for the settings, without making a request."""
        key, secret = settings.access_key, settings.secret_key
        client = boto3.client(
            "s3",
            endpoint_url=settings.endpoint,
            region_name=settings.region,
            aws_access_key_id=key.get_secret_value() if key else None,
            aws_secret_access_key=secret.get_secret_value() if secret else None,
            config=Config(
                # Retries refused connections, missing responses, timeouts, 500 and 503, with growing pauses.
                retries={"mode": "standard", "max_attempts": ATTEMPTS},
                connect_timeout=3,
                read_timeout=30,
                # The local server does not send the checksums that newer clients expect.
                response_checksum_validation="when_required",
                request_checksum_calculation="when_required",
            ),
        )
        return cls(client, settings.bucket, lock=settings_.path(settings.lock) if settings.lock else None)

    def ensure_bucket(self) -> bool:
        """Create the bucket if it is missing, and return whether it was. Raises Refused if the server refuses the credentials,
        or the bucket belongs to someone else or to another region."""
        with self._reporting("look for the bucket"):
            try:
                self._client.head_bucket(Bucket=self.bucket)
                return False
            except NoCredentialsError as error:
                self._refuse("no credentials found", error)
            except ClientError as error:
                if _status(error) != 404:
                    self._refuse(f"HTTP {_status(error)} for the bucket {self.bucket!r}", error)
            # AWS wants the region in the body, except for its first.
            region: Any = self._client.meta.region_name
            place: Any = {} if region == "us-east-1" else {"CreateBucketConfiguration": {"LocationConstraint": region}}
            try:
                self._client.create_bucket(Bucket=self.bucket, **place)
            except ClientError as error:
                if error.response["Error"]["Code"] != "BucketAlreadyOwnedByYou":  # by an attempt whose response was lost
                    self._refuse(f"the bucket {self.bucket!r} cannot be created", error)
            return True

    def check_conditional_puts(self) -> None:
        """Check that two writers cannot overwrite each other's object: the server honours conditional puts, or a lock exists.
        Raises ConditionalPutsIgnored if the server ignores conditional puts, and no lock file on this machine replaces them."""
        self.put(PROBE, b"probe")
        try:
            with self._reporting("try a conditional put", PROBE):
                self._client.put_object(Bucket=self.bucket, Key=PROBE, Body=b"probe", IfNoneMatch="*")
        except ClientError as error:
            if error.response["Error"]["Code"] in KEY_TAKEN_CODES:
                return
            if error.response["Error"]["Code"] != "NotImplemented":
                raise
        host = urlsplit(self._client.meta.endpoint_url).hostname
        if self._lock is None or host not in settings_.LOOPBACK:
            raise ConditionalPutsIgnored(
                f"store.endpoint = {self._client.meta.endpoint_url!r}: the server accepted a conditional put (If-None-Match: *) "
                f"of {self.uri(PROBE)}, which exists; expected HTTP 412, as from AWS S3, Ceph and SeaweedFS. Without it, two "
                f"flows at once could overwrite each other's work. store.lock = {str(self._lock) if self._lock else None!r} "
                "protects only writers on the server's machine: if the server runs on this machine, set TABLOOP_STORE__LOCK to a "
                "file, else use another server"
            )

    def put(self, key: str, body: bytes) -> str:
        """Write an object and return its SHA-256 in hex; writing the same bytes again is allowed."""
        with self._reporting("write", key):
            self._client.put_object(Bucket=self.bucket, Key=key, Body=body)
        return hashlib.sha256(body).hexdigest()

    def put_new(self, key: str, body: bytes) -> str:
        """Write an object only if the key is free (a conditional put), and return its SHA-256 in hex.

        With a lock file, the file is locked while the key is looked up and written.

        Raises:
            AlreadyExists: the key is taken.
        """
        with self._locked():
            if self.exists(key):
                raise AlreadyExists(f"{self.uri(key)} exists and is never overwritten")
            try:
                with self._reporting("write once", key):
                    self._client.put_object(Bucket=self.bucket, Key=key, Body=body, IfNoneMatch="*")
            except ClientError as error:
                if error.response["Error"]["Code"] not in KEY_TAKEN_CODES:
                    raise
                # An earlier attempt whose response was lost may have written the object.
                repeated = error.response["ResponseMetadata"].get("RetryAttempts", 0) > 0
                if not (repeated and self.get(key) == body):
                    raise AlreadyExists(f"{self.uri(key)} exists and is never overwritten") from error
        return hashlib.sha256(body).hexdigest()

    def get(self, key: str) -> bytes:
        """Return an object's bytes. Raises KeyError if it does not exist."""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                with self._reporting("read", key):
                    return self._client.get_object(Bucket=self.bucket, Key=key)["Body"].read()
            except ClientError as error:
                if error.response["Error"]["Code"] in ("NoSuchKey", "404"):
                    raise KeyError(self.uri(key)) from error
                raise
            except Unreachable as error:
                # boto3 retries a request without a response, but not one whose body was cut off.
                if attempt == ATTEMPTS or not isinstance(error.__cause__, INTERRUPTED):
                    raise
                time.sleep(self._pause * 2 ** (attempt - 1) * (0.5 + random.random() / 2))
        raise AssertionError("the last attempt returns or raises")

    def uri(self, key: str) -> str:
        """Return the s3:// URI of a key."""
        return f"s3://{self.bucket}/{key}"

    def exists(self, key: str) -> bool:
        """Return whether the key has an object."""
        try:
            with self._reporting("look for", key):
                self._client.head_object(Bucket=self.bucket, Key=key)
        except ClientError as error:
            if error.response["Error"]["Code"] in ("NoSuchKey", "404", "NotFound"):
                return False
            raise
        return True

    def delete(self, key: str) -> None:
        """Remove an object if it exists."""
        with self._reporting("remove", key):
            self._client.delete_object(Bucket=self.bucket, Key=key)

    def keys(self, prefix: str) -> Iterator[str]:
        """Yield the keys that start with a prefix, sorted."""
        with self._reporting("list", prefix):
            for page in self._client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=prefix):
                yield from (entry["Key"] for entry in page.get("Contents", []))

    def written(self, prefix: str) -> Iterator[tuple[str, float]]:
        """Yield the keys that start with a prefix, sorted, each with the Unix time of its last write."""
        with self._reporting("list", prefix):
            for page in self._client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=prefix):
                yield from ((entry["Key"], entry["LastModified"].timestamp()) for entry in page.get("Contents", []))

    def put_rows(self, key: str, rows: Sequence[Record]) -> str:
        """Write records of one type as Parquet, and return the SHA-256 in hex."""
        return self.put(key, to_parquet(rows))

    def get_rows(self, key: str, record: type[R]) -> list[R]:
        """Return the records of a Parquet object, each validated."""
        return from_parquet(self.get(key), record)

    def put_json(self, key: str, value: Record | dict[str, Any], *, new: bool = False) -> str:
        """Write a record or a mapping as JSON, with `new` only if the key is free; return the SHA-256 in hex."""
        text = value.model_dump_json(indent=2) if isinstance(value, Record) else json.dumps(value, indent=2)
        return (self.put_new if new else self.put)(key, text.encode())

    def put_once(self, key: str, record: R) -> R:
        """Write a record if the key is free, and return the record stored there, possibly another writer's."""
        try:
            self.put_json(key, record, new=True)
        except AlreadyExists:
            return type(record).model_validate(self.get_json(key))
        return record

    def add(self, key: str, record: Record) -> bool:
        """Write a record if the key is free; return False where another writer has taken it."""
        try:
            self.put_json(key, record, new=True)
        except AlreadyExists:
            return False
        return True

    def find(self, key: str, record: type[R]) -> R | None:
        """Return the record of a JSON object, validated; None if it does not exist."""
        try:
            return record.model_validate(self.get_json(key))
        except KeyError:
            return None

    def get_json(self, key: str) -> Any:
        """Return the value of a JSON object."""
        return json.loads(self.get(key))

    def put_directory(self, prefix: str, directory: Path) -> dict[str, str]:
        """Upload a directory's files, then their checksums, which mark the upload as complete; return the checksums."""
        names = sorted(str(p.relative_to(directory)) for p in directory.rglob("*") if p.is_file())
        checksums = {name: self.put(f"{prefix}/{name}", (directory / name).read_bytes()) for name in names}
        self.put_json(f"{prefix}/{CHECKSUMS}", checksums)
        return checksums

    def directory_sha256(self, prefix: str) -> str:
        """Return the SHA-256 of a directory's checksums, in hex. Raises Incomplete if they are missing."""
        return sha256([self.checksums(prefix)])

    def get_directory(self, prefix: str, directory: Path) -> None:
        """Download a directory that put_directory uploaded, and verify each file.

        Raises:
            Incomplete: the directory's checksums are missing.
            Corrupt: a file's bytes do not match their checksum.
        """
        for name, expected in json.loads(self.checksums(prefix)).items():
            body = self.get(f"{prefix}/{name}")
            if (digest := hashlib.sha256(body).hexdigest()) != expected:
                raise Corrupt(f"s3://{self.bucket}/{prefix}/{name}: SHA-256 {digest}, expected {expected}")
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            (directory / name).write_bytes(body)

    def checksums(self, prefix: str) -> bytes:
        """Return the checksums of a directory's files as they are stored, in JSON. Raises Incomplete if they are missing."""
        try:
            return self.get(f"{prefix}/{CHECKSUMS}")
        except KeyError as error:
            raise Incomplete(
                f"{self.uri(prefix)}: {CHECKSUMS} is missing: the upload has not finished, or retention removed the directory. "
                "Choose a model version without the tag checkpoint_removed"
            ) from error

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the lock file, if one is set."""
        if self._lock is None:
            yield
            return
        self._lock.parent.mkdir(parents=True, exist_ok=True)
        with self._lock.open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    @contextmanager
    def _reporting(self, what: str, key: str = "") -> Iterator[None]:
        """Turn network errors and HTTP 5xx into Unreachable, which names the action; other errors of the server pass through."""
        try:
            yield
        except ClientError as error:
            if _status(error) < 500:
                raise
            raise self._unreachable(what, key, error) from error
        except (BotoCoreError, HTTPError, OSError) as error:
            raise self._unreachable(what, key, error) from error

    def _refuse(self, what: str, error: Exception) -> NoReturn:
        """Raise Refused; of a failure of the server, the failure itself."""
        if isinstance(error, ClientError) and _status(error) >= 500:
            raise error
        raise Refused(
            f"object store {self._client.meta.endpoint_url}: {what}: {error}. Check store.bucket, store.region; expected in "
            "store.access_key and store.secret_key (TABLOOP_STORE__ACCESS_KEY, TABLOOP_STORE__SECRET_KEY) a pair that may use "
            "the bucket, or neither, and then one that boto3 finds (environment, profile, instance role)"
        ) from error

    def _unreachable(self, what: str, key: str, error: Exception) -> Unreachable:
        return Unreachable(
            f"object store {self._client.meta.endpoint_url}: could not {what} {self.uri(key)}: {error}; gave up after "
            f"{ATTEMPTS} attempts. Check store.endpoint, and with `tabloop status` that the server runs; then run the step again"
        )


def _status(error: ClientError) -> int:
    return error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)


def to_parquet(rows: Sequence[Record]) -> bytes:
    """Return records of one type as Parquet; equal rows give equal bytes."""
    table = pa.Table.from_pylist([row.model_dump(mode="json") for row in rows])
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd")
    return sink.getvalue()


def from_parquet(body: bytes, record: type[R]) -> list[R]:
    """Return the records in Parquet bytes, each validated."""
    # Polars, since a process that ends while Arrow starts its threads is aborted; here, since serving only writes.
    import polars as pl

    return [record.model_validate(row) for row in pl.read_parquet(io.BytesIO(body)).to_dicts()]


def sha256(parts: Iterable[bytes]) -> str:
    """Return the SHA-256 of concatenated byte strings, in hex."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()
