"""The object store: one bucket of an S3 server, through boto3 alone. infra/docs/operations.md describes the bucket's layout."""

import fcntl
import hashlib
import json
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

from infra import settings as settings_
from infra.records import Record
from infra.settings.schema import Store as StoreSettings
from infra.storage import answers, parts
from infra.storage.answers import FAILURES
from infra.storage.parquet import from_parquet, to_parquet
from infra.storage.scope import COMMON

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
else:
    S3Client = Any

CHECKSUMS = "checksums.json"
PROBE, PROBED = "probes/conditional-put", b"probe"
ATTEMPTS = 4
T = TypeVar("T")
R = TypeVar("R", bound=Record)


class AlreadyExists(ValueError):
    """The key of a conditional put is taken."""


class Unreachable(RuntimeError):
    """The object store did not respond completely in any attempt, or only with temporary errors."""


class Refused(RuntimeError):
    """The object store refuses the request: the credentials, the bucket, the region, or for want of room."""


class ConditionalPutsIgnored(RuntimeError):
    """The server ignores or refuses conditional puts, and no file lock replaces them."""


class Corrupt(ValueError):
    """An object's bytes do not match their checksum."""


class Incomplete(KeyError):
    """A directory has no checksums: its upload has not finished, or it was removed."""

    def __str__(self) -> str:
        return str(self.args[0])  # KeyError puts its text in quotes


