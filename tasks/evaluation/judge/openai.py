"""A judge that asks any OpenAI-compatible chat endpoint: DeepSeek, a local vLLM, OpenAI.

The answer must hold a score from 0 to 10; any other answer is a failure with a kind. The judge retries transient failures, bounds
each judgement with a deadline, and stops sending requests to an endpoint that keeps failing. The form of the request that an
endpoint takes (form.py) is found by the first judgements and kept.
"""

import email.utils
import json
import math
import re
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import httpx

from infra import settings as configuration
from infra.settings import schema
from tasks.evaluation.judge.base import Failed, Item, Judgement
from tasks.evaluation.judge.form import CONTEXT, FILTER, Form
from tasks.evaluation.judge.reading import SHOWN, read_score

MAX_BYTES = 1 << 18
RETRIED_STATUS = frozenset({408, 409, 425, 429})
"""Statuses of a transient failure, beside all from 500 on."""
QUOTA = "insufficient_quota"
"""Code of a 429 that no waiting ends (OpenAI)."""
ADVICE = {
    401: "check evaluate.judge.api_key (TABLOOP_EVALUATE__JUDGE__API_KEY)",
    402: "the account of evaluate.judge.api_key has no balance",
    403: "check evaluate.judge.api_key (TABLOOP_EVALUATE__JUDGE__API_KEY), and that it may use evaluate.judge.model",
    404: "check evaluate.judge.model, and evaluate.judge.url, which includes /v1",
    405: "check evaluate.judge.url, which includes /v1",
    413: "lower evaluate.judge.context_characters",
    429: "the account of evaluate.judge.api_key has no quota left",
}
OTHER_ADVICE = "check evaluate.judge.model and evaluate.judge.url, or choose another judge"


@dataclass(frozen=True)
class RequestPolicy:
    """Limits on the requests of the judge."""

    seconds: float = 30.0
    """Deadline of one judgement, all attempts together."""
    attempts: int = 3
    """Requests for one judgement at most."""
    pause_seconds: float = 0.5
    """Pause before the second attempt; doubles before each further one."""
    open_after: int = 8
    """Consecutive failed judgements after which the judge sends no more requests."""


class CircuitBreaker:
    """Opens after `limit` consecutive failures. Threads share it."""

    def __init__(self, limit: int) -> None:
        self._limit, self._failures, self._lock = limit, 0, threading.Lock()
        self.detail = ""
        """The detail of the last failure."""

    @property
    def open(self) -> bool:
        """Whether the judge must send no more requests."""
        return self._failures >= self._limit

    def record(self, judgement: Judgement) -> None:
        """Count a judgement; a refusal of one item's text says nothing about the others."""
        with self._lock:
            if isinstance(judgement, Failed) and judgement.kind != "declined":
                self._failures, self.detail = self._failures + 1, judgement.detail
            else:
                self._failures = 0


@dataclass(frozen=True)
class Reply:
    """The judgement of one request."""

    judgement: Judgement
    retry: bool = False
    """Whether the same request may succeed later."""
    wait: float = 0.0
    """Seconds that the server asks to wait before."""
    form: Form | None = None
    """Another form to ask in at once."""


