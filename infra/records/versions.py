"""What changed between two versions' files (infra/storage/deltas)."""

from infra.records.base import ObjectReference, Record


class VersionDelta(Record):
    """The index of a delta, written after its parts."""

    parent: str
    """Key prefix of the checkpoint that the version was trained from."""
    parent_sha256: str
    """SHA-256 of the parent's checksums.json, in hex: as engines load it, if the parent has such a copy."""
    sha256: str
    """SHA-256 of the version's own checksums.json, in hex."""
    files: dict[str, str]
    """SHA-256 of each of the version's files by name, in hex."""
    parts: tuple[ObjectReference, ...]
    """The changed bytes, in order; `rows` counts the frames (infra/storage/deltas/folders.py)."""
    bytes: int
    """Bytes of all parts."""
    full_bytes: int
    """Bytes of the full copy."""
