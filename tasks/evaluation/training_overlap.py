"""Overlap of a set with training data, which are compared as hashed shingles (tasks/evaluation/heldout/duplicates.py).

A sample has two texts: the code around the cursor with the settled text, and with the sampled text. The update reads both.
"""

import io
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import pyarrow.parquet as pq
from tokenizers import Tokenizer

from infra.model.fim import Renderer
from infra.records import HeldOutPlace, HeldOutSet, Manifest
from infra.storage.store import ObjectStore
from tasks.evaluation.heldout.duplicates import NEAR, Hashes, containment, shingles_of_all, shingles_of_place, union
from tasks.evaluation.heldout.sets import Places

BATCH = 4096
"""Samples whose text is in memory at once."""
COLUMNS = ["prompt_token_ids", "token_ids", "settled_token_ids"]


@dataclass(frozen=True)
class TrainedText:
    """Computes shingles of the text of samples."""

    store: ObjectStore
    tokenizer: Tokenizer
    renderer: Renderer

    def of_samples(self, samples: bytes) -> Hashes:
        """Return the shingles of samples (Parquet of infra.records.Sample), each once, sorted."""
        found: Hashes = union([])
        file = pq.ParquetFile(io.BytesIO(samples))
        columns = [name for name in COLUMNS if name in file.schema_arrow.names]
        for batch in file.iter_batches(BATCH, columns=columns):
            parts: list[Sequence[int]] = []
            for row in batch.to_pylist():
                before, after = self.renderer.code_of(row["prompt_token_ids"])
                middles = {tuple(row[name] or ()) for name in columns[1:]}
                parts += [[*before, *middle, *after] for middle in middles]
            # Tokens are decoded as one text: a word may be cut at the cursor.
            texts = self.tokenizer.decode_batch(parts, skip_special_tokens=True)
            found = union([found, shingles_of_all(texts)])
        return found

    def of_cycles(self, manifests: Iterable[Manifest]) -> tuple[Hashes, tuple[str, ...]]:
        """Return the shingles of cycles' training data, and the cycles whose samples retention removed."""
        found: list[Hashes] = []
        unknown: list[str] = []
        for manifest in manifests:
            try:
                found.append(self.of_samples(self.store.get(manifest.samples.key)))
            except KeyError:
                unknown.append(manifest.cycle)
        return union(found), tuple(sorted(unknown))


def with_trained(
    written: HeldOutSet, found: Places, trained: Hashes, known: Collection[str], unchecked: Sequence[str]
) -> HeldOutSet:
    """Return a set with its places that occur in training data listed as `trained` and counted as left out.

    Args:
        trained: shingles of training data, sorted.
        known: ids of places that occur in other training data.
        unchecked: cycles whose training data are gone.
    """
    ids = tuple(place.id for place in found.places if place.id in known or is_trained(place, trained))
    left_out = written.left_out | ({"trained_on": len(ids)} if ids else {})
    return written.model_copy(update={"trained": ids, "left_out": left_out, "unchecked": tuple(unchecked)})


def is_trained(place: HeldOutPlace, trained: Hashes) -> bool:
    """Return whether the place's text, in its code, occurs in training data."""
    return containment(shingles_of_place(place.prefix, place.truth, place.suffix), trained) >= NEAR