class ObjectStore:
    """A bucket of immutable objects: each has a unique key and is never overwritten with other bytes.

    Only erasure and retention (tasks/upkeep/forget.py, tasks/upkeep/retention.py) rewrite or remove objects, and the notes of the
    loop's newest runs (infra/storage/loop_runs.py) and of spools (infra/storage/spool_notes.py) are rewritten.
    """

    scope = COMMON
    """The loop whose events, cycles and moves are read and written."""

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
        if settings.endpoint:
            client.meta.events.register("before-call.s3.HeadBucket", answers.follow_no_redirect)
        return cls(client, settings.bucket, lock=settings.lock and settings_.path(settings.lock))

    def ensure_bucket(self) -> bool:
        """Create the bucket if it is missing, and return whether it was. Raises Refused if the server refuses the credentials,
        or the bucket belongs to someone else or to another region."""
        with suppress(KeyError):
            self._ask("look for the bucket", "", partial(self._client.head_bucket, Bucket=self.bucket), reads=True)
            return False
        return self._ask("make the bucket", "", self._create_bucket)

    def _create_bucket(self) -> bool:
        # AWS wants the region in the body, except for its first.
        region: Any = self._client.meta.region_name
        place: Any = {} if region == "us-east-1" else {"CreateBucketConfiguration": {"LocationConstraint": region}}
        try:
            self._client.create_bucket(Bucket=self.bucket, **place)
        except ClientError as error:
            if not answers.code_of(error).startswith("BucketAlready"):
                raise
            self._client.head_bucket(Bucket=self.bucket)  # made by a lost attempt or another process, or refused
        return True

    def check_conditional_puts(self) -> None:
        """Check that two writers cannot overwrite each other's object: the server honours conditional puts, or a lock exists.

        Raises:
            ConditionalPutsIgnored: the server ignores or refuses them, and no lock file on this machine replaces them.
            Refused: the server returns other bytes than were written.
        """
        self.put(PROBE, PROBED)
        if (found := self.get(PROBE)) != PROBED:
            where, got = f"store.endpoint = {self._client.meta.endpoint_url!r}", found[:40]
            raise Refused(f"{where}: wrote {PROBED!r} to {self.uri(PROBE)} and read {got!r}; expected the address of an S3 API")
        try:
            self._put_if_free(PROBE, PROBED)
            reason = f"the server accepted a conditional put (If-None-Match: *) of {self.uri(PROBE)}, which exists"
        except AlreadyExists:
            return
        except ConditionalPutsIgnored as error:
            reason = str(error)
        host = urlsplit(self._client.meta.endpoint_url).hostname
        if self._lock is None or host not in settings_.LOOPBACK:
            raise ConditionalPutsIgnored(
                f"store.endpoint = {self._client.meta.endpoint_url!r}: {reason}; expected HTTP 412, as from AWS S3, MinIO, "
                "Cloudflare R2, Ceph and SeaweedFS. Without it, two flows at once could overwrite each other's work. "
                f"store.lock = {str(self._lock) if self._lock else None!r} protects only writers on the server's machine: if the "
                "server runs on this machine, set TABLOOP_STORE__LOCK to a file, else use another server"
            )

    def put(self, key: str, body: bytes) -> str:
        """Write an object and return its SHA-256 in hex; writing the same bytes again is allowed."""
        self._ask(
            "write", key, partial(self._client.put_object, Bucket=self.bucket, Key=key, Body=body, ContentMD5=parts.md5(body))
        )
        return hashlib.sha256(body).hexdigest()

    def put_file(self, key: str, file: Path) -> str:
        """Write a file as an object, in parts if it is large, and return its SHA-256 in hex."""
        if file.stat().st_size <= parts.PART_BYTES:
            return self.put(key, file.read_bytes())
        return parts.upload(self._client, self.bucket, key, file, partial(self._ask, "write", key))

    def put_new(self, key: str, body: bytes) -> str:
        """Write an object only if the key is free (a conditional put), and return its SHA-256 in hex.

        With a lock file, the file is locked while the key is looked up and written; a server that refuses the condition then gets
        the object without it.

        Raises:
            AlreadyExists: the key is taken.
            ConditionalPutsIgnored: the server refuses the condition, and there is no lock file.
        """
        with self._locked():
            if self.exists(key):
                raise AlreadyExists(f"{self.uri(key)} exists and is never overwritten")
            try:
                self._put_if_free(key, body)
            except ConditionalPutsIgnored:
                if self._lock is None:
                    raise
                self.put(key, body)
            except (AlreadyExists, Unreachable) as error:
                # The key was free: an attempt of this call, or a proxy's, whose response was lost may have written the object.
                self._recognise(key, body, error)
        return hashlib.sha256(body).hexdigest()

    def _put_if_free(self, key: str, body: bytes) -> None:
        where = {"Bucket": self.bucket, "Key": key, "Body": body, "ContentMD5": parts.md5(body)}
        self._ask("write once", key, partial(self._client.put_object, **where, IfNoneMatch="*"), conditional=True)

    def _recognise(self, key: str, body: bytes, error: AlreadyExists | Unreachable) -> None:
        """Return if the key holds these bytes, raise AlreadyExists if it holds others, else the error of the write."""
        try:
            if self.get(key) == body:
                return
            error = AlreadyExists(f"{self.uri(key)} exists and is never overwritten")
        except KeyError:
            if isinstance(error, AlreadyExists):
                raise Unreachable(f"{self.uri(key)}: a write found it taken, a read found nothing; run the step again") from error
        except (Unreachable, Refused):
            pass  # the write's error says more
        raise error

    def get(self, key: str) -> bytes:
        """Return an object's bytes. Raises KeyError if it does not exist."""

        def read() -> bytes:
            return parts.read(self._client.get_object(Bucket=self.bucket, Key=key)["Body"])

        return self._ask("read", key, read, reads=True)

    def get_file(self, key: str, file: Path) -> str:
        """Write an object into a file, in parts if it is large, and return its SHA-256 in hex. Raises KeyError if it does not
        exist."""
        return parts.download(self._client, self.bucket, key, file, partial(self._ask, "read", key, reads=True))

    def uri(self, key: str) -> str:
        """Return the s3:// URI of a key."""
        return f"s3://{self.bucket}/{key}"

    def exists(self, key: str) -> bool:
        with suppress(KeyError):
            self._ask("look for", key, partial(self._client.head_object, Bucket=self.bucket, Key=key), reads=True)
            return True
        return False

    def delete(self, key: str) -> None:
        """Remove an object if it exists."""
        with suppress(KeyError):  # Google's server answers 404
            self._ask("remove", key, partial(self._client.delete_object, Bucket=self.bucket, Key=key), reads=True)

    def keys(self, prefix: str) -> Iterator[str]:
        """Yield the keys that start with a prefix, sorted."""
        return (entry["Key"] for entry in self._entries(prefix))

    def written(self, prefix: str) -> Iterator[tuple[str, float]]:
        """Yield the keys that start with a prefix, sorted, each with the Unix time of its last write."""
        return ((entry["Key"], entry["LastModified"].timestamp()) for entry in self._entries(prefix))

    def _entries(self, prefix: str) -> Iterator[Any]:
        """Yield the entries of a listing, page by page. Raises Refused if the server does not continue it."""
        start: dict[str, str] | None = {}
        while start is not None:
            page, start = self._ask("list", prefix, partial(self._page, prefix, start))
            yield from page.get("Contents", [])

    def _page(self, prefix: str, start: dict[str, str]) -> tuple[Any, dict[str, str] | None]:
        page = self._client.list_objects_v2(Bucket=self.bucket, Prefix=prefix, **start)  # type: ignore[arg-type]  # optional ones
        return page, answers.following(page, start)

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
        with suppress(AlreadyExists):
            self.put_json(key, record, new=True)
            return True
        return False

    def find(self, key: str, record: type[R]) -> R | None:
        """Return the record of a JSON object, validated; None if it does not exist."""
        with suppress(KeyError):
            return record.model_validate(self.get_json(key))
        return None

    def get_json(self, key: str) -> Any:
        return json.loads(self.get(key))

    def put_directory(self, prefix: str, directory: Path) -> dict[str, str]:
        """Upload a directory's files, then their checksums, which mark the upload as complete; return the checksums."""
        names = sorted(str(p.relative_to(directory)) for p in directory.rglob("*") if p.is_file())
        checksums = {name: self.put_file(f"{prefix}/{name}", directory / name) for name in names}
        self.put_json(f"{prefix}/{CHECKSUMS}", checksums)
        return checksums

    def directory_sha256(self, prefix: str) -> str:
        """Return the SHA-256 of a directory's checksums, in hex. Raises Incomplete if they are missing."""
        return sha256([self.checksums(prefix)])

    def get_directory(self, prefix: str, directory: Path) -> None:
        """Download a directory that put_directory uploaded, and verify each file.

        Raises:
            Incomplete: the directory's checksums or a file are missing.
            Corrupt: a file's bytes do not match their checksum, or a file lies outside the directory.
        """
        for name, expected in json.loads(self.checksums(prefix)).items():
            file = directory / name
            if not file.resolve().is_relative_to(directory.resolve()):
                raise Corrupt(f"{self.uri(prefix)}/{CHECKSUMS}: the file {name!r} lies outside; expected a path in the directory")
            file.parent.mkdir(parents=True, exist_ok=True)
            with self._of_directory(prefix, name):
                digest = self.get_file(f"{prefix}/{name}", file)
            if digest != expected:
                raise Corrupt(f"{self.uri(prefix)}/{name}: SHA-256 {digest}, expected {expected}")

    def checksums(self, prefix: str) -> bytes:
        """Return the checksums of a directory's files as they are stored, in JSON. Raises Incomplete if they are missing."""
        with self._of_directory(prefix, CHECKSUMS):
            return self.get(f"{prefix}/{CHECKSUMS}")

    @contextmanager
    def _of_directory(self, prefix: str, name: str) -> Iterator[None]:
        """Read a directory's file within. Raises Incomplete if it is missing."""
        try:
            yield
        except KeyError as error:
            raise Incomplete(
                f"{self.uri(prefix)}: {name} is missing: the upload has not finished, or retention removed the directory. "
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

    def _ask(self, what: str, key: str, request: Callable[[], T], *, conditional: bool = False, reads: bool = False) -> T:
        """Return the answer to a request, repeated where that may help and boto3 does not do it.

        Args:
            what: the action, for the error.
            conditional: the request writes only if the key is free.
            reads: the request is about an object or a bucket that may be missing.

        Raises:
            AlreadyExists: the key is taken; only if conditional.
            ConditionalPutsIgnored: the server does not implement the condition; only if conditional.
            KeyError: the object or bucket is missing; only if `reads`.
            Unreachable: no complete answer, or only temporary errors.
            Refused: another answer, with what to do about it.
        """
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return request()
            except FAILURES as error:
                kind = answers.kind_of(error, conditional=conditional)
                if attempt == ATTEMPTS or not answers.repeats(error, kind):
                    raise self._failure(kind, f"could not {what} {self.uri(key)}", key, error, reads) from error
            time.sleep(self._pause * 2 ** (attempt - 1) * (0.5 + random.random() / 2))
        raise AssertionError("the last attempt returns or raises")

    def _failure(self, kind: answers.Kind, action: str, key: str, error: Exception, reads: bool) -> Exception:
        """Return the exception for a request that was not obeyed."""
        said = f"object store {self._client.meta.endpoint_url}: {action}: {answers.words_of(error)}"
        if kind == "missing" and reads:
            return KeyError(self.uri(key))
        if kind == "taken":
            return AlreadyExists(f"{self.uri(key)} exists and is never overwritten")
        if kind == "unsupported":
            return ConditionalPutsIgnored(f"the server refuses conditional puts (If-None-Match: *): {answers.words_of(error)}")
        if kind in ("away", "conflict"):
            again = "Check store.endpoint, and with `tabloop status` that the server runs; then run the step again"
            return Unreachable(f"{said}; gave up after {ATTEMPTS} attempts. {again}")
        return Refused(f"{said}. {answers.advice(error)}")


def sha256(parts: Iterable[bytes]) -> str:
    """Return the SHA-256 of concatenated byte strings, in hex."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()
