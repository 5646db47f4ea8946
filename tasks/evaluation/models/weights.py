"""The checksum of a checkpoint's weights."""

import hashlib
from pathlib import Path


class NoWeights(ValueError):
    """A checkpoint has no weights."""


def weights_sha256(checkpoint: Path) -> str:
    """Return the checksum of a checkpoint's weights. Raises NoWeights."""
    digest, files = hashlib.sha256(), sorted(checkpoint.glob("*.safetensors"))
    if not files:
        raise NoWeights(
            f"checkpoint {checkpoint}: no *.safetensors; give a directory in Hugging Face layout (`tabloop base` makes one)"
        )
    for file in files:
        with file.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()
