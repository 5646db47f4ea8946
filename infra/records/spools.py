"""The note of a replica's spool in the bucket, by which other replicas see what lies on the disk of one that is gone."""

from infra.records.base import Record


class SpoolNote(Record):
    """A spool that is not known to be empty. Its replica rewrites the note while it runs, and removes it at an end that left
    nothing."""

    seen: float
    """When its replica last wrote this."""
    bytes: int
    """Bytes of events that waited for the object store then."""
    set_aside: int
    """Segments that could not be shipped whole, in SPOOL/bad."""
