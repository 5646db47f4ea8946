"""A judge that asks any OpenAI-compatible chat endpoint: DeepSeek, a local vLLM, OpenAI.

The answer must be JSON of one schema with a score from 0 to 10; any other answer is a failure with a kind. The judge retries
transient failures, bounds each judgement with a deadline, and stops sending requests to an endpoint that keeps failing.
"""

import json
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
from tasks.evaluation.judge.base import HIGHEST, LOWEST, Failed, Item, Judgement, Scored

MAX_BYTES = 1 << 18
SCHEMA = {
    "type": "object",
    "properties": {"score": {"type": "integer", "minimum": int(LOWEST), "maximum": int(HIGHEST)}},
    "required": ["score"],
    "additionalProperties": False,
}
RETRIED_STATUS = frozenset({408, 409, 425, 429, 500, 502, 503, 504})


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

    @property
    def open(self) -> bool:
        """Whether the judge must send no more requests."""
        return self._failures >= self._limit

    def record(self, success: bool) -> None:
        """Count the result of one judgement."""
        with self._lock:
            self._failures = 0 if success else self._failures + 1


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
        self.name = settings.model
        self._settings, self._policy, self._sleep = settings, policy or RequestPolicy(), sleep
        self._instructions = read_rubric(settings)

    @property
    def identity(self) -> str:
        """Everything but the item that a score depends on: the model and the text of the rubric."""
        return f"{self.name}\n{self._instructions}"

    def score(self, items: Sequence[Item]) -> list[Judgement]:
        """Return one judgement for each item, in order; never raises for an item."""
        key = self._settings.api_key
        headers = {"Authorization": f"Bearer {key.get_secret_value()}"} if key else {}
        breaker = CircuitBreaker(self._policy.open_after)
        with (
            httpx.Client(base_url=self._settings.url.rstrip("/") + "/", headers=headers) as client,
            ThreadPoolExecutor(self._settings.concurrency) as pool,
        ):
            return list(pool.map(partial(self._judge, client, breaker), items))

    def _judge(self, client: httpx.Client, breaker: CircuitBreaker, item: Item) -> Judgement:
        if breaker.open:
            return Failed("circuit_open", f"{self._policy.open_after} judgements failed in a row")
        deadline = time.monotonic() + self._policy.seconds
        pause = self._policy.pause_seconds
        judgement, retry = self._request(client, item, deadline)
        for _ in range(self._policy.attempts - 1):
            if not retry or time.monotonic() + pause >= deadline:
                break
            self._sleep(pause)
            pause *= 2
            judgement, retry = self._request(client, item, deadline)
        breaker.record(isinstance(judgement, Scored))
        return judgement

    def _request(self, client: httpx.Client, item: Item, deadline: float) -> tuple[Judgement, bool]:
        """Send one request. Return its judgement and whether a retry may help."""
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            return Failed("timeout", f"no answer in {self._policy.seconds:g} s"), False
        try:
            with client.stream("POST", "chat/completions", json=self._body(item), timeout=remaining) as response:
                status, answer = response.status_code, _read_body(response, deadline)
        except (httpx.TimeoutException, TimeoutError):
            return Failed("timeout", f"no answer in {self._policy.seconds:g} s"), False
        except httpx.HTTPError as error:
            return Failed("unavailable", type(error).__name__), True
        if status != 200:
            retry = status in RETRIED_STATUS
            return Failed("unavailable" if retry else "refused", f"status {status}"), retry
        judgement = read_score(answer)
        return judgement, isinstance(judgement, Failed)

    def _body(self, item: Item) -> dict[str, Any]:
        most = self._settings.context_characters
        material = {
            "before": item.prefix[max(0, len(item.prefix) - most) :],
            "after": item.suffix[:most],
            "written": item.truth,
            "completion": item.completion,
        }
        return {
            "model": self._settings.model,
            "temperature": 0,
            "max_tokens": 64,
            "messages": [{"role": "system", "content": self._instructions}, {"role": "user", "content": json.dumps(material)}],
            "response_format": {"type": "json_schema", "json_schema": {"name": "score", "strict": True, "schema": SCHEMA}},
        }


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


def read_score(answer: str) -> Judgement:
    """Return the score in the body of a chat completion, or the failure where it is malformed or out of range."""
    try:
        content = json.loads(answer)["choices"][0]["message"]["content"]
        score = json.loads(content)["score"]
    except (ValueError, KeyError, IndexError, TypeError) as error:
        return Failed("garbage", f"{type(error).__name__} in {answer[:200]!r}")
    if isinstance(score, bool) or not isinstance(score, int | float):
        return Failed("garbage", f"score is {score!r}")
    if not LOWEST <= score <= HIGHEST:
        return Failed("out_of_range", f"score is {score!r}, expected {LOWEST:g} to {HIGHEST:g}")
    return Scored(float(score))
