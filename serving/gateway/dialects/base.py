"""What a dialect consists of, and readers of a body's fields that the dialects share."""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, TypeVar

from fastapi import FastAPI, Response
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError

from infra.model import fim
from infra.records import NotTaken, Outcome
from serving.access import Access
from serving.gateway.errors import BROKEN_OFF, BadRequest, error_body
from serving.gateway.generation import CompletionRequest, Generation
from serving.gateway.openapi import MAX_STOPS, Schema

MAX_CHARACTERS = 10_000
"""Characters of a text in a feedback event; a completion has some tens of tokens."""
MAX_MS = 86.4e6
"""A day. A longer time between a completion and its answer is an error of a clock, or a time of day."""
Identifier = Annotated[str, Field(max_length=200)]
ShownText = Annotated[str, Field(max_length=MAX_CHARACTERS)]
Milliseconds = Annotated[float, Field(ge=0, le=MAX_MS, allow_inf_nan=False)]
Fields = Mapping[str, Any]
"""A body, or a request's headers or query parameters."""
Render = Callable[[Generation], dict[str, Any]]
"""The body of a finished completion."""
B = TypeVar("B", bound="FeedbackBody")


class Events(ABC):
    """The server-sent events of a streamed completion."""

    @abstractmethod
    def text(self, text: str) -> bytes:
        """Return the event of newly sampled text."""

    @abstractmethod
    def last(self) -> bytes:
        """Return the events after the last text."""

    def broken_off(self) -> bytes:
        """Return the events after the last text if the engine failed."""
        return encode_event(error_body(BROKEN_OFF, "server_error"))


@dataclass(frozen=True)
class ServedModel:
    """The model as clients see it."""

    name: str
    max_context: int
    """Tokens of the longest prompt and its completion together."""
    ready: Callable[[], bool]
    """Whether an engine serves it."""


@dataclass(frozen=True)
class ParsedCompletion:
    """A completion's request, and the form of its response."""

    request: CompletionRequest
    render: Render
    events: Callable[[Generation], Events] | None = None
    """For a streamed response; none: the response is one body."""


@dataclass(frozen=True)
class CompletionFormat:
    """Completions at one path."""

    path: str
    schema: Schema
    """Of the request's body."""
    answer: Schema
    """Of the response's body, unless it is streamed."""
    parse: Callable[[Fields, ServedModel], ParsedCompletion | Response]
    """Raises BadRequest; a Response is sent as it is, and nothing is sampled."""


@dataclass(frozen=True)
class FeedbackEvent:
    """A client's report on one completion; the fields are those of the record (infra/records/events.py)."""

    client_id: str
    outcome: Outcome
    completion_id: str = ""
    made_at: float | None = None
    prefix: str = ""
    suffix: str = ""
    shown: str = ""
    accepted_characters: int | None = None
    retained: str = ""
    settled: str | None = None
    settled_kept: int | None = None
    settled_total: int | None = None
    reason: NotTaken = ""
    elapsed_ms: float | None = None
    seen_ms: float | None = None
    cache_hit: bool = False
    language: str = ""
    odd: tuple[str, ...] = ()
    """Fields that are left out since their value cannot be, by the client's names."""


@dataclass(frozen=True)
class Received:
    """What became of an event."""

    id: str = ""
    """Of its record; empty if there is none."""
    segments: int = 0
    """Segments in the spool."""
    matched: bool = False
    """Whether it is about one of the latest completions of its user that this replica served."""


@dataclass(frozen=True)
class FeedbackFormat:
    """Feedback events at one path."""

    path: str
    schema: Schema
    """Of the request's body."""
    answer: Schema
    """Of the response's body."""
    parse: Callable[[Fields, Fields], FeedbackEvent | None]
    """Takes body and query parameters; None: the event is ignored. Raises BadRequest."""
    render: Callable[[Received], dict[str, Any]]
    """The body of the response."""
    once: bool = False
    """Whether the same client id and outcome of a user are recorded once."""


@dataclass(frozen=True)
class Dialect:
    """One client's way to request completions and to report feedback. All of it is optional."""

    name: str = ""
    """The client's name in records and metrics; empty: the client is named by its User-Agent."""
    agent: str = ""
    """Name of a product in the User-Agent, in lower case, that identifies the client before any other rule."""
    recognizes: Callable[[Fields, Fields], bool] = lambda body, headers: False
    """Whether a completion request (body, headers) is this client's; it also chooses among the formats at one path."""
    completions: tuple[CompletionFormat, ...] = ()
    feedback: tuple[FeedbackFormat, ...] = ()
    add_routes: Callable[[FastAPI, Access, ServedModel], None] = lambda app, access, model: None
    """Adds the client's other routes to the completions app."""


