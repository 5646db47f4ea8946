"""A checkpoint's completions at held-out places, kept in the object store by what they depend on.

evaluations/WEIGHTS-SET-SAMPLING.json, each part a checksum: the weights; the places; sampling, prompt and seed. Scores are not
kept but recomputed, so that a new metric needs no new completions.
"""

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from evals.positions import Position
from infra.settings.schema import Model, Sampling
from infra.store import ObjectStore

DIGITS = 16
"""Digits of a checksum in a key; the object holds all of them."""


class NoWeights(ValueError):
    """A checkpoint has no weights."""


@dataclass(frozen=True)
class Conditions:
    """What a completion depends on, beside the weights and the place."""

    sampling: Sampling
    model: Model
    """The prompt's order and size."""
    seed: int

    @property
    def sha256(self) -> str:
        """Return their checksum."""
        model = self.model.model_dump(mode="json", include={"fim_order", "max_prefix_tokens", "max_suffix_tokens"})
        return _sha256([self.sampling.model_dump(mode="json"), model, self.seed])


@dataclass(frozen=True)
class Completions:
    """Completions at the places of a set, in order."""

    weights: str
    """SHA-256 of the weights."""
    places: str
    """SHA-256 of the set's places."""
    conditions: str
    texts: tuple[str, ...]
    tokens: tuple[tuple[int, ...], ...]
    """Sampled token ids of each completion."""
    seconds: float
    """Time to make them, in the run that made them."""


def completions_of(
    checkpoint: Path,
    places: Sequence[Position],
    conditions: Conditions,
    store: ObjectStore | None = None,
    progress: Callable[[int], None] | None = None,
) -> Completions:
    """Return a checkpoint's completions: the stored ones, else new ones, which are stored.

    Args:
        store: none: nothing is looked up or stored.
        progress: called with the number of places done.

    Raises:
        NoWeights: the checkpoint has no weights.
    """
    wanted = (weights_sha256(checkpoint), set_sha256(places), conditions.sha256)
    key = f"evaluations/{'-'.join(part[:DIGITS] for part in wanted)}.json"
    if store and (found := _stored(store, key, wanted)):
        if progress:
            progress(len(places))
        return found
    made = complete(checkpoint, places, conditions, wanted, progress)
    if store:
        store.put_json(key, asdict(made))
    return made


def complete(
    checkpoint: Path,
    places: Sequence[Position],
    conditions: Conditions,
    identity: tuple[str, str, str],
    progress: Callable[[int], None] | None,
) -> Completions:
    """Generate a completion at each place. The place's number and the seed fix its draws for any checkpoint."""
    from evals.generation import Generator  # imports torch

    began = time.monotonic()
    generator = Generator(checkpoint, conditions.model)
    contexts = [(place.prefix, place.suffix) for place in places]
    sampling = conditions.sampling
    sampled = generator.sample(contexts, sampling.max_tokens, sampling.temperature, conditions.seed, progress=progress)
    texts, tokens = tuple(s.text for s in sampled), tuple(s.tokens for s in sampled)
    return Completions(*identity, texts, tokens, time.monotonic() - began)


def weights_sha256(checkpoint: Path) -> str:
    """Return the checksum of a checkpoint's weights."""
    digest, files = hashlib.sha256(), sorted(checkpoint.glob("*.safetensors"))
    if not files:
        raise NoWeights(
            f"checkpoint {checkpoint}: no *.safetensors; give a directory in Hugging Face layout (`make base` makes one)"
        )
    for file in files:
        with file.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()


def set_sha256(places: Sequence[Position]) -> str:
    """Return the checksum of a set's places."""
    return _sha256([asdict(place) for place in places])


def _stored(store: ObjectStore, key: str, wanted: tuple[str, str, str]) -> Completions | None:
    """Return the stored completions; None where there are none, or those of something else."""
    try:
        value = store.get_json(key)
    except KeyError:
        return None
    if (value["weights"], value["places"], value["conditions"]) != wanted:
        return None
    return Completions(*wanted, tuple(value["texts"]), tuple(map(tuple, value["tokens"])), value["seconds"])


def _sha256(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
