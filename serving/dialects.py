"""What clients send, read into one form. See each client's shape in README.md."""

import json
from collections.abc import Mapping
from typing import Any

from fastapi import Request
from starlette.requests import ClientDisconnect

from infra import fim
from infra.language import language
from serving.generation import Asked

MOST_BYTES = 1 << 20
LEFT = 499
"""Status of a request whose client left, as nginx counts it; nobody reads the answer."""
MOST_STOPS = 64
OWN_SAMPLING = "the server samples by its own settings (serving.sampling), which completions are trained by"
REFUSED: dict[str, tuple[tuple[Any, ...], str]] = {
    "n": ((1,), "there is one completion a request"),
    "best_of": ((1,), "there is one completion a request"),
    "echo": ((False,), "the prompt is not given back"),
    "logprobs": ((0, False), "log-probabilities are kept and not given out"),
    "logit_bias": (({},), OWN_SAMPLING),
    "presence_penalty": ((0,), OWN_SAMPLING),
    "frequency_penalty": ((0,), OWN_SAMPLING),
    "repetition_penalty": ((1,), OWN_SAMPLING),
    "seed": ((), OWN_SAMPLING + ", and no two requests get the same"),
}
"""OpenAI's and vLLM's fields that would change what the answer means, with the values that do not, and why not."""


class BadRequest(ValueError):
    """The client's mistake; says which field."""

    def __init__(self, message: str, parameter: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.parameter = parameter
        self.status = status


async def read_json(request: Request, most_bytes: int = MOST_BYTES) -> dict[str, Any]:
    """The body as a JSON object, bounded. Raises BadRequest."""
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > most_bytes:
                raise BadRequest(f"body: more than {most_bytes} bytes", status=413)
    except ClientDisconnect:
        raise BadRequest("body: the client left in the middle of it", status=LEFT) from None
    try:
        value = json.loads(body.decode())
        if b"\\u" in body:
            json.dumps(value, ensure_ascii=False).encode()  # half a surrogate pair is no text
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"body: not JSON: {str(error)[:200]}") from None
    if not isinstance(value, dict):
        raise BadRequest(f"body: expected a JSON object, got {type(value).__name__}")
    return value


def openai(body: Mapping[str, Any]) -> Asked:
    """OpenAI's completions, as Continue and RLinf's variant of it send them."""
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1:
        prompt = prompt[0]
    if not isinstance(prompt, str):
        raise BadRequest("prompt: expected a string; several prompts or token ids are not supported", "prompt")
    for name, (fine, why) in REFUSED.items():
        if (value := body.get(name)) is not None and value not in fine:
            expected = f"expected {fine[0]!r} or nothing" if fine else "leave it out"
            raise BadRequest(f"{name}: {str(value)[:40]} is not supported, {expected}: {why}", name)
    if (suffix := body.get("suffix")) is None:
        try:
            context = fim.take_apart(prompt)
        except ValueError as error:
            raise BadRequest(str(error), "prompt") from None
        prefix, suffix = context.prefix, context.suffix
    else:
        prefix, suffix = prompt, _text(body, "suffix")
    return Asked(prefix, suffix, _count(body, "max_tokens"), _stops(body))


def tabby(body: Mapping[str, Any]) -> Asked:
    """Tabby's `segments`."""
    segments = body.get("segments")
    if not isinstance(segments, dict):
        raise BadRequest("segments: expected an object with prefix and suffix", "segments")
    return Asked(
        _text(segments, "prefix", "segments.prefix"),
        _text(segments, "suffix", "segments.suffix", optional=True),
        language=language(
            _text(segments, "filepath", "segments.filepath", optional=True), _text(body, "language", optional=True)
        ),
    )


def infill(body: Mapping[str, Any]) -> Asked:
    """llama.vim and llama.vscode; `prompt` is the text before the cursor on its line."""
    prefix = _text(body, "input_prefix") + _text(body, "prompt", optional=True)
    suffix, most = _text(body, "input_suffix"), _count(body, "n_predict", least=-1)
    return Asked(prefix, suffix, most, _stops(body), _milliseconds(body, "t_max_predict_ms"))


def streamed(body: Mapping[str, Any]) -> bool:
    """Whether the client wants its answer as a stream."""
    return _flag(body, "stream")


def usage_wanted(body: Mapping[str, Any]) -> bool:
    """Whether a stream is to end with the number of tokens."""
    options = body.get("stream_options")
    if options is None:
        return False
    if not isinstance(options, dict):
        raise BadRequest(f"stream_options: expected an object, got {type(options).__name__}", "stream_options")
    return _flag(options, "include_usage", "stream_options.include_usage")


def response_fields(body: Mapping[str, Any]) -> list[str]:
    """The fields that a llama.cpp client wants told; empty: all."""
    value = body.get("response_fields")
    found = [] if value is None else value
    if not isinstance(found, list) or not all(isinstance(field, str) for field in found):
        raise BadRequest("response_fields: expected a list of strings", "response_fields")
    return found


def client_guess(body: Mapping[str, Any], headers: Mapping[str, str]) -> str:
    """Continue is known by its stop tokens or its second key header; it has no User-Agent of its own."""
    stops = body.get("stop")
    if "segments" in body:
        return "tabby"
    if "input_prefix" in body:
        return "llama"
    return "continue" if "api-key" in headers or (isinstance(stops, list) and fim.PREFIX in stops) else ""


def _text(body: Mapping[str, Any], name: str, shown: str = "", *, optional: bool = False) -> str:
    value = body.get(name)
    if optional and value is None:
        return ""
    if not isinstance(value, str):
        raise BadRequest(f"{shown or name}: expected a string, got {type(value).__name__}", shown or name)
    return value


def _flag(body: Mapping[str, Any], name: str, shown: str = "") -> bool:
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise BadRequest(f"{shown or name}: expected true or false, got {str(value)[:40]}", shown or name)
    return bool(value)


def _milliseconds(body: Mapping[str, Any], name: str) -> float | None:
    """A time; none where it is not set or not above 0, as llama.cpp has it."""
    value = body.get(name)
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise BadRequest(f"{name}: expected a number of milliseconds, got {str(value)[:40]}", name)
    return value if value > 0 else None


def _count(body: Mapping[str, Any], name: str, least: int = 1) -> int | None:
    value = body.get(name)
    if value is None or (least < 0 and value == -1):
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < max(0, least):
        raise BadRequest(f"{name}: expected a whole number of at least {max(0, least)}, got {str(value)[:40]}", name)
    return value


def _stops(body: Mapping[str, Any]) -> tuple[str, ...]:
    """Stop strings; the frame's tokens end a completion anyway and are never text."""
    value = body.get("stop")
    values = [value] if isinstance(value, str) else [] if value is None else value
    if not isinstance(values, list) or not all(isinstance(v, str) for v in values):
        raise BadRequest("stop: expected a string or a list of strings", "stop")
    if len(values) > MOST_STOPS:
        raise BadRequest(f"stop: at most {MOST_STOPS} strings, got {len(values)}", "stop")
    return tuple(v for v in values if v and v not in fim.SPECIAL_TOKENS)
