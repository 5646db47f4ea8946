"""A judge that is asked once for a text: scores kept in the object store by model, rubric and text.

judgements/JUDGE/CHECKSUM.json holds the new scores of one evaluation; JUDGE is the checksum of model and rubric. Only scores are
kept: what failed is asked again.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict

from evals.judge.base import Item, Judge, Judgement, Scored
from infra.store import ObjectStore

DIGITS = 16


class CachedJudge:
    """Asks another judge about the items that the store has no score of."""

    def __init__(self, judge: Judge, identity: str, store: ObjectStore) -> None:
        """Use another judge.

        Args:
            identity: what its scores depend on beside the item, as text.
        """
        self.name = judge.name
        self._judge, self._store = judge, store
        self._prefix = f"judgements/{hashlib.sha256(identity.encode()).hexdigest()[:DIGITS]}/"

    def score(self, items: Sequence[Item]) -> list[Judgement]:
        """Return one judgement for each item, in order. Equal items are asked about once."""
        known = self._load()
        keys = [key_of(item) for item in items]
        missing = {key: item for key, item in zip(keys, items, strict=True) if key not in known}
        asked = dict(zip(missing, self._judge.score(list(missing.values())), strict=True))
        new = {key: judgement.score for key, judgement in asked.items() if isinstance(judgement, Scored)}
        if new:
            body = json.dumps(new, sort_keys=True).encode()
            self._store.put(f"{self._prefix}{hashlib.sha256(body).hexdigest()[:DIGITS]}.json", body)
        return [asked[key] if key in asked else Scored(known[key]) for key in keys]

    def _load(self) -> dict[str, float]:
        """Return all scores of this judge by the item's key."""
        known: dict[str, float] = {}
        for key in self._store.keys(self._prefix):
            known |= self._store.get_json(key)
        return known


def key_of(item: Item) -> str:
    """Return the checksum of an item."""
    return hashlib.sha256(json.dumps(asdict(item), sort_keys=True).encode()).hexdigest()[: 2 * DIGITS]
