"""Files that go to the object store and come back in parts, so that a part is held in memory and not the file.

AWS S3, Cloudflare R2 and Ceph take at most 5 GiB in one request.
"""

import base64
import hashlib
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from botocore.exceptions import ClientError
from botocore.parsers import ResponseParserError

from infra.storage.answers import FAILURES, CutOff, code_of

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
else:
    S3Client = Any

PART_BYTES = 64 << 20
"""Bytes of a part, and of the largest file that one request uploads or downloads."""


def upload(client: S3Client, bucket: str, key: str, file: Path, ask: Callable[[Callable[[], Any]], Any]) -> str:
    """Write a file as an object, and return its SHA-256 in hex; where it fails, the parts are removed.

    Args:
        ask: returns the answer to a request, which it may repeat.
    """
    digest, parts, where = hashlib.sha256(), list[Any](), {"Bucket": bucket, "Key": key}
    where["UploadId"] = ask(partial(client.create_multipart_upload, **where))["UploadId"]
    try:
        with file.open("rb") as opened:
            while body := opened.read(PART_BYTES):
                digest.update(body)
                part = {**where, "PartNumber": len(parts) + 1, "Body": body, "ContentMD5": md5(body)}
                parts.append({"PartNumber": part["PartNumber"], "ETag": ask(partial(client.upload_part, **part))["ETag"]})
        ask(partial(_complete, client, where | {"MultipartUpload": {"Parts": parts}}, file.stat().st_size))
    except BaseException:
        with suppress(*FAILURES):
            client.abort_multipart_upload(**where)
        raise
    return digest.hexdigest()


def _complete(client: S3Client, upload: dict[str, Any], size: int) -> None:
    """Make the parts an object of this size. A repeated request, whose first answer was lost, may find the object alone."""
    try:
        client.complete_multipart_upload(**upload)
    except ClientError as error:
        if code_of(error) != "NoSuchUpload":
            raise
        with suppress(*FAILURES):
            if client.head_object(Bucket=upload["Bucket"], Key=upload["Key"])["ContentLength"] == size:
                return
        raise


def download(client: S3Client, bucket: str, key: str, file: Path, ask: Callable[[Callable[[], Any]], Any]) -> str:
    """Write an object into a file, and return its SHA-256 in hex.

    Args:
        ask: returns the answer to a request, which it may repeat.
    """
    digest, size = hashlib.sha256(), 1
    with file.open("wb") as opened:
        while opened.tell() < size:
            body, size = ask(partial(_part, client, bucket, key, opened.tell()))
            if not body:
                break  # an empty object
            digest.update(body)
            opened.write(body)
    return digest.hexdigest()


def _part(client: S3Client, bucket: str, key: str, start: int) -> tuple[bytes, int]:
    """Return a part of an object, and the object's size; of an answer without it, a number above the bytes so far if more follow.

    Raises:
        CutOff: the answer ends early.
        ResponseParserError: the server ignores ranges.
    """
    # Servers refuse a range of an empty object, so the first request has none, and its answer is not read to the end.
    span: Any = {"Range": f"bytes={start}-{start + PART_BYTES - 1}"} if start else {}
    answer: Any = client.get_object(Bucket=bucket, Key=key, **span)
    total = answer.get("ContentRange", "").rpartition("/")[2]
    if start and not total.isdecimal():
        raise ResponseParserError(f"the answer to Range: {span['Range']} has no size in Content-Range: the server ignores ranges")
    size = int(total) if total else answer.get("ContentLength")
    with closing(answer["Body"]) as stream:
        if size is not None:
            return read(stream, min(PART_BYTES, size - start)), size
        # Some servers stream an object in chunks without its size; a chunk that is cut off is an error.
        body = _taken(stream, PART_BYTES)
        return body, len(body) + len(_taken(stream, 1))


def read(stream: Any, size: int | None = None) -> bytes:
    """Return so many bytes of an answer's body, or all. Raises CutOff if it ends early."""
    body = _taken(stream, size)
    if size is not None and len(body) < size:
        raise CutOff(f"the body of the answer is cut off: {len(body)} of {size} bytes")
    return body


def _taken(stream: Any, size: int | None) -> bytes:
    """Return so many bytes of an answer's body, or fewer where it ends before. Raises CutOff if the connection does."""
    try:
        body: bytes = stream.read(size)
    except FAILURES as error:
        raise CutOff(f"the body of the answer is cut off: {error}") from error
    return body


def md5(body: bytes) -> str:
    """Return the header Content-MD5, which every S3 server knows, and a bucket with Object Lock asks for."""
    return base64.b64encode(hashlib.md5(body, usedforsecurity=False).digest()).decode()
