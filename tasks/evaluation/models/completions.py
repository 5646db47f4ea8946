"""A checkpoint's completions at the places of a set, cached in the object store by weights, set and conditions.

evaluations/WEIGHTS-SET-CONDITIONS.parquet, each part a checksum: the weights; the set; what else a completion depends on. Rows
are infra.records.HeldOutCompletion. Those of the team's own set, which name users and contain completions of their code, are
stored with the set in the cycle's folder as held-out-completions-..., where `forget` and retention find them. Scores are
recomputed, so that a new metric needs no new completions.
"""

import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path

from tokenizers import Tokenizer

from infra.model.fim import Order, Renderer
from infra.records import HeldOutCompletion
from infra.settings.schema import Model, Sampling
from infra.storage.store import ObjectStore
from tasks.evaluation.models.base import Models, Progress, Prompt, Text, draw_of, weights_sha256
from tasks.evaluation.positions import Position

DIGITS = 16
"""Digits of a checksum in a key."""
FOLDER = "evaluations/"


@dataclass(frozen=True)
class PlaceSet:
    """A set of places that models complete."""

    name: str
    sha256: str
    """Checksum of the set."""
    places: tuple[Position, ...]
    prefix: str = FOLDER
    """Key prefix of the completions at its places."""


@dataclass(frozen=True)
class Conditions:
    """Everything but the weights and the place that a completion depends on."""

    sampling: Sampling
    model: Model
    """The prompt's order and size."""
    seed: int
    stop: tuple[str, ...] = ()
    truths: bool = False
    """Whether to compute the log-probability of the true text, too."""

    def sha256(self, made_by: str) -> str:
        """Return their checksum, including the name of the backend (models.Models)."""
        model = self.model.model_dump(mode="json", include={"fim_order", "max_prefix_tokens", "max_suffix_tokens"})
        asked = {"temperature": self.sampling.temperature, "top_p": 1.0, "max_tokens": self.sampling.max_tokens}
        return _sha256([asked, model, self.seed, self.stop, self.truths, made_by])


@dataclass(frozen=True)
class Completions:
    """Completions at the places of a set, in order."""

    weights: str
    """SHA-256 of the weights."""
    rows: tuple[HeldOutCompletion, ...]
    seconds: float
    """Seconds to make them; 0 if they were stored."""


def completions_of(
    models: Models,
    checkpoint: Path,
    places: PlaceSet,
    conditions: Conditions,
    store: ObjectStore | None = None,
    progress: Progress | None = None,
) -> Completions:
    """Return a checkpoint's completions: the stored ones, else new ones, which are stored.

    Args:
        store: None: nothing is looked up or stored.
        progress: called with the number of places done.

    Raises:
        NoWeights: the checkpoint has no weights.
    """
    say = progress or (lambda _: None)
    weights = weights_sha256(checkpoint)
    parts = (weights[:DIGITS], places.sha256[:DIGITS], conditions.sha256(models.name)[:DIGITS])
    key = f"{places.prefix}{'-'.join(parts)}.parquet"
    if store and (rows := _stored(store, key, places.places)) is not None:
        say(len(places.places))
        return Completions(weights, rows, 0.0)
    began = time.monotonic()
    rows = complete(models, checkpoint, places.places, conditions, say)
    if store and rows:
        store.put_rows(key, rows)
    return Completions(weights, rows, time.monotonic() - began)


def complete(
    models: Models, checkpoint: Path, places: Sequence[Position], conditions: Conditions, progress: Progress
) -> tuple[HeldOutCompletion, ...]:
    """Complete each place as it would be served. The place's name and the seed fix its draws for any checkpoint."""
    text, sampling = Text.of(checkpoint, conditions.model), conditions.sampling
    rendered = prompts_of(text, conditions.model, places)
    prompts = [Prompt(tokens, draw_of(conditions.seed, place.name)) for tokens, place in zip(rendered, places, strict=True)]
    sampled = models.sample(checkpoint, prompts, sampling, text.ends, progress)
    truths = truth_logprobs(models, checkpoint, text, prompts, places, sampling) if conditions.truths else [None] * len(places)
    return tuple(
        HeldOutCompletion(
            id=place.name,
            project=place.project,
            user=place.user,
            text=text.served(tokens, conditions.stop),
            token_ids=tokens,
            truth_logprob=truth,
        )
        for place, tokens, truth in zip(places, sampled, truths, strict=True)
    )


