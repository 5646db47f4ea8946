"""The files that are scored, and therefore not trained on."""

import hashlib


def is_scored(name: str, key: str, share: float) -> bool:
    """Return whether a file or repository is among the share that is scored, by a hash keyed with `key`."""
    digest = hashlib.blake2b(name.encode(), key=hashlib.sha256(key.encode()).digest(), digest_size=8).digest()
    return int.from_bytes(digest) < share * 2**64
