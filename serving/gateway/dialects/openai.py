"""OpenAI's completions: Continue, RLinf's Continue and any OpenAI client."""

import json
from functools import partial
from typing import Any

from fastapi import FastAPI, Request, Response

from infra.model import fim
from infra.model.language import language
from serving.access import Access
from serving.gateway.dialects.base import (
    CompletionFormat,
    Dialect,
    Events,
    Fields,
    ParsedCompletion,
    ServedModel,
    encode_event,
    read_count,
    read_flag,
    read_stop,
    read_text,
    short,
)
from serving.gateway.errors import BadRequest
from serving.gateway.generation import NOT_READY, CompletionRequest, Generation, Unavailable
from serving.gateway.openapi import FLAG, NULL, SECURITY, STOP, TEXT, USER, answer_schema, answers, object_schema, optional

OWN_SAMPLING = "the server samples with its own settings (serving.sampling), and training relies on them"
UNSUPPORTED: dict[str, tuple[tuple[Any, ...], str]] = {
    "n": ((1,), "a request gets one completion"),
    "best_of": ((1,), "a request gets one completion"),
    "echo": ((False,), "the response does not repeat the prompt"),
    "logprobs": ((0, False), "log-probabilities are recorded and not sent"),
    "logit_bias": (({},), OWN_SAMPLING),
    "presence_penalty": ((0,), OWN_SAMPLING),
    "frequency_penalty": ((0,), OWN_SAMPLING),
    "repetition_penalty": ((1,), OWN_SAMPLING),
    "seed": ((), OWN_SAMPLING + "; no two requests share a seed"),
}
"""Fields of OpenAI and vLLM that would change the response: the values that change nothing, and why others are refused."""
FINISH_REASONS = {"stop": "stop", "length": "length", "error": "length"}
"""OpenAI has no reason for a failed engine; "length" marks a partial completion."""
SCHEMA = object_schema(
    ("prompt",),
    prompt={"anyOf": [TEXT, {"type": "array", "items": TEXT, "minItems": 1, "maxItems": 1}]},
    suffix=optional(TEXT),
    max_tokens=optional({"type": "integer", "minimum": 1}),
    stop=STOP,
    stream=FLAG,
    stream_options=optional(object_schema((), include_usage=FLAG)),
    **{name: {"enum": [*allowed, None], "description": why} for name, (allowed, why) in UNSUPPORTED.items()},
    user=USER,
)
COUNT = {"type": "integer", "minimum": 0}
CHOICE = answer_schema(
    ("text", "index", "logprobs", "finish_reason"),
    text=TEXT,
    index={"const": 0},
    logprobs=NULL,
    finish_reason={"enum": ["stop", "length"]},
)
ANSWER = answer_schema(
    ("id", "object", "created", "model", "choices", "usage"),
    id=TEXT,
    object={"const": "text_completion"},
    created={"type": "integer"},
    model=TEXT,
    choices={"type": "array", "items": CHOICE, "minItems": 1, "maxItems": 1},
    usage=answer_schema(
        ("prompt_tokens", "completion_tokens", "total_tokens"), prompt_tokens=COUNT, completion_tokens=COUNT, total_tokens=COUNT
    ),
)
MODEL = answer_schema(
    ("id", "object", "created", "owned_by"), id=TEXT, object={"const": "model"}, created={"type": "integer"}, owned_by=TEXT
)
MODELS = answer_schema(("object", "data"), object={"const": "list"}, data={"type": "array", "items": MODEL})


def parse(body: Fields, model: ServedModel) -> ParsedCompletion:
    """Read a body of /v1/completions. Raises BadRequest."""
    stream, usage = read_flag(body, "stream"), _usage_requested(body)
    events = partial(CompletionEvents, model=model.name, usage=usage) if stream else None
    return ParsedCompletion(_request(body), partial(_body, model.name), events)


def _request(body: Fields) -> CompletionRequest:
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1:
        prompt = prompt[0]
    if not isinstance(prompt, str):
        raise BadRequest("prompt: expected a string; several prompts or token ids are not supported", "prompt")
    for name, (allowed, why) in UNSUPPORTED.items():
        if (value := body.get(name)) is not None and not any(_same(value, each) for each in allowed):
            expected = f"expected {json.dumps(allowed[0])} or nothing" if allowed else "leave it out"
            raise BadRequest(f"{name}: {short(value)} is not supported, {expected}: {why}", name)
    suffix = None if body.get("suffix") is None else read_text(body, "suffix")
    try:
        context = fim.read_request(prompt, suffix)
    except ValueError as error:
        raise BadRequest(str(error), "prompt") from None
    path = fim.path_of(context)
    max_tokens = None if body.get("max_tokens") == -1 else read_count(body, "max_tokens")  # as llama.cpp and LM Studio take it
    return CompletionRequest(context.prefix, context.suffix, max_tokens, read_stop(body), language=language(path), path=path)


