"""The body of a request."""

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
CLIENT_LEFT = 499
"""nginx's status for a client that disconnected; it is counted, and never sent."""


async def read_json(request: Request, max_bytes: int = MAX_BYTES) -> dict[str, Any]:
    """Return the body, a JSON object of at most `max_bytes`. Raises BadRequest."""
    body = await _read(request, max_bytes)
    _check_structure(body)
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"body: not JSON: {str(error)[:200]}") from None
    if not isinstance(value, dict):
        raise BadRequest(f"body: expected a JSON object, got {type(value).__name__}")
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
    if _parts(body) <= MAX_PARTS:
        return
    unescaped = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    if unescaped.count(b'"') > 2 * MAX_STRINGS:
        raise BadRequest(f"body: expected at most {MAX_STRINGS} strings")
    if (parts := _parts(b"".join(unescaped.split(b'"')[::2]))) > MAX_PARTS:
        raise BadRequest(f"body: expected at most {MAX_PARTS} objects, lists, names and values, got {parts}")


def _parts(text: bytes) -> int:
    return text.count(b"[") + text.count(b"{") + text.count(b":") + text.count(b",")
