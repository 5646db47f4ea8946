"""What the app and an engine process say to each other: token ids in, token ids and log-probabilities out.

    WebSocket /generate, both ways JSON lists of rows, all completions of an app over one connection (channel.py):
        app     [number, Request]               sample a completion, under a number of the app's choice
                [number]                        stop it
        engine  [number, *Delta]                tokens, the last row with a finish
                [number, status, explanation]   none: 409 it holds another version, 400 it cannot be served, 503 the engine ends
    POST /swap      {"path": ..., "version": .} -> Swapped; 409 and an untouched engine when the checkpoint does not fit
    GET  /health                                -> Health

Text never crosses: the app renders prompts and reads tokens back itself, so that a record holds exactly what was sampled.
"""

from dataclasses import dataclass
from typing import Any, Literal

BASE_VERSION = "0"
"""Version of the base model while no registered version is loaded; the registry counts from 1."""

Finish = Literal["stop", "length", "abort"]
Span = tuple[str, int, int]
"""Tokens [start, end) were sampled by the weights of a version."""


@dataclass(frozen=True)
class Request:
    """One completion. There is no seed on purpose: a seeded request with a chunked prefill ends vLLM 0.32 on CPU."""

    prompt_token_ids: list[int]
    max_tokens: int
    temperature: float
    top_p: float
    stop_token_ids: list[int]
    version: str | None = None
    """Refuse unless these weights are loaded; none takes whatever is."""

    def fields(self) -> dict[str, Any]:
        """As JSON has it (asdict would copy every token id)."""
        return vars(self)

    @classmethod
    def of(cls, fields: dict[str, Any]) -> "Request":
        """Raises ValueError naming what is wrong."""
        try:
            return cls(**fields)
        except TypeError as error:
            raise ValueError(f"not a generate request: {error}") from None


@dataclass(frozen=True)
class Delta:
    """Tokens sampled since the last delta."""

    token_ids: list[int]
    logprobs: list[float]
    version: str
    """Weights loaded when this left the engine; the spans of the last delta are exact, this is for those cut short."""
    finish: Finish | None = None
    spans: tuple[Span, ...] = ()
    text: str | None = None
    """What was sampled, from a server that tells no token ids; an engine of ours never sends it."""

    def row(self) -> list[Any]:
        """As JSON has it."""
        row: list[Any] = [self.token_ids, self.logprobs, self.version]
        return [*row, self.finish, self.spans] if self.finish else row

    @classmethod
    def of(cls, row: list[Any]) -> "Delta":
        if len(row) == 3:
            return cls(*row)
        return cls(row[0], row[1], row[2], row[3], tuple((v, a, b) for v, a, b in row[4]))

    def then(self, later: "Delta") -> "Delta":
        """Two that came one after another, of the same version, as one."""
        return Delta(self.token_ids + later.token_ids, self.logprobs + later.logprobs, later.version, later.finish, later.spans)


@dataclass(frozen=True)
class Health:
    """An engine that answers."""

    version: str
    pid: int
    running: int
    """Requests in the engine."""


@dataclass(frozen=True)
class Swapped:
    """A finished swap and what it cost."""

    version: str
    stage_ms: float
    """Reading and checking, while the engine went on."""
    pause_ms: float
    """Until the engine stood still."""
    commit_ms: float
    """Copying the weights, while it stood still."""
