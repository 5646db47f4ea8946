"""Ask the completions port whether it accepts a token, as an editor's first request does."""

import time
from typing import Literal

import httpx

State = Literal["accepted", "refused", "silent"]
SECONDS = 4.0
"""Longest wait for a token that was just written: the app looks for changes of its table every second."""
POLL_SECONDS = 0.25
ANSWER_SECONDS = 5.0
"""Longest wait for one answer."""


def ask(address: str, token: str, seconds: float) -> State:
    """Return whether the server at an address accepts a token, refuses it for `seconds`, or does not answer.

    A server without a ready engine accepts a token too: it answers 503.
    """
    ends = time.monotonic() + seconds
    headers = {"Authorization": f"Bearer {token}"}
    with httpx.Client(base_url=address, timeout=ANSWER_SECONDS) as client:
        while True:
            try:
                status = client.get("/v1/health", headers=headers).status_code
            except httpx.HTTPError:
                return "silent"
            if status != httpx.codes.UNAUTHORIZED:
                return "accepted" if status in (httpx.codes.OK, httpx.codes.SERVICE_UNAVAILABLE) else "refused"
            if time.monotonic() >= ends:
                return "refused"
            time.sleep(POLL_SECONDS)
