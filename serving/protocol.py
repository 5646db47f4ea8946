"""What the app and an engine process say to each other: token ids in, token ids and log-probabilities out.

    POST /generate  Request                     -> one line of JSON a Delta, the last with a finish
                                                   409 when the engine holds another version than was asked for
    POST /swap      {"path": ..., "version": .} -> Swapped; 409 and an untouched engine when the checkpoint does not fit
    GET  /health                                -> Health

Text never crosses: the app renders prompts and reads tokens back itself, so that a record holds exactly what was sampled.
"""

import json
from dataclasses import asdict, dataclass
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

    def encode(self) -> bytes:
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @classmethod
    def decode(cls, body: bytes) -> "Request":
        """Raises ValueError naming what is wrong."""
        try:
            return cls(**json.loads(body))
        except (TypeError, json.JSONDecodeError) as error:
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

    def encode(self) -> bytes:
        row: list[Any] = [self.token_ids, self.logprobs, self.version]
        if self.finish:
            row += [self.finish, self.spans]
        return json.dumps(row, separators=(",", ":")).encode() + b"\n"

    @classmethod
    def decode(cls, line: bytes) -> "Delta":
        row = json.loads(line)
        if len(row) == 3:
            return cls(*row)
        return cls(row[0], row[1], row[2], row[3], tuple((v, a, b) for v, a, b in row[4]))


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
