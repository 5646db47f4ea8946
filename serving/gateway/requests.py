"""The body of a request."""

import json
from typing import Any

from fastapi import Request
from starlette.requests import ClientDisconnect

from serving.gateway.errors import BadRequest

MAX_BYTES = 1 << 20
CLIENT_LEFT = 499
"""nginx's status for a client that left; it is counted, and sent to nobody."""


async def read_json(request: Request, max_bytes: int = MAX_BYTES) -> dict[str, Any]:
    """Return the body, a JSON object of at most `max_bytes`. Raises BadRequest."""
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > max_bytes:
                raise BadRequest(f"body: expected at most {max_bytes} bytes, got more", status=413)
    except ClientDisconnect:
        raise BadRequest("body: the client left before its end", status=CLIENT_LEFT) from None
    try:
        value = json.loads(body.decode())
        if b"\\u" in body:
            json.dumps(value, ensure_ascii=False).encode()  # refuses half a surrogate pair, which is not text
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"body: not JSON: {str(error)[:200]}") from None
    if not isinstance(value, dict):
        raise BadRequest(f"body: expected a JSON object, got {type(value).__name__}")
    return value