def _same(value: object, allowed: object) -> bool:
    """Return whether two JSON values are equal; in JSON, unlike Python, true is not 1."""
    return value == allowed and isinstance(value, bool) == isinstance(allowed, bool)


def _usage_requested(body: Fields) -> bool:
    """Return whether a stream is to end with the numbers of tokens."""
    options = body.get("stream_options")
    if options is None:
        return False
    if not isinstance(options, dict):
        raise BadRequest(f"stream_options: expected an object, got {short(options)}", "stream_options")
    return read_flag(options, "include_usage", "stream_options.include_usage")


def _body(model: str, generation: Generation) -> dict[str, Any]:
    finish = FINISH_REASONS[generation.finish]
    choice = {"text": generation.text, "index": 0, "logprobs": None, "finish_reason": finish}
    return _frame(generation, model) | {"choices": [choice]} | _usage(generation)


class CompletionEvents(Events):
    """OpenAI's events; each is put together from pieces that are encoded once."""

    def __init__(self, generation: Generation, model: str, *, usage: bool) -> None:
        self._generation = generation
        self._frame = _frame(generation, model)
        self._usage = usage
        frame = {**self._frame, "usage": None} if usage else self._frame
        self._head = f'data: {json.dumps(frame)[:-1]}, "choices": [{{"text": '

    def text(self, text: str) -> bytes:
        return (self._head + json.dumps(text) + AFTER_TEXT).encode()

    def last(self) -> bytes:
        events = (self._head + '""' + _tail(FINISH_REASONS[self._generation.finish])).encode()
        if self._usage:
            events += encode_event({**self._frame, "choices": [], **_usage(self._generation)})
        return events + DONE

    def broken_off(self) -> bytes:
        return super().broken_off() + DONE


def _frame(generation: Generation, model: str) -> dict[str, Any]:
    return {"id": generation.id, "object": "text_completion", "created": int(generation.arrived), "model": model}


def _tail(finish: str | None) -> str:
    return f', "index": 0, "logprobs": null, "finish_reason": {json.dumps(finish)}}}]}}\n\n'


AFTER_TEXT = _tail(None)
"""The rest of an event after its text."""
DONE = b"data: [DONE]\n\n"


def _usage(generation: Generation) -> dict[str, Any]:
    """Return the numbers of tokens, by the app's tokenizer if the server reports none: Zed reads no answer without them."""
    prompt, sampled = len(generation.prompt), generation.sampled_tokens
    if sampled is None:
        sampled = len(generation.policy.renderer.encode(generation.generated))
    return {"usage": {"prompt_tokens": prompt, "completion_tokens": sampled, "total_tokens": prompt + sampled}}


def _add_routes(app: FastAPI, access: Access, model: ServedModel) -> None:
    async def described(request: Request) -> dict[str, Any]:
        await access.check(request.headers, "complete")
        if not model.ready():
            raise Unavailable(NOT_READY)
        return {"id": model.name, "object": "model", "created": 0, "owned_by": "tabloop"}

    @app.get("/v1/models", responses=answers(MODELS), openapi_extra=SECURITY)
    async def models(request: Request) -> Any:
        return {"object": "list", "data": [await described(request)]}

    @app.get("/v1/models/{name}", responses=answers(MODEL), openapi_extra=SECURITY)
    @app.get("/v1/models/{name:path}", include_in_schema=False)  # a name may have slashes
    async def named_model(request: Request, name: str) -> Any:
        found = await described(request)
        if name != model.name:
            raise BadRequest(f"model: expected {model.name}, the only one, got {short(name)}", "model", 404)
        return found

    async def chat(request: Request) -> Response:
        raise BadRequest(
            "only /v1/completions is served; give the model a name that contains 'qwen' and 'coder', as /v1/models does"
        )

    app.add_route("/v1/chat/completions", chat, methods=["POST"])


OPENAI = Dialect(completions=(CompletionFormat("/v1/completions", SCHEMA, ANSWER, parse),), add_routes=_add_routes)
