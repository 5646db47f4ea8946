"""Send one completion and one feedback event to the running stack, as Continue does

Prints the response to each step; if a step fails, prints what to do.
"""

import json
import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime

import httpx

from infra import settings as settings_
from infra.model.fim import MIDDLE, PREFIX, SPECIAL_TOKENS, SUFFIX
from infra.records import Feedback
from infra.settings import Settings
from infra.storage.events.read import recent_keys
from infra.storage.store import ObjectStore

CODE = ("import os\n\ndef read(path):\n    with open(path) as ", ":\n        return f.read()\n")


class StepFailed(RuntimeError):
    """A step failed; the message says what to do."""


def run(settings: Settings, say: Callable[[str], None] = print) -> int:
    """Run every step once, and return the exit code."""
    serving = settings.serving
    headers = {"X-Project-ID": "try"}
    if serving.token:
        headers["Authorization"] = f"Bearer {serving.token.get_secret_value()}"
    with httpx.Client(headers=headers, timeout=60, trust_env=False) as client:
        try:
            check_ready(client, serving.completions_url, say)
            shown = complete(client, serving.completions_url, settings.model.name, say)
            event = send_feedback(client, serving.feedback_url, shown, say)
            wait_for_event(settings, event, say)
        except StepFailed as failure:
            say(f"  FAILED  {failure}")
            return 1
    say("everything works: the completion was served, and its feedback is in the object store")
    return 0


def check_ready(client: httpx.Client, url: str, say: Callable[[str], None]) -> None:
    """Check that the app responds and a model is loaded."""
    say(f"1. is the serving app ready?  GET {url}/ready")
    response = _ask(client, "GET", f"{url}/ready")
    if response.status_code == httpx.codes.SERVICE_UNAVAILABLE:
        raise StepFailed(
            f"no model is loaded yet: {response.text[:300]}\n  `tabloop status` shows the engines and where their logs are"
        )
    if not response.is_success:
        raise StepFailed(
            f"HTTP {response.status_code}: {response.text[:200]}\n  another program, not tabloop, uses the port: "
            "`tabloop down`, choose another serving.port in the settings, `tabloop up`"
        )
    say(f"  ok  {response.text[:200]}")


def complete(client: httpx.Client, url: str, model: str, say: Callable[[str], None]) -> str:
    """Request one streamed completion, and return its text."""
    say(f"2. a completion  POST {url}/v1/completions")
    prefix, suffix = CODE
    body = {
        "model": model,
        "prompt": f"{PREFIX}{prefix}{SUFFIX}{suffix}{MIDDLE}",
        "max_tokens": 32,
        "temperature": 0.01,
        "stream": True,
        "stop": list(SPECIAL_TOKENS),
    }
    began, text, line = time.monotonic(), "", ""
    try:
        with client.stream("POST", f"{url}/v1/completions", json=body) as response:
            if not response.is_success:
                response.read()
                _explain(response)
            for line in response.iter_lines():
                if line.startswith("data: ") and line != "data: [DONE]":
                    event = json.loads(line.removeprefix("data: "))
                    if "error" in event:
                        raise StepFailed(f"{event['error']['message']}\n  `tabloop status`, then the engines' logs")
                    text += event["choices"][0]["text"]
            if not text and "[DONE]" not in line:
                raise ValueError("no event")
    except (ValueError, LookupError, TypeError) as error:
        raise StepFailed(
            f"the stream has {line[:200]!r}\n  another program uses the port: `tabloop status`, and serving.port in the settings"
        ) from error
    except httpx.HTTPError as error:
        raise StepFailed(f"the stream broke: {error!r}\n  an engine may have died: `tabloop status`, then its log") from error
    say(f"  ok  {(time.monotonic() - began) * 1000:.0f} ms: {prefix.splitlines()[-1]}[{text}]")
    return text