def prompts_of(text: Text, model: Model, places: Sequence[Position]) -> tuple[list[int], ...]:
    """Return the prompt's tokens at each place. Cached, since models of one tokenizer share them: each takes 3 ms."""
    return _prompts(text.tokenizer.to_str(), model.fim_order, model.max_prefix_tokens, model.max_suffix_tokens, tuple(places))


@lru_cache(maxsize=4)
def _prompts(
    tokenizer: str, order: Order, max_prefix_tokens: int, max_suffix_tokens: int, places: tuple[Position, ...]
) -> tuple[list[int], ...]:
    renderer = Renderer(Tokenizer.from_str(tokenizer), order, max_prefix_tokens, max_suffix_tokens)
    return tuple(renderer.render(place.prefix, place.suffix) for place in places)


def truth_logprobs(
    models: Models, checkpoint: Path, text: Text, prompts: Sequence[Prompt], places: Sequence[Position], sampling: Sampling
) -> list[float | None]:
    """Return the mean log-probability of the true text's tokens at each place, in nats; None where the text has no token.

    If a text is longer than a completion can be, only its beginning counts.
    """
    truths = [text.renderer.encode(place.truth)[: longest_scored(sampling)] for place in places]
    rows = [(prompt.tokens, truth) for prompt, truth in zip(prompts, truths, strict=True) if truth]
    found = iter(models.score(checkpoint, rows))
    return [mean(next(found)) if truth else None for truth in truths]


def drifts_of(
    models: Models,
    checkpoint: Path,
    reference: Path,
    made: Completions,
    places: Sequence[Position],
    model: Model,
    sampling: Sampling,
) -> list[float]:
    """Return the mean over each completion's tokens of log p(checkpoint) - log p(reference), in nats.

    The checkpoint made the completions. The expectation is the Kullback-Leibler divergence per token from the reference, at
    temperature 1 for tokens drawn there. The last token of a completion of the full length does not count.
    """
    text = Text.of(checkpoint, model)
    rows = [
        (prompt, row.token_ids[: longest_scored(sampling)])
        for prompt, row in zip(prompts_of(text, model, places), made.rows, strict=True)
    ]
    ours, theirs = (models.score(folder, rows) for folder in (checkpoint, reference))
    return [mean(a) - mean(b) for a, b in zip(ours, theirs, strict=True)]


def longest_scored(sampling: Sampling) -> int:
    """Return the largest number of tokens that are scored after a prompt: one less than are sampled, since vLLM samples one
    more."""
    return max(1, sampling.max_tokens - 1)


def mean(values: Sequence[float]) -> float:
    """Return the mean of at least one number."""
    return sum(values) / len(values)


def set_of(places: Sequence[Position], name: str = "held_out") -> PlaceSet:
    """Return places that are not in the object store as a set."""
    return PlaceSet(name, set_sha256(places), tuple(places))


def set_sha256(places: Sequence[Position]) -> str:
    return _sha256([asdict(place) for place in places])


def _stored(store: ObjectStore, key: str, places: Sequence[Position]) -> tuple[HeldOutCompletion, ...] | None:
    """Return the stored completions in order of the places; None where one is missing."""
    try:
        rows = {row.id: row for row in store.get_rows(key, HeldOutCompletion)}
    except KeyError:
        return None
    return tuple(rows[place.name] for place in places) if rows.keys() >= {place.name for place in places} else None


def _sha256(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
