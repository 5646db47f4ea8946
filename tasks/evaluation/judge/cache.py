"""A cache of a judge's scores in the object store, by model, rubric and text.

judgements/JUDGE/PLACE.json holds the scores of completions at a place, the newest MOST of them by their checksums; JUDGE is the
checksum of model and rubric, PLACE that of the code around the place and its true text. An evaluation reads the objects of
its own places only, however long the history. Only scores are stored: failures are asked again.
"""

import hashlib
import json
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from infra.storage.store import ObjectStore
from tasks.evaluation.judge.base import Item, Judge, Judgement, Scored

DIGITS = 16
MOST = 64
"""Completions of a place whose scores are kept."""
READERS = 8
"""Objects that are read at a time."""


class CachedJudge:
    """Asks another judge only about items without a stored score."""

    def __init__(self, judge: Judge, identity: str, store: ObjectStore) -> None:
        """Use another judge; `identity`: everything but the item that its scores depend on, as text."""
        self.name = judge.name
        self.asked = judge
        """The judge without the cache."""
        self._store = store
        self._prefix = f"judgements/{hashlib.sha256(identity.encode()).hexdigest()[:DIGITS]}/"

    def score(self, items: Sequence[Item]) -> list[Judgement]:
        """Return one judgement for each item, in order. Equal items are asked about once."""
        places = [place_of(item) for item in items]
        texts = [_checksum(item.completion) for item in items]
        keys = list(zip(places, texts, strict=True))
        with ThreadPoolExecutor(READERS) as pool:
            known = dict(zip(dict.fromkeys(places), pool.map(self._load, dict.fromkeys(places)), strict=True))
            missing = {key: item for key, item in zip(keys, items, strict=True) if key[1] not in known[key[0]]}
            asked = dict(zip(missing, self.asked.score(list(missing.values())), strict=True))
            new: dict[str, dict[str, float]] = defaultdict(dict)
            for (place, text), judgement in asked.items():
                if isinstance(judgement, Scored):
                    new[place][text] = judgement.score
            list(pool.map(lambda place: self._store_scores(place, known[place] | new[place]), new))
        return [asked[key] if key in asked else Scored(known[key[0]][key[1]]) for key in keys]

    def _load(self, place: str) -> dict[str, float]:
        """Return the scores at a place by the completion's checksum, the oldest first."""
        try:
            return dict(self._store.get_json(f"{self._prefix}{place}.json"))
        except KeyError:
            return {}

    def _store_scores(self, place: str, scores: dict[str, float]) -> None:
        """Store the newest scores of a place. If two processes write at once, one write is lost, and its items are asked
        again."""
        self._store.put_json(f"{self._prefix}{place}.json", dict(list(scores.items())[-MOST:]))


def place_of(item: Item) -> str:
    return _checksum(json.dumps([item.prefix, item.suffix, item.truth]))


def _checksum(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[: 2 * DIGITS]
