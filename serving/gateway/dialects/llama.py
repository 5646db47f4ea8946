"""llama.cpp's /infill: llama.vim and llama.vscode."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from fastapi.responses import JSONResponse, Response

from serving.gateway.dialects.base import (
    CompletionFormat,
    Dialect,
    Events,
    Fields,
    ParsedCompletion,
    Render,
    ServedModel,
    encode_event,
    read_count,
    read_flag,
    read_stop,
    read_strings,
    read_text,
    short,
)
from serving.gateway.errors import BadRequest
from serving.gateway.generation import CompletionRequest, Generation
from serving.gateway.openapi import FLAG, STOP, TEXT, USER, object_schema, optional

MAX_FIELDS = 64
"""Fields that a response may be limited to; it has fewer."""
SCHEMA = object_schema(
    ("input_prefix", "input_suffix"),
    input_prefix=TEXT,
    input_suffix=TEXT,
    prompt=optional(TEXT),
    n_predict=optional({"type": "integer", "minimum": -1}),
    t_max_predict_ms=optional({"type": "number"}),
    stop=STOP,
    stream=FLAG,
    response_fields=optional({"type": "array", "items": TEXT, "maxItems": MAX_FIELDS}),
    user=USER,
)
ANSWER = object_schema((), content=TEXT, stop={"type": "boolean"}, model=TEXT, timings={"type": "object"})
"""`response_fields` chooses the fields."""


def parse(body: Fields, model: ServedModel) -> ParsedCompletion | Response:
    """Read a body of /infill; n_predict 0 is a warm-up and gets an empty completion. Raises BadRequest."""
    request, stream, fields = _request(body), read_flag(body, "stream"), read_strings(body, "response_fields", MAX_FIELDS)
    if request.max_tokens == 0:
        return JSONResponse({"content": "", "stop": True, "timings": {}})
    render = partial(_body, model, fields)
    return ParsedCompletion(request, render, partial(InfillEvents, render=render) if stream else None)


def _request(body: Fields) -> CompletionRequest:
    """`prompt` is the text before the cursor on its line."""
    prefix = read_text(body, "input_prefix") + read_text(body, "prompt", optional=True)
    suffix, max_tokens = read_text(body, "input_suffix"), read_count(body, "n_predict", minimum=-1)
    return CompletionRequest(prefix, suffix, max_tokens, read_stop(body), _positive_ms(body, "t_max_predict_ms"))


def _positive_ms(body: Fields, name: str) -> float | None:
    """Return a time in milliseconds; none for null, nothing, 0 and below, as in llama.cpp."""
    value = body.get(name)
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise BadRequest(f"{name}: expected a number of milliseconds, got {short(value)}", name)
    return value if value > 0 else None


def _body(model: ServedModel, fields: Sequence[str], generation: Generation) -> dict[str, Any]:
    """Return the fields that the client names ("timings/prompt_ms" is a field of a field), or all if it names none."""
    body = _full_body(model, generation)
    if not fields:
        return body
    values = {field: _value_at(body, field.split("/")) for field in fields}
    return {field: value for field, value in values.items() if value is not None}


def _full_body(model: ServedModel, generation: Generation) -> dict[str, Any]:
    # The arms may sample in different ways, so sampling names the arm.
    sent = generation.engine_request if generation.caller.sees_versions else None
    sampling = {"n_predict": sent.max_tokens, "temperature": sent.temperature, "top_p": sent.top_p} if sent else {}
    body: dict[str, Any] = {"content": generation.text, "stop": True, "id_slot": 0, "model": model.name}
    body["generation_settings"] = {"n_ctx": model.max_context} | sampling
    body["truncated"] = False  # in llama.cpp: the context was used up while it sampled
    prompt, sampled = len(generation.prompt), generation.sampled_tokens
    first_ms = generation.first_ms or 0.0
    body["timings"] = _timing("prompt", prompt, first_ms) | _timing("predicted", sampled, generation.total_ms - first_ms)
    if sampled is not None:
        body |= {"tokens_predicted": sampled, "tokens_evaluated": prompt, "tokens_cached": prompt + sampled}
    return body


def _timing(part: str, tokens: int | None, ms: float) -> dict[str, float]:
    """Return llama.cpp's four numbers of a part; the time alone if the number of tokens is not known."""
    ms = max(ms, 0.001)  # a rate needs a time above 0
    timing: dict[str, float] = {f"{part}_ms": round(ms, 3)}
    if tokens is not None:
        timing |= {f"{part}_n": tokens, f"{part}_per_second": round(tokens * 1e3 / ms, 3)}
    if tokens:
        timing[f"{part}_per_token_ms"] = round(ms / tokens, 3)
    return timing


def _value_at(value: Any, path: Sequence[str]) -> Any:
    """Return the value at a path of names; None if it is missing."""
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value


class InfillEvents(Events):
    """llama.cpp's events: the texts, then the whole body with an empty text."""

    def __init__(self, generation: Generation, render: Render) -> None:
        self._generation = generation
        self._render = render

    def text(self, text: str) -> bytes:
        return encode_event({"content": text, "stop": False})

    def last(self) -> bytes:
        return encode_event({**self._render(self._generation), "content": "", "stop": True})


LLAMA = Dialect(
    name="llama",
    recognizes=lambda body, headers: body.get("input_prefix") is not None,
    completions=(CompletionFormat("/infill", SCHEMA, ANSWER, parse),),
)
