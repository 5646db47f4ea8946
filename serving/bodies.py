"""What a completion is told as, in each client's dialect: whole, or as the events of a stream. The other way: dialects.py."""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from serving.generation import Generation

Body = Callable[[Generation], dict[str, Any]]
FINISHES = {"stop": "stop", "length": "length", "error": "length"}
"""OpenAI knows no completion that was cut off by an engine's end; with this its client takes it as a part."""
BROKEN_OFF = "the engine ended in the middle of this completion; try again"


def error_body(message: str, kind: str = "invalid_request_error", parameter: str | None = None) -> dict[str, Any]:
    """OpenAI's shape of an error."""
    return {"error": {"message": message, "type": kind, "param": parameter, "code": None}}


def openai(model: str) -> Body:
    """OpenAI's completion."""

    def body(done: Generation) -> dict[str, Any]:
        choice = {"text": done.text, "index": 0, "logprobs": None, "finish_reason": FINISHES[done.finish]}
        return _frame(done, model) | {"choices": [choice]} | _usage(done)

    return body


def tabby(done: Generation) -> dict[str, Any]:
    """Tabby's."""
    return {"id": done.id, "choices": [{"index": 0, "text": done.text}], "mode": "standard"}


def infill(model: str, room: int, fields: Sequence[str]) -> Body:
    """llama.cpp's; of all its fields those that the client names, if it names some ("timings/prompt_ms" lies inside another)."""

    def body(done: Generation) -> dict[str, Any]:
        found = _infill(done, model, room)
        if not fields:
            return found
        paths = {field: _at(found, field.split("/")) for field in fields}
        return {field: value for field, value in paths.items() if value is not None}

    return body


class Events(ABC):
    """A stream's server-sent events."""

    @abstractmethod
    def text(self, text: str) -> bytes:
        """Text that was sampled."""

    @abstractmethod
    def last(self) -> bytes:
        """What follows the last text."""

    def broken_off(self) -> bytes:
        """What follows the last text where the engine died after it."""
        return _event(error_body(BROKEN_OFF, "server_error"))


class OpenAIEvents(Events):
    """OpenAI's events; each is put together from pieces that are encoded once."""

    def __init__(self, generation: Generation, model: str, *, usage: bool) -> None:
        self._generation = generation
        self._frame = _frame(generation, model)
        self._usage = usage
        told = {**self._frame, "usage": None} if usage else self._frame
        self._head = f'data: {json.dumps(told)[:-1]}, "choices": [{{"text": '

    def text(self, text: str) -> bytes:
        return (self._head + json.dumps(text) + MORE).encode()

    def last(self) -> bytes:
        found = (self._head + '""' + _tail(FINISHES[self._generation.finish])).encode()
        if self._usage:
            found += _event({**self._frame, "choices": [], **_usage(self._generation)})
        return found + DONE

    def broken_off(self) -> bytes:
        return super().broken_off() + DONE


class InfillEvents(Events):
    """llama.cpp's events: text by text, then the whole body without it."""

    def __init__(self, generation: Generation, body: Body) -> None:
        self._generation = generation
        self._body = body

    def text(self, text: str) -> bytes:
        return _event({"content": text, "stop": False})

    def last(self) -> bytes:
        return _event({**self._body(self._generation), "content": "", "stop": True})


def _frame(generation: Generation, model: str) -> dict[str, Any]:
    return {"id": generation.id, "object": "text_completion", "created": int(generation.arrived), "model": model}


def _tail(finish: str | None) -> str:
    """What follows the text in an event."""
    return f', "index": 0, "logprobs": null, "finish_reason": {json.dumps(finish)}}}]}}\n\n'


MORE = _tail(None)
DONE = b"data: [DONE]\n\n"


def _event(body: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(body)}\n\n".encode()


def _usage(done: Generation) -> dict[str, Any]:
    """Tokens; nothing where the server does not tell them."""
    if done.sampled is None:
        return {}
    prompt = len(done.prompt)
    return {"usage": {"prompt_tokens": prompt, "completion_tokens": done.sampled, "total_tokens": prompt + done.sampled}}


def _infill(done: Generation, model: str, room: int) -> dict[str, Any]:
    """All that is told of a completion to llama.cpp's clients."""
    found: dict[str, Any] = {"content": done.text, "stop": True, "id_slot": 0, "model": model}
    found["generation_settings"] = {"n_ctx": room} | done.sampling
    found["truncated"] = False  # of llama.cpp's meaning: the room was used up while it sampled
    prompt, sampled = len(done.prompt), done.sampled
    first_ms = done.first_ms or 0.0
    times = {"prompt": (prompt, first_ms), "predicted": (sampled, done.total_ms - first_ms)}
    found["timings"] = {name: value for part, pair in times.items() for name, value in _timing(part, *pair).items()}
    if sampled is not None:
        found |= {"tokens_predicted": sampled, "tokens_evaluated": prompt, "tokens_cached": prompt + sampled}
    return found


def _timing(part: str, tokens: int | None, ms: float) -> dict[str, float]:
    """llama.cpp's four numbers of a part; the time alone where tokens are not told."""
    ms = max(ms, 0.001)  # a time of nothing has no rate
    found: dict[str, float] = {f"{part}_ms": round(ms, 3)}
    if tokens is not None:
        found |= {f"{part}_n": tokens, f"{part}_per_second": round(tokens * 1e3 / ms, 3)}
    if tokens:
        found[f"{part}_per_token_ms"] = round(ms / tokens, 3)
    return found


def _at(value: Any, path: Sequence[str]) -> Any:
    """What lies at a path; none where nothing does."""
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value
