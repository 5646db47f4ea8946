"""An evaluation set: its places, the counts of places left out, and its object, whose key is the checksum of its bytes."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from infra.model.line_ends import normal, normal_context
from infra.records import HeldOutPlace, HeldOutSet, ObjectReference
from infra.storage.store import ObjectStore, sha256, to_parquet
from tasks.evaluation.positions import Position

FOLDER = "held-out"
"""Folder of the sets without text of the team's requests."""


@dataclass(frozen=True)
class Places:
    """The places of a set."""

    name: str
    places: tuple[HeldOutPlace, ...]
    left_out: Mapping[str, int] = field(default_factory=Counter)
    """Number of files and places that were left out, by reason."""


class DuplicateId(ValueError):
    """Two places of a set have the same id."""


class SetMissing(RuntimeError):
    """A set that a manifest names is not in the object store."""


def write(store: ObjectStore, found: Places, folder: str = FOLDER) -> HeldOutSet:
    """Write a set under FOLDER/held-out-SHA256.parquet of the folder; equal places give the same object.

    Raises:
        DuplicateId: two places have the same id.
    """
    repeated = [id for id, count in Counter(place.id for place in found.places).items() if count > 1]
    if repeated:
        raise DuplicateId(
            f"held-out set {found.name!r}: id {repeated[0]!r} occurs more than once; expected a name for each place"
        )
    body = to_parquet(found.places)
    digest = sha256([body])
    key = f"{folder}/held-out-{digest}.parquet"
    store.put(key, body)
    reference = ObjectReference(key=key, sha256=digest, rows=len(found.places))
    return HeldOutSet(name=found.name, places=reference, left_out={k: v for k, v in found.left_out.items() if v})


def read(store: ObjectStore, written: HeldOutSet) -> Places:
    """Return the places of a set. Rows that `forget` removed since then are not there.

    Raises:
        SetMissing: the set is not in the store.
    """
    try:
        return Places(written.name, tuple(store.get_rows(written.places.key, HeldOutPlace)), written.left_out)
    except KeyError:
        raise SetMissing(
            f"held-out set {written.name!r}: {store.uri(written.places.key)} is not in the store; expected the "
            f"{written.places.rows} places that the cycle's manifest names. Put the object back from a backup; the next run then "
            "resumes the cycle"
        ) from None


def place_of(position: Position, project: str = "", language: str = "") -> HeldOutPlace:
    """Return a position in a file as a place."""
    return HeldOutPlace(
        id=f"{position.file}:{position.offset}",
        file=position.file,
        project=project,
        language=language,
        offset=position.offset,
        prefix=position.prefix,
        suffix=position.suffix,
        truth=position.truth,
    )


def position_of(place: HeldOutPlace) -> Position:
    """Return a place as a position to complete, its lines in normal form (infra/model/line_ends.py)."""
    prefix, suffix = normal_context(place.prefix, place.suffix)
    names = ("id", "file", "offset", "language", "project", "user")
    named = {name: getattr(place, name) for name in names}
    return Position(prefix=prefix, suffix=suffix, truth=normal(place.truth), **named)
