"""The bodies and headers that Continue and Zed send. No function here takes the text that the developer is about to write."""

import json
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from evals.developers.draws import Draws
from infra.model import fim

EDITORS = json.loads((Path(__file__).parent / "editors.json").read_text())
"""What each editor sends whatever the text: the rest of its requests, and of Continue's events."""
STOPS, OPTIONS = EDITORS["continue"]["request"]["stop"], EDITORS["continue"]["options"]
VERSION_HEADER = "X-Tabloop-Version"


class Pin(NamedTuple):
    """The options of a request; a pin needs a token with the role `versions`."""

    version: str = ""  # version; empty: the arm's
    temperature: float | None = None  # of sampling; None: the settings'

    @property
    def headers(self) -> dict[str, str]:
        temperature = "" if self.temperature is None else str(self.temperature)
        named = {VERSION_HEADER: self.version, "X-Tabloop-Temperature": temperature}
        return {name: value for name, value in named.items() if value}


NO_PIN = Pin()


@dataclass(frozen=True)
class Impression:
    """A completion shown to a developer."""

    completion_id: str  # the editor generates it; the completions server never sees it
    user: str
    file: str
    prefix: str  # the sent prefix, followed by the text typed since if the editor reused a stream
    suffix: str
    completion: str  # the text that the editor shows
    requested_at: float  # Unix seconds
    elapsed_ms: float  # from the pause in typing, including the debounce
    model: str
    request_id: str = ""  # the server's id of the completion, for editors that report by it


def prompt(prefix: str, suffix: str) -> str:
    """Return Continue's prompt for Qwen."""
    return f"{fim.PREFIX}{prefix}{fim.SUFFIX}{suffix}{fim.MIDDLE}"


def continue_request(
    model: str, token: str, user: str, prefix: str, suffix: str, pin: Pin
) -> tuple[dict[str, str], dict[str, Any]]:
    """Return the headers and the body of `POST {apiBase}/completions`. Continue adds the user by requestOptions.headers."""
    body = {"model": model, **EDITORS["continue"]["request"], "prompt": prompt(prefix, suffix)}
    return event_headers(token, user) | {"api-key": token} | pin.headers, body


def zed_request(model: str, token: str, user: str, prefix: str, suffix: str, pin: Pin) -> tuple[dict[str, str], dict[str, Any]]:
    """Return the headers and the body of Zed's provider `open_ai_compatible_api`: not streamed, without a temperature.

    Zed names no user: X-User-ID stands for the token that each developer has.
    """
    body = {"model": model, "prompt": prompt(prefix, suffix), **EDITORS["zed"]["request"]}
    return event_headers(token, user) | {"User-Agent": EDITORS["zed"]["agent"]} | pin.headers, body


def event_headers(token: str, user: str) -> dict[str, str]:
    return {"Content-Type": "application/json", "Authorization": f"Bearer {token}", "X-User-ID": user}


def event_body(impression: Impression, accepted: bool, cache_hit: bool = False) -> dict[str, Any]:
    """Return an autocomplete event, schema 0.2.0, level all."""
    timestamp = datetime.fromtimestamp(impression.requested_at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    data = EDITORS["continue"]["event"] | OPTIONS
    data |= {
        "timestamp": timestamp,
        "accepted": accepted,
        "time": round(impression.elapsed_ms),
        "prefix": impression.prefix,
        "suffix": impression.suffix,
        "prompt": prompt(impression.prefix, impression.suffix),
        "completion": impression.completion,
        "modelName": impression.model,
        "cacheHit": cache_hit,
        "filepath": f"file:///workspace/{impression.file}",
        "completionId": impression.completion_id,
        "uniqueId": str(uuid.uuid5(uuid.NAMESPACE_OID, impression.user)),
    }
    return {"name": "autocomplete", "schema": "0.2.0", "level": "all", "profileId": "local", "data": data}


def native_body(impression: Impression, accepted: bool, draws: Draws) -> dict[str, Any]:
    """Return an event of /v1/feedback, with the reason of a rejection."""
    event = {"completion_id": impression.request_id, "shown": impression.completion, "seen_ms": round(draws.seen_ms)}
    if accepted:
        return event | {"outcome": "accepted"}
    return event | {"outcome": "rejected", "reason": "rejected" if draws.dismissed else "typed_away"}
