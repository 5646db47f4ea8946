"""One completion and one feedback event through the real endpoints, as Continue sends them: python -m infra.stack.try_it

Says of each step what came back, and where it fails what to do.
"""

import json
import sys
import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime

import httpx

from infra import settings as settings_
from infra.fim import MIDDLE, PREFIX, SPECIAL_TOKENS, SUFFIX
from infra.records import Feedback
from infra.settings import Settings, SettingsError
from infra.store import ObjectStore

CODE = ("import os\n\ndef read(path):\n    with open(path) as ", ":\n        return f.read()\n")


class StepFailed(RuntimeError):
    """A step did not do what it should; the message says what to do."""


def main(settings: Settings, say: Callable[[str], None] = print) -> int:
    """Try everything once; gives back the exit code."""
    serving = settings.serving
    host = "127.0.0.1" if serving.host == "0.0.0.0" else serving.host
    headers = {"X-Project-ID": "try", "X-User-ID": "try"}
    if serving.token:
        headers["Authorization"] = f"Bearer {serving.token.get_secret_value()}"
    completions, feedback = f"http://{host}:{serving.port}", f"http://{host}:{serving.feedback_port}"
    with httpx.Client(headers=headers, timeout=60, trust_env=False) as client:
        try:
            check_ready(client, completions, say)
            shown = complete(client, completions, settings.model.name, say)
            event = send_feedback(client, feedback, shown, say)
            wait_for_event(settings, event, say)
        except StepFailed as failure:
            say(f"  FAILED  {failure}")
            return 1
    say("everything works: a completion was served, and its feedback is in the object store")
    return 0


def check_ready(client: httpx.Client, url: str, say: Callable[[str], None]) -> None:
    """The app is up, and a model is loaded."""
    say(f"1. is the serving app ready?  GET {url}/ready")
    answer = _ask(client, "GET", f"{url}/ready")
    if answer.status_code == httpx.codes.SERVICE_UNAVAILABLE:
        raise StepFailed(
            f"no model is loaded yet: {answer.text[:300]}\n  `make status` shows the engines and where their logs are"
        )
    if not answer.is_success:
        raise StepFailed(
            f"HTTP {answer.status_code}: {answer.text[:200]}\n  that is not tabloop; another program has the port: "
            "`make down`, choose another serving.port in the settings, `make up`"
        )
    say(f"  ok  {answer.text[:200]}")


def complete(client: httpx.Client, url: str, model: str, say: Callable[[str], None]) -> str:
    """One streamed completion; gives back its text."""
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
    began, text = time.monotonic(), ""
    try:
        with client.stream("POST", f"{url}/v1/completions", json=body) as answer:
            if not answer.is_success:
                answer.read()
                _explain(answer)
            for line in answer.iter_lines():
                if line.startswith("data: ") and line != "data: [DONE]":
                    text += json.loads(line.removeprefix("data: "))["choices"][0]["text"]
    except httpx.HTTPError as error:
        raise StepFailed(f"the stream broke: {error!r}\n  an engine died? `make status`, then its log") from error
    say(f"  ok  {(time.monotonic() - began) * 1000:.0f} ms: {prefix.splitlines()[-1]}[{text}]")
    return text


def send_feedback(client: httpx.Client, url: str, shown: str, say: Callable[[str], None]) -> str:
    """One autocomplete event of Continue's, schema 0.2.0; gives back its completionId."""
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
    answer = _ask(
        client,
        "POST",
        f"{url}/v1/continue/events",
        {"name": "autocomplete", "schema": "0.2.0", "level": "all", "profileId": "local", "data": data},
    )
    if not answer.is_success:
        _explain(answer)
    say(f"  ok  {answer.text[:200]}")
    return event


def wait_for_event(settings: Settings, event: str, say: Callable[[str], None]) -> None:
    """Look for the event in the object store until it is there."""
    seconds = 30 + 3 * settings.serving.ship_seconds
    where, every = f"s3://{settings.store.bucket}/events/feedback/", settings.serving.ship_seconds
    say(f"4. is it in the object store?  {where} (shipped every {every:g} s)")
    store = ObjectStore.connect(settings.store)
    deadline, read = time.monotonic() + seconds, set[str]()
    while time.monotonic() < deadline:
        try:
            new = [key for key in store.keys(f"events/feedback/date={datetime.now(UTC):%Y-%m-%d}/") if key not in read]
            for key in reversed(new):
                read.add(key)
                if any(row.client_id == event for row in store.get_rows(key, Feedback)):
                    say(f"  ok  {key}")
                    return
        except Exception as error:  # whatever the store says is what the user has to see
            raise StepFailed(
                f"the object store does not answer: {error}\n  `make status`; the spool keeps the event until the store is back"
            ) from error
        time.sleep(0.5)
    raise StepFailed(
        f"nothing reached the store in {seconds:.0f} s; the event waits in {settings_.path(settings.serving.spool)}\n"
        "  the serving app's log says why it is not shipped: `make status` shows where it is"
    )


def _ask(client: httpx.Client, method: str, url: str, body: dict[str, object] | None = None) -> httpx.Response:
    try:
        return client.request(method, url, json=body)
    except httpx.ConnectError as error:
        raise StepFailed(f"nothing listens at {url}: {error}\n  `make up` starts the stack, `make status` shows it") from error
    except httpx.HTTPError as error:
        raise StepFailed(
            f"{url}: {error!r}\n  something else may have the port: `make status`, and serving.port in the settings"
        ) from error


def _explain(answer: httpx.Response) -> None:
    """Raise StepFailed with what an error of the app means."""
    words = f"HTTP {answer.status_code}: {answer.text[:300]}"
    match answer.status_code:
        case 401 | 403:
            raise StepFailed(
                f"the token was refused. {words}\n  the app was started with another one: `make down`, `make up`; "
                "is TABLOOP_SERVING__TOKEN set in this terminal?"
            )
        case 404 | 405:
            raise StepFailed(f"{words}\n  another program has the port: `make status`, and serving.port in the settings")
        case 502 | 503 | 504:
            raise StepFailed(f"the model is not loaded, or the spool is full. {words}\n  `make status`, then the engines' logs")
        case _:
            raise StepFailed(f"{words}\n  the serving app's log has more: `make status` shows where it is")


if __name__ == "__main__":
    try:
        sys.exit(main(settings_.load()))
    except SettingsError as error:
        sys.exit(f"settings: {error}")