class FeedbackBody(BaseModel):
    """The fields of a feedback body that the server reads; clients send others too. A field that is null is absent."""

    model_config = ConfigDict(extra="ignore", strict=True)
    dispensable: ClassVar[frozenset[str]] = frozenset()
    """Fields that no label needs: one with a wrong value is left out, and the event counts."""
    _odd: tuple[str, ...] = PrivateAttr(())

    @property
    def odd(self) -> tuple[str, ...]:
        """Fields that were left out for their value."""
        return self._odd


def read_body(model: type[B], body: Fields, parent: str = "", status: int = 422, hint: str = "") -> B:
    """Return the body as a model.

    Args:
        parent: path of `body`.
        hint: the client's setting, or the page, that a developer looks at if the body is refused.

    Raises:
        BadRequest: a field has a wrong value, the first that is not dispensable.
    """
    given = {name: value for name, value in body.items() if value is not None}
    try:
        return model.model_validate(given)
    except ValidationError as error:
        wrong = error.errors()
        needed = [each for each in wrong if not each["loc"] or each["loc"][0] not in model.dispensable]
        if not needed:
            odd = tuple(sorted({str(each["loc"][0]) for each in wrong}))
            read = model.model_validate({name: value for name, value in given.items() if name not in odd})
            read._odd = odd
            return read
        first, *others = needed
        field, value = first["loc"][:1], first["input"]  # the rest of the location names one of the field's types
        name = parent + "".join(map(str, field)) or "body"
        expected = " or ".join([first["msg"], *(other["msg"] for other in others if other["loc"][:1] == field)])
        got = f", got {short(value)}" if isinstance(value, str | int | float) else ""
        raise BadRequest(f"{name}: {expected}{got}" + (f"; {hint}" if hint else ""), name, status) from None


def read_text(body: Fields, name: str, path: str = "", *, optional: bool = False) -> str:
    """Return a string; `path` names the field in errors, `optional` takes null or nothing as "". Raises BadRequest."""
    value = body.get(name)
    if optional and value is None:
        return ""
    if not isinstance(value, str):
        raise BadRequest(f"{path or name}: expected a string, got {short(value)}", path or name)
    return value


def read_flag(body: Fields, name: str, path: str = "") -> bool:
    """Return a boolean; null or nothing is false. Raises BadRequest."""
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise BadRequest(f"{path or name}: expected true or false, got {short(value)}", path or name)
    return bool(value)


def short(value: object) -> str:
    """Return the first characters of a value as JSON has it, or the kind of a list or an object, whose text may be long."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    return json.dumps(value, ensure_ascii=False)[:40]


def read_count(body: Fields, name: str, minimum: int = 1) -> int | None:
    """Return a whole number; none for null or nothing, and for -1 where `minimum` is below 0. Raises BadRequest."""
    value = body.get(name)
    if value is None or (minimum < 0 and value == -1):
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # in JSON 16.0 is a whole number, and the parser returns one beyond 64 bits as a float
    if not isinstance(value, int) or isinstance(value, bool) or value < max(0, minimum):
        raise BadRequest(f"{name}: expected a whole number of at least {max(0, minimum)}, got {short(value)}", name)
    return value


def read_stop(body: Fields) -> tuple[str, ...]:
    """Return the stop strings without FIM tokens, which end a completion anyway and are never text. Raises BadRequest."""
    stop = body.get("stop")
    values = [stop] if isinstance(stop, str) else read_strings(body, "stop", MAX_STOPS, "a string or a list of strings")
    return tuple(v for v in values if v and v not in fim.SPECIAL_TOKENS)


def read_strings(body: Fields, name: str, most: int, expected: str = "a list of strings") -> list[str]:
    """Return a list of strings; empty for null or nothing. Raises BadRequest, also for more than `most`."""
    values = [] if body.get(name) is None else body[name]
    if isinstance(values, list) and len(values) > most:
        raise BadRequest(f"{name}: expected at most {most} strings, got {len(values)}", name)
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise BadRequest(f"{name}: expected {expected}", name)
    return values


def encode_event(body: dict[str, Any]) -> bytes:
    """Return a server-sent event of a JSON object."""
    return f"data: {json.dumps(body)}\n\n".encode()
