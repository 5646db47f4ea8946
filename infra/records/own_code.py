"""Own code: repositories that a cycle learns from in place of requests (`tabloop learn`)."""

from infra.records.base import Record


class OwnCode(Record):
    """The code to learn from, as it is asked for."""

    sources: tuple[str, ...]
    """Directories on the machine of the flow, or addresses that git clones."""
    languages: tuple[str, ...] = ()
    """Endings of files (infra/model/language.py), such as "py"; empty: all."""
    places: int = 0
    """Most positions to train on; 0: collect.max_samples."""


class LearnedRepository(Record):
    """A repository that a cycle learnt from."""

    name: str
    """Name of its folder; the project of its samples and held-out places."""
    source: str
    """Directory or address, without credentials."""
    revision: str
    """Git's commit; empty if unknown."""
    files: int
    """Files that are trained on."""
    held_out_files: int
    """Files that are scored, and never trained on."""
    places: int
    """Positions that are trained on."""
    left_out: dict[str, int]
    """Number of files and positions that are neither, by reason (infra/docs/operate/learn.md)."""
    languages: dict[str, int]
    """Number of trained positions by language."""