def send_feedback(client: httpx.Client, url: str, shown: str, say: Callable[[str], None]) -> str:
    """Send one of Continue's autocomplete events (schema 0.2.0), and return its completionId."""
    say(f"3. a feedback event  POST {url}/v1/continue/events")
    prefix, suffix = CODE
    event = str(uuid.uuid4())
    data = {
        "eventName": "autocomplete",
        "schema": "0.2.0",
        "timestamp": datetime.now(UTC).isoformat(),
        "completionId": event,
        "accepted": False,
        "time": 400,
        "prefix": prefix,
        "suffix": suffix,
        "prompt": f"{PREFIX}{prefix}{SUFFIX}{suffix}{MIDDLE}",
        "completion": shown,
        "cacheHit": False,
        "filepath": "file:///try.py",
    }
    response = _ask(
        client,
        "POST",
        f"{url}/v1/continue/events",
        {"name": "autocomplete", "schema": "0.2.0", "level": "all", "profileId": "local", "data": data},
    )
    if not response.is_success:
        _explain(response)
    say(f"  ok  {response.text[:200]}")
    return event


def wait_for_event(settings: Settings, event: str, say: Callable[[str], None]) -> None:
    """Wait until the event is in the object store."""
    seconds = 30 + 3 * settings.serving.ship_seconds
    where, every = f"s3://{settings.store.bucket}/events/feedback/", settings.serving.ship_seconds
    say(f"4. is it in the object store?  {where} (shipped every {every:g} s)")
    store = ObjectStore.connect(settings.store)
    deadline, read, since = time.monotonic() + seconds, set[str](), time.time() - seconds
    while time.monotonic() < deadline:
        try:
            if key := find_event(store, event, since, time.time(), read):
                say(f"  ok  {key}")
                return
        except Exception as error:  # the user needs to see any error of the store
            raise StepFailed(
                f"the object store does not respond: {error}\n  `tabloop status`; the spool keeps the event meanwhile"
            ) from error
        time.sleep(0.5)
    raise StepFailed(
        f"the event did not reach the store in {seconds:.0f} s; it waits in {settings_.path(settings.serving.spool)}\n"
        "  the serving app's log says why it is not shipped; `tabloop status` shows the log's path"
    )


def find_event(store: ObjectStore, event: str, since: float, now: float, read: set[str]) -> str:
    """Return the key of the object that holds a feedback event; empty if none does yet.

    Args:
        event: its completionId.
        since: a Unix time before its segment was opened: the object is in that hour's folder, also where the day has ended since.
        read: keys that do not hold it; those that are read now are added.
    """
    for key in reversed([key for key in recent_keys(store, "feedback", since, now) if key not in read]):
        read.add(key)
        if any(row.client_id == event for row in store.get_rows(key, Feedback)):
            return key
    return ""


def _ask(client: httpx.Client, method: str, url: str, body: dict[str, object] | None = None) -> httpx.Response:
    try:
        return client.request(method, url, json=body)
    except httpx.ConnectError as error:
        raise StepFailed(f"nothing listens at {url}: {error}\n  `tabloop up` starts the stack") from error
    except httpx.HTTPError as error:
        raise StepFailed(
            f"{url}: {error!r}\n  another program may use the port: `tabloop status`, and serving.port in the settings"
        ) from error


def _explain(response: httpx.Response) -> None:
    """Raise StepFailed with the meaning of an error response."""
    status = f"HTTP {response.status_code}: {response.text[:300]}"
    match response.status_code:
        case 401 | 403:
            raise StepFailed(
                f"the token was refused. {status}\n  the app was started with another token: `tabloop down`, "
                "`tabloop up`, and check whether TABLOOP_SERVING__TOKEN is set in this terminal"
            )
        case 404 | 405:
            raise StepFailed(f"{status}\n  another program uses the port: `tabloop status`, and serving.port in the settings")
        case 502 | 503 | 504:
            raise StepFailed(f"no model is loaded, or the spool is full. {status}\n  `tabloop status`, then the engines' logs")
        case _:
            raise StepFailed(f"{status}\n  the serving app's log has details; `tabloop status` shows its path")
