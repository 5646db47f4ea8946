"""The bodies and headers that Continue sends. What the developer is about to write has no way in."""

import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from infra import fim

STOPS = (
    *("<|endoftext|>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>"),
    *("<|file_sep|>", "<|im_start|>", "<|im_end|>", "/src/", "#- coding: utf-8", "```"),
)
OPTIONS = {
    "disable": False,
    "maxPromptTokens": 1024,
    "debounceDelay": 350,
    "maxSuffixPercentage": 0.2,
    "prefixPercentage": 0.3,
    "transform": True,
    "multilineCompletions": "auto",
    "slidingWindowPrefixPercentage": 0.75,
    "slidingWindowSize": 500,
    "useCache": True,
    "onlyMyCode": True,
    "useRecentlyEdited": True,
    "useImports": True,
}
VERSION_HEADER = "X-Tabloop-Version"


@dataclass(frozen=True)
class Shown:
    """A completion on a developer's screen."""

    completion_id: str
    """Made by the editor; the completions server never sees it."""
    user: str
    file: str
    prefix: str
    """As sent, with what was typed since where a stream was used again."""
    suffix: str
    completion: str
    """After the editor's own cuts."""
    made: float
    """Unix seconds."""
    elapsed_ms: float
    """From the pause in typing, debounce included."""
    model: str


def prompt(prefix: str, suffix: str) -> str:
    """Continue's prompt for Qwen."""
    return f"{fim.PREFIX}{prefix}{fim.SUFFIX}{suffix}{fim.MIDDLE}"


def request(model: str, prefix: str, suffix: str) -> dict[str, Any]:
    """Body of `POST {apiBase}/completions`."""
    return {
        "model": model,
        "max_tokens": 4096,
        "temperature": 0.01,
        "stream": True,
        "stop": list(STOPS),
        "prompt": prompt(prefix, suffix),
    }


def request_headers(token: str, user: str, pin: str = "") -> dict[str, str]:
    """Its headers; the user arrives through requestOptions.headers, a pin asks for one version."""
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}", "api-key": token, "X-User-ID": user}
    return headers | ({VERSION_HEADER: pin} if pin else {})


def event_headers(token: str, user: str) -> dict[str, str]:
    """Headers of an event."""
    return {"Content-Type": "application/json", "Authorization": f"Bearer {token}", "X-User-ID": user}


def event(shown: Shown, accepted: bool, cache_hit: bool = False) -> dict[str, Any]:
    """One autocomplete event, schema 0.2.0, level all."""
    made = datetime.fromtimestamp(shown.made, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    data = {
        "eventName": "autocomplete",
        "schema": "0.2.0",
        "timestamp": made,
        "userId": "",
        "userAgent": "Visual Studio Code/1.103.0 (Continue/2.1.0)",
        "selectedProfileId": "local",
        **OPTIONS,
        "accepted": accepted,
        "time": round(shown.elapsed_ms),
        "prefix": shown.prefix,
        "suffix": shown.suffix,
        "prompt": prompt(shown.prefix, shown.suffix),
        "completion": shown.completion,
        "modelProvider": "openai",
        "modelName": shown.model,
        "cacheHit": cache_hit,
        "filepath": f"file:///workspace/{shown.file}",
        "completionId": shown.completion_id,
        "uniqueId": str(uuid.uuid5(uuid.NAMESPACE_OID, shown.user)),
    }
    return {"name": "autocomplete", "schema": "0.2.0", "level": "all", "profileId": "local", "data": data}
