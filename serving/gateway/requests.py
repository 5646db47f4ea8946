"""The body of a request.

Editors cut text in UTF-16 units, and proxies pass bytes on as they are: half of an emoji, bytes that are no UTF-8, a byte order
mark or NaN cost no request. What no Unicode text can hold becomes U+FFFD.
"""

import asyncio
import json
import re
from typing import Any

import orjson
from fastapi import Request
from starlette.requests import ClientDisconnect

from serving.gateway.errors import BadRequest

MAX_BYTES = 1 << 20
MAX_PARTS = 10_000
"""Most objects, lists, names and values in a body. Each costs 50 to 200 ns including garbage collection, and no other request
runs meanwhile."""
MAX_STRINGS = 2 * MAX_PARTS
"""Strings in a body: a name and a value for each part."""
UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
SURROGATE = re.compile("[\ud800-\udfff]")
CLIENT_LEFT = 499
"""nginx's status for a client that disconnected; it is counted, and never sent."""


async def read_json(request: Request, max_bytes: int = MAX_BYTES) -> dict[str, Any]:
    """Return the body, a JSON object of at most `max_bytes`. Raises BadRequest."""
    body = await _read(request, max_bytes)
    if _parts(body) > MAX_PARTS:
        _check_structure(body)
        await asyncio.sleep(0)  # other requests have a turn: to read the body takes as long again
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        value = _read_leniently(body, error)
    if not isinstance(value, dict):
        raise BadRequest(f"body: expected a JSON object, got {type(value).__name__}")
    return value


def _read_leniently(body: bytes, refusal: ValueError) -> Any:
    """Return a body that is JSON but for its characters; numbers may be NaN and Infinity. Raises BadRequest with the refusal."""
    if body.startswith(UTF16_MARKS):
        raise BadRequest("body: not JSON: expected UTF-8, got UTF-16; set the client's encoding to UTF-8")
    try:
        return _sound(json.loads(_decoded(body), strict=False))
    except (ValueError, RecursionError):
        first = body[:40].decode("utf-8", "replace")
        raise BadRequest(f"body: not JSON: {str(refusal)[:200]}; it begins with {first!r}") from None


def _decoded(body: bytes) -> str:
    """Return a body's text without a byte order mark. Half characters in UTF-8's form (WTF-8) are kept for `_sound`."""
    try:
        return body.decode("utf-8", "surrogatepass").removeprefix("\ufeff")
    except UnicodeDecodeError:
        return body.decode("utf-8-sig", "replace")


def _sound(value: Any) -> Any:
    """Return a value whose texts are Unicode: halves that belong together are joined, and others become U+FFFD."""
    if isinstance(value, str):
        if SURROGATE.search(value) is None:
            return value
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if isinstance(value, list):
        return [_sound(each) for each in value]
    if isinstance(value, dict):
        return {_sound(name): _sound(each) for name, each in value.items()}
    return value


async def _read(request: Request, max_bytes: int) -> bytes:
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > max_bytes:
        raise BadRequest(f"body: expected at most {max_bytes} bytes, got {announced}", status=413)
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > max_bytes:
                raise BadRequest(f"body: expected at most {max_bytes} bytes, got more", status=413)
    except ClientDisconnect:
        raise BadRequest("body: the client left before its end", status=CLIENT_LEFT) from None
    return bytes(body)


def _check_structure(body: bytes) -> None:
    """Refuse a body of so many parts that reading it would delay other requests; punctuation in strings does not count."""
    # Replaced by as many bytes, since that is done in place.
    unescaped = body.replace(b"\\\\", b"  ").replace(b'\\"', b"  ")
    if unescaped.count(b'"') > 2 * MAX_STRINGS:
        raise BadRequest(f"body: expected at most {MAX_STRINGS} strings")
    if (parts := _parts(b"".join(unescaped.split(b'"')[::2]))) > MAX_PARTS:
        raise BadRequest(f"body: expected at most {MAX_PARTS} objects, lists, names and values, got {parts}")


def _parts(text: bytes) -> int:
    return text.count(b"[") + text.count(b"{") + text.count(b":") + text.count(b",")
