"""Batches of an engine process, for evaluation: many prompts at once, sampled with fixed draws or scored.

    POST /batch     Batch -> JSON lines: a BatchResult for each prompt as it ends; {"status": ., "error": .} ends a failed batch
    POST /swap      {"path": ., "version": ., "idle": .} -> as in serving/engine/protocol.py; with "idle", 503 while it completes
    GET  /health    -> {"version": ., "path": ., "running": ., ...}

Every request carries the engine's token as a bearer token. Token ids go both ways; no text is sent.
"""

from dataclasses import asdict, dataclass, fields
from typing import Any

MAX_BYTES = 64 << 20
"""Largest body of a batch."""


@dataclass(frozen=True)
class Batch:
    """Prompts for one version's weights."""

    version: str
    """The engine refuses the batch unless it holds this version, from the first prompt to the last."""
    prompts: list[list[int]]
    draws: list[int]
    """Seed of each prompt's draws, from 0 to 2^62: the same seed and prompt give the same tokens, whatever else is sampled."""
    max_tokens: int = 1
    temperature: float = 0.0
    """0: the likeliest tokens."""
    top_p: float = 1.0
    stop_token_ids: tuple[int, ...] = ()
    scored: list[int] | None = None
    """Number of tokens at the end of each prompt whose log-probability at temperature 1 is computed instead of sampling. None:
    tokens are sampled."""
    with_logprobs: bool = False
    """Whether the results have the log-probabilities of sampled tokens, under the distribution that they are drawn from."""

    def body(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def parse(cls, body: Any) -> "Batch":
        """Return a batch from its JSON body. Raises ValueError if a field is missing or unknown, or the lists have different
        lengths."""
        known = {field.name for field in fields(cls)}
        if not isinstance(body, dict) or not {"version", "prompts", "draws"} <= body.keys() <= known:
            raise ValueError(f"batch: expected an object with version, prompts and draws, and of {sorted(known)} nothing else")
        batch = cls(**body)
        for name, rows in (("draws", batch.draws), ("scored", batch.scored)):
            if rows is not None and len(rows) != len(batch.prompts):
                raise ValueError(f"batch: {len(rows)} {name}, expected one for each of {len(batch.prompts)} prompts")
        for number, (prompt, scored) in enumerate(zip(batch.prompts, batch.scored or (), strict=False)):
            if not 0 < scored < len(prompt):
                raise ValueError(
                    f"batch: prompt {number} has {len(prompt)} tokens, {scored} to score; expected one or more, and one before"
                )
        return batch


@dataclass(frozen=True)
class BatchResult:
    """Result of one prompt."""

    row: int
    """Index of the prompt."""
    tokens: tuple[int, ...]
    """Sampled token ids, with the stop token; empty where the prompt was scored."""
    logprobs: tuple[float, ...]
    """Of the scored tokens, or with Batch.with_logprobs of the sampled ones; else empty."""

    @classmethod
    def parse(cls, body: dict[str, Any]) -> "BatchResult":
        """Return a result from its JSON line."""
        return cls(body["row"], tuple(body["tokens"]), tuple(body["logprobs"]))
