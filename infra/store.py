"""The object store, through boto3 alone: the same against the local server and AWS S3.

Bucket layout (see infra/README.md):
    events/completions/date=YYYY-MM-DD/hour=HH/SEGMENT.parquet
    events/feedback/date=YYYY-MM-DD/hour=HH/SEGMENT.parquet
    cycles/CYCLE/{manifest,settings,validation,evaluation,outcome}.json, cycles/CYCLE/samples-SHA256.parquet
    checkpoints/NAME/... and checkpoints/NAME/checksums.json, written last
    experiments/ID.json, decisions/ID.json
    forgotten/KIND-DIGEST.json, offline/SHA256.parquet
"""

import hashlib
import io
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import boto3
import pyarrow as pa
import pyarrow.parquet as pq
from botocore.config import Config
from botocore.exceptions import ClientError

from infra.records import Record
from infra.settings.schema import Store as StoreSettings

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
else:
    S3Client = Any

CHECKSUMS = "checksums.json"
R = TypeVar("R", bound=Record)


class AlreadyExists(ValueError):
    """A conditional put found an object under its key."""


class Corrupt(ValueError):
    """An object's bytes are not those its checksum was made of."""


class ObjectStore:
    """One bucket. Objects are immutable: whole, under unique keys, never overwritten with other bytes.

    Two things alone break that, each on purpose: forgetting somebody and retention (tasks/forget.py, tasks/retention.py).
    """

    def __init__(self, client: "S3Client", bucket: str) -> None:
        self._client = client
        self.bucket = bucket

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
                retries={"mode": "standard", "max_attempts": 4},
                connect_timeout=3,
                read_timeout=30,
                # The local server answers without the checksums that newer clients ask for.
                response_checksum_validation="when_required",
                request_checksum_calculation="when_required",
            ),
        )
        return cls(client, settings.bucket)

    def ensure_bucket(self) -> None:
        """Make the bucket where it is missing."""
        try:
            self._client.head_bucket(Bucket=self.bucket)
        except ClientError:
            self._client.create_bucket(Bucket=self.bucket)

    def put(self, key: str, body: bytes) -> str:
        """Write an object and give back its SHA-256; the same bytes may be written again."""
        self._client.put_object(Bucket=self.bucket, Key=key, Body=body)
        return hashlib.sha256(body).hexdigest()

    def put_new(self, key: str, body: bytes) -> str:
        """Write an object only where there is none (a conditional put).

        The local server ignores the condition, so the key is looked up first as well: enough for one writer at a time.

        Raises:
            AlreadyExists: the key is taken.
        """
        if self.exists(key):
            raise AlreadyExists(f"s3://{self.bucket}/{key} exists and is never overwritten")
        try:
            self._client.put_object(Bucket=self.bucket, Key=key, Body=body, IfNoneMatch="*")
        except ClientError as error:
            if error.response["Error"]["Code"] in ("PreconditionFailed", "ConditionalRequestConflict"):
                raise AlreadyExists(f"s3://{self.bucket}/{key} exists and is never overwritten") from error
            raise
        return hashlib.sha256(body).hexdigest()

    def get(self, key: str) -> bytes:
        """An object's bytes. Raises KeyError where there is none."""
        try:
            return self._client.get_object(Bucket=self.bucket, Key=key)["Body"].read()
        except ClientError as error:
            if error.response["Error"]["Code"] in ("NoSuchKey", "404"):
                raise KeyError(f"s3://{self.bucket}/{key}") from error
            raise

    def uri(self, key: str) -> str:
        """Where an object lies, for people."""
        return f"s3://{self.bucket}/{key}"

    def exists(self, key: str) -> bool:
        """Whether there is an object under the key."""
        try:
            self._client.head_object(Bucket=self.bucket, Key=key)
        except ClientError as error:
            if error.response["Error"]["Code"] in ("NoSuchKey", "404", "NotFound"):
                return False
            raise
        return True

    def delete(self, key: str) -> None:
        """Remove an object; nothing happens where there is none."""
        self._client.delete_object(Bucket=self.bucket, Key=key)

    def keys(self, prefix: str) -> Iterator[str]:
        """Keys under a prefix, sorted."""
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
        """Checksum of a directory's checksums: the same only for the same files. Raises KeyError where it is not complete."""
        return sha256([self.get(f"{prefix}/{CHECKSUMS}")])

    def get_directory(self, prefix: str, directory: Path) -> None:
        """Download what put_directory wrote, each file checked.

        Raises:
            KeyError: there is no complete directory under the prefix.
            Corrupt: a file's bytes do not match their checksum.
        """
        for name, expected in self.get_json(f"{prefix}/{CHECKSUMS}").items():
            body = self.get(f"{prefix}/{name}")
            if (found := hashlib.sha256(body).hexdigest()) != expected:
                raise Corrupt(f"s3://{self.bucket}/{prefix}/{name}: SHA-256 {found}, expected {expected}")
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            (directory / name).write_bytes(body)


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
