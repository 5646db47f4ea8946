"""The upload of a file in parts: AWS S3, Cloudflare R2 and Ceph take at most 5 GiB in one request."""

import base64
import hashlib
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infra.storage.answers import FAILURES

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
else:
    S3Client = Any

PART_BYTES = 64 << 20
"""Bytes of a part, and of the largest file that is uploaded in one request."""


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
        ask(partial(client.complete_multipart_upload, **where, MultipartUpload={"Parts": parts}))
    except BaseException:
        with suppress(*FAILURES):
            client.abort_multipart_upload(**where)
        raise
    return digest.hexdigest()


def md5(body: bytes) -> str:
    """Return the header Content-MD5, which every S3 server knows, and a bucket with Object Lock asks for."""
    return base64.b64encode(hashlib.md5(body, usedforsecurity=False).digest()).decode()