class OpenAIJudge:
    """Scores completions by a chat model."""

    def __init__(
        self, settings: schema.Judge, policy: RequestPolicy | None = None, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        if not settings.url or not settings.model:
            raise ValueError(
                f"evaluate.judge: kind openai needs url and model, got url={settings.url!r} and model={settings.model!r}; "
                "set both, e.g. url = http://127.0.0.1:8000/v1, or choose kind = reference"
            )
        key = settings.api_key.get_secret_value() if settings.api_key else ""
        if not (key.isascii() and key.isprintable()):
            raise ValueError(
                "evaluate.judge.api_key (TABLOOP_EVALUATE__JUDGE__API_KEY) holds a character that no header may have; expected "
                "printable ASCII; copy it again"
            )
        self.name, self._key = settings.model, key
        self._settings, self._policy, self._sleep = settings, policy or RequestPolicy(), sleep
        self._instructions = read_rubric(settings)
        self._form, self._proven, self._lock = Form(), False, threading.Lock()

    @property
    def identity(self) -> str:
        """Everything but the item that a score depends on: the model and the text of the rubric."""
        return f"{self.name}\n{self._instructions}"

    def score(self, items: Sequence[Item]) -> list[Judgement]:
        """Return one judgement for each item, in order; never raises for an item."""
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        breaker = CircuitBreaker(self._policy.open_after)
        with (
            httpx.Client(base_url=self._settings.url.rstrip("/") + "/", headers=headers) as client,
            ThreadPoolExecutor(self._settings.concurrency) as pool,
        ):
            return list(pool.map(partial(self._judge, client, breaker), items))

    def _judge(self, client: httpx.Client, breaker: CircuitBreaker, item: Item) -> Judgement:
        if breaker.open:
            return Failed("circuit_open", f"{self._policy.open_after} judgements failed in a row, the last: {breaker.detail}")
        deadline = time.monotonic() + self._policy.seconds
        pause = self._policy.pause_seconds
        reply = self._in_form(client, item, deadline)
        for _ in range(self._policy.attempts - 1):
            wait = max(pause, reply.wait)
            if not reply.retry or time.monotonic() + wait >= deadline:
                break
            self._sleep(wait)
            pause *= 2
            reply = self._in_form(client, item, deadline)
        breaker.record(reply.judgement)
        return reply.judgement

    def _in_form(self, client: httpx.Client, item: Item, deadline: float) -> Reply:
        """Send one request, and others while the endpoint refuses the form; keep the form that it takes."""
        while True:
            form = self._form
            reply = self._request(client, item, form, deadline)
            if reply.form is None:
                return reply
            with self._lock:  # else another thread has changed it, and this request is sent in that form
                if self._form is form:
                    self._form, self._proven = reply.form, False

    def _request(self, client: httpx.Client, item: Item, form: Form, deadline: float) -> Reply:
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            return Reply(Failed("timeout", f"no answer in {self._policy.seconds:g} s"))
        try:
            with client.stream("POST", "chat/completions", json=self._body(item, form), timeout=remaining) as response:
                status, answer, headers = response.status_code, _read_body(response, deadline), response.headers
        except (httpx.TimeoutException, TimeoutError):
            return Reply(Failed("timeout", f"no answer in {self._policy.seconds:g} s"))
        except httpx.UnsupportedProtocol as error:
            return Reply(Failed("refused", f"{error}: check evaluate.judge.url"))
        except httpx.HTTPError as error:
            return Reply(Failed("unavailable", f"{type(error).__name__}: {error}"), retry=True)
        status = _status_within(answer) if status == 200 else status
        if status != 200:
            return self._error(status, answer, headers, form)
        self._proven = self._proven or form is self._form
        judgement = read_score(answer)
        if isinstance(judgement, Failed) and judgement.kind == "cut_off":
            return Reply(judgement, form=form.longer())
        return Reply(judgement, retry=isinstance(judgement, Failed) and judgement.kind != "declined")

    def _error(self, status: int, answer: str, headers: httpx.Headers, form: Form) -> Reply:
        words = _words(answer).replace(self._key, "***") if self._key else _words(answer)
        said = f"HTTP {status}: {words[:SHOWN]}" if words else f"HTTP {status}"
        if "json_validate_failed" in answer or "failed_generation" in answer:  # Groq, of one answer
            return Reply(Failed("garbage", said), retry=True)
        if other := form.after(status, words, self._proven):
            return Reply(Failed("refused", said), form=other)
        if (status in RETRIED_STATUS and QUOTA not in answer) or status >= 500:
            return Reply(Failed("unavailable", said), retry=True, wait=_wait(headers))
        if status == 413 or CONTEXT.search(words):
            return Reply(Failed("declined", f"{said}; {ADVICE[413]}"))
        if status in (400, 403, 422) and FILTER.search(answer):
            return Reply(Failed("declined", f"{said}; the endpoint filters this text: {OTHER_ADVICE}"))
        return Reply(Failed("refused", f"{said}; {ADVICE.get(status, OTHER_ADVICE)}"))

    def _body(self, item: Item, form: Form) -> dict[str, Any]:
        most = self._settings.context_characters
        material = {
            "before": item.prefix[max(0, len(item.prefix) - most) :],
            "after": item.suffix[:most],
            "written": item.truth,
            "completion": item.completion,
        }
        return form.body(self._settings.model, self._instructions, material)


def read_rubric(settings: schema.Judge) -> str:
    """Return the judge's instructions. Raises ValueError: the file is missing or empty."""
    file = configuration.path(settings.rubric)
    text = file.read_text().strip() if file.is_file() else ""
    if not text:
        raise ValueError(
            f"evaluate.judge.rubric = {str(settings.rubric)!r}: expected a file with the judge's instructions; copy "
            "tasks/evaluation/judge/rubric.md and change it, or leave the setting out"
        )
    return text


def _read_body(response: httpx.Response, deadline: float) -> str:
    """Return the body, at most MAX_BYTES of it. Raises TimeoutError after the deadline, since httpx bounds each chunk only."""
    body = bytearray()
    for chunk in response.iter_bytes():
        body += chunk
        if time.monotonic() > deadline:
            raise TimeoutError
        if len(body) > MAX_BYTES:
            break
    return body.decode(errors="replace")


def _words(answer: str) -> str:
    """Return the message in the body of an error; the body itself if it is no JSON, and "" for a web page."""
    try:
        found = json.loads(answer)
    except (ValueError, RecursionError):
        return "" if answer.lstrip().startswith("<") else " ".join(answer.split())
    for name in ("error", "message", "detail", "error_msg", "msg"):
        while isinstance(found, dict) and found.get(name):
            found = found[name]
    text = found if isinstance(found, str) else json.dumps(found)
    return "" if text in ("{}", "null", "[]") else " ".join(text.split())


def _status_within(answer: str) -> int:
    """Return the status of an answer with HTTP 200: that of the error in its body (OpenRouter, gateways), else 200."""
    try:
        body = json.loads(answer)
    except (ValueError, RecursionError):
        return 200
    error = body.get("error") if isinstance(body, dict) and not body.get("choices") else None
    if not error:
        return 200
    code = str(error.get("code")) if isinstance(error, dict) else ""
    return int(code) if re.fullmatch("[45][0-9]{2}", code) else 502


def _wait(headers: httpx.Headers) -> float:
    """Return the seconds that a server asks to wait, by a number or a date; 0 if it asks for none."""
    asked = headers.get("retry-after", "")
    try:
        seconds = float(asked)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(asked).timestamp() - time.time()
        except (ValueError, TypeError):
            return 0.0
    return max(0.0, seconds) if math.isfinite(seconds) else 0.0
