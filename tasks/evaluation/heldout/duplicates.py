"""Copies of code: texts as sets of hashed shingles, and the share of one text that others hold.

A shingle is WIDTH consecutive tokens (words and signs), so indentation and line ends do not count. The share of a text's
shingles that occur in others is Broder's containment (1997, "On the resemblance and containment of documents"): unlike the
resemblance, it finds a function copied into a long file. Whole files are compared by the shingles whose hash falls into a fixed
fraction of the range, an unbiased sample that is the same for every text (Broder's mod-m sketch; Irber et al. 2022, "Lightweight
compositional analysis of metagenomes with FracMinHash and minimum metagenome covers").
"""

import hashlib
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache

import numpy as np

TOKEN = re.compile(r"\w+|[^\w\s]")
WIDTH = 8
"""Tokens of a shingle: about a line of code. Shorter ones occur everywhere."""
NEAR = 0.5
"""A text is a near-duplicate if others hold at least this share of its shingles."""
FRACTION = 4
"""One in this many shingles of a whole file is kept."""
REACH = 600
"""Characters on each side of a place in which WIDTH - 1 tokens are looked for."""
FACTOR = np.uint64(0x9E3779B97F4A7C15)
Hashes = np.ndarray
"""uint64 [n], one for each shingle."""


def shingles(text: str) -> Hashes:
    """Return the hashes of a text's shingles, in order; a text with fewer tokens has one, of all its tokens."""
    return _combine([_token_hash(token) for token in TOKEN.findall(text)])


def shingles_of_all(texts: Sequence[str]) -> Hashes:
    """Return the shingles of many texts, each once, sorted; texts of fewer than WIDTH tokens have none."""
    tokens = [TOKEN.findall(text) for text in texts]
    owner = np.repeat(np.arange(len(texts)), [len(found) for found in tokens])
    if len(owner) < WIDTH:
        return np.empty(0, np.uint64)
    hashes = _combine([_token_hash(token) for found in tokens for token in found])
    return np.unique(hashes[owner[: len(hashes)] == owner[WIDTH - 1 :]])


def shingles_of_place(prefix: str, truth: str, suffix: str) -> Hashes:
    """Return the hashes of the shingles that hold a token of `truth`, as it stands between prefix and suffix."""
    before = prefix[-REACH:]
    found = list(TOKEN.finditer(before + truth + suffix[:REACH]))
    start, stop = len(before), len(before) + len(truth)
    inside = [number for number, token in enumerate(found) if token.end() > start and token.start() < stop]
    if not inside:
        return np.empty(0, np.uint64)
    near = found[max(0, inside[0] - WIDTH + 1) : inside[-1] + WIDTH]
    return _combine([_token_hash(token.group()) for token in near])


def sketch(text: str) -> Hashes:
    """Return the sample of a file's shingles, each once, sorted."""
    hashes = np.unique(shingles(text))
    return hashes[hashes % np.uint64(FRACTION) == 0]


def union(parts: Iterable[Hashes]) -> Hashes:
    """Return the hashes that occur in any of the parts, each once, sorted."""
    return np.unique(np.concatenate([np.empty(0, np.uint64), *parts]))


def containment(hashes: Hashes, others: Hashes) -> float:
    """Return the share of the hashes that occur in `others`, which is sorted; 0 without hashes."""
    if not len(hashes) or not len(others):
        return 0.0
    at = np.minimum(np.searchsorted(others, hashes), len(others) - 1)
    return float((others[at] == hashes).mean())


def _combine(tokens: list[int]) -> Hashes:
    """Hash each run of WIDTH token hashes: a polynomial modulo 2^64, then splitmix64's finaliser, which spreads it evenly."""
    values = np.array(tokens, np.uint64)
    width = min(WIDTH, len(values))
    hashes = np.zeros(len(values) - width + 1 if width else 0, np.uint64)
    for offset in range(width):
        hashes = hashes * FACTOR + values[offset : offset + len(hashes)]
    hashes = (hashes ^ (hashes >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    hashes = (hashes ^ (hashes >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return hashes ^ (hashes >> np.uint64(31))


@lru_cache(1 << 16)
def _token_hash(token: str) -> int:
    return int.from_bytes(hashlib.blake2b(token.encode(), digest_size=8).digest())
