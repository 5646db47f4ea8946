"""The messages between the app and an engine process: token ids in, token ids and log-probabilities out.

    WebSocket /generate, both ways JSON lists of rows, all completions of an app over one connection (channel.py):
        app     [number, EngineRequest]         sample a completion, under a number that the app chooses
                [number]                        stop that completion
        engine  [number, *Delta]                tokens, the last row with a finish
                [number, status, explanation]   error: 409 it holds another version, 400 bad request, 503 the engine is ending
    POST /fetch     {"version": ., "source": .} -> EngineCopy: the version on the engine's disk, downloaded from the object store
                                                if needed; 409 if it is refused, 503 if it is not available now
    POST /swap      {"path": ..., "version": .} -> SwapResult; 409, with the engine unchanged, if the checkpoint does not fit;
                                                with "idle": true also 503 while it samples completions. With adapters
                                                the engine holds the version beside the others
    GET  /health                                -> Health; without the token an empty object
    GET  /metrics                               -> Prometheus' text format, also to a token with the role metrics
    POST /batch                                 evaluation's own (infra/model/batches.py)

Every request carries serving.engine_token as a bearer token, and names the engine by the host of its URL in serving.engines.

No text is sent: the app renders prompts and decodes tokens, so a record holds exactly what was sampled.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

BASE_VERSION = "0"
"""Version of the base model, held until a registered version is loaded. The registry counts from 1."""

Finish = Literal["stop", "length", "abort"]
Span = tuple[str, int, int]
"""(version, start, end): that version's weights sampled tokens [start, end)."""
Weights = tuple[str, str]
"""A version, and the URI of the checkpoint that its weights come from; empty if that is not known."""


class WrongVersion(RuntimeError):
    """The engine holds another version than the request names."""


class SwapRefused(ValueError):
    """The checkpoint does not fit the engine; the engine keeps its weights."""


@dataclass(frozen=True)
class EngineRequest:
    """One completion to sample. It has no seed: vLLM 0.32 on CPU crashes on a seeded request with a chunked prefill."""

    prompt_token_ids: list[int]
    max_tokens: int
    temperature: float
    top_p: float
    stop_token_ids: list[int]
    version: str | None = None
    """Version to sample with; the engine refuses the request unless it holds it. None: any."""

    def fields(self) -> dict[str, Any]:
        """Return the fields for JSON. Unlike dataclasses.asdict, it does not copy the token ids."""
        return vars(self)

    @classmethod
    def parse(cls, fields: dict[str, Any]) -> "EngineRequest":
        """Return a request from its JSON fields. Raises ValueError naming an unknown or missing field."""
        try:
            return cls(**fields)
        except TypeError as error:
            raise ValueError(f"not a generate request: {error}") from None


@dataclass(frozen=True)
class Delta:
    """The tokens sampled since the last delta."""

    token_ids: list[int]
    logprobs: list[float]
    version: str
    """Version loaded when this left the engine. The spans of the last delta are exact; this serves completions cut short."""
    finish: Finish | None = None
    spans: tuple[Span, ...] = ()
    text: str | None = None
    """Sampled text, from an external server that gives no token ids; our own engines never send it."""

    def row(self) -> list[Any]:
        row: list[Any] = [self.token_ids, self.logprobs, self.version]
        return [*row, self.finish, self.spans] if self.finish else row

    @classmethod
    def parse(cls, row: list[Any]) -> "Delta":
        """Return a delta from its JSON list."""
        if len(row) == 3:
            return cls(*row)
        return cls(row[0], row[1], row[2], row[3], tuple((v, a, b) for v, a, b in row[4]))


@dataclass(frozen=True)
class Health:
    """State of an engine that answers."""

    version: str
    pid: int
    running: int
    """Number of requests in the engine."""
    path: str = ""
    """Directory of the weights."""
    versions: tuple[str, ...] = ()
    """All versions that it holds as adapters (serving.adapters); none if it holds one, with whole weights."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """By version, URI of the checkpoint that it loaded, where it knows that: the same number of another registry is other
    weights."""

    @property
    def weights(self) -> Weights:
        return self.version, self.sources.get(self.version, "")


@dataclass(frozen=True)
class EngineCopy:
    """A version on the engine's disk, and how it was fetched."""

    path: str
    how: str = "full"
    """"held", "full", "delta" or "fallback" (infra/storage/deltas/stored.py); older engines do not report it."""
    bytes: int = 0
    """Bytes downloaded."""


@dataclass(frozen=True)
class SwapResult:
    """A finished swap and the time it took."""

    version: str
    stage_ms: float
    """Time to read and check the checkpoint; the engine keeps generating."""
    pause_ms: float
    """Time until the engine was paused."""
    commit_ms: float
    """Time to copy the weights; the engine is paused."""
