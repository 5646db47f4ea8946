"""The evaluation sets of a cycle: built when it is sealed, and compared with the candidate's training data."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from infra.records import HeldOutPlace, HeldOutSet, Manifest
from infra.settings.evaluation import Evaluate, HeldOut
from infra.storage import cycles
from infra.storage.store import ObjectStore
from tasks.evaluation.heldout import sets
from tasks.evaluation.heldout.build import build
from tasks.evaluation.heldout.duplicates import Hashes, union
from tasks.evaluation.heldout.sets import Places
from tasks.evaluation.models.completions import FOLDER, PlaceSet
from tasks.evaluation.training_overlap import with_trained

HashesOf = Callable[[Sequence[Manifest]], tuple[Hashes, tuple[str, ...]]]
"""Returns the shingles of some cycles' training data, and the cycles whose samples are gone
(tasks/evaluation/training_overlap.py)."""


def prepare(
    store: ObjectStore,
    settings: Evaluate,
    cycle: str,
    team: Callable[[HeldOut, int], Places],
    own: Hashes,
    ancestry: Sequence[Manifest],
    hashes_of: HashesOf,
    own_code: Sequence[Places] = (),
) -> tuple[HeldOutSet, ...]:
    """Write the sets that the settings name, and return them for the cycle's manifest.

    Args:
        team: makes the team's own set, given its settings and the number of places.
        own: shingles of the cycle's own samples, sorted.
        ancestry: manifests of the cycles that made the parent and its ancestors, newest first.
        own_code: further sets, of the files that the cycle holds out of the code that it learns from.
    """
    written = []
    for wanted in settings.sets:
        is_team = wanted.kind == "team"
        found = team(wanted, wanted.places or settings.samples) if is_team else build(wanted, settings)
        # The team's text is stored with its cycle, where forgetting and retention find it.
        reference = sets.write(store, found, cycles.key(cycle).rstrip("/") if is_team else sets.FOLDER)
        written.append(_compared(reference, found, own, ancestry, hashes_of))
    for found in own_code:
        reference = sets.write(store, found, cycles.key(cycle).rstrip("/"))
        written.append(_compared(reference, found, own, ancestry, hashes_of))
    return tuple(written)


def _compared(reference: HeldOutSet, found: Places, own: Hashes, ancestry: Sequence[Manifest], hashes_of: HashesOf) -> HeldOutSet:
    """Return the set, with the list of its places that occur in the candidate's training data.

    The nearest ancestor that was scored on the same places has compared them with everything before.
    """
    newer: list[Manifest] = []
    for manifest in ancestry:
        same = (one for one in manifest.held_out if one.places.sha256 == reference.places.sha256)
        if (earlier := next(same, None)) is not None:
            break
        newer.append(manifest)
    else:
        earlier = None
    others, gone = hashes_of(newer)
    known = frozenset(earlier.trained) if earlier else frozenset()
    unchecked = sorted({*gone, *(earlier.unchecked if earlier else ())})
    return with_trained(reference, found, union([own, others]), known, unchecked)


class NoPlaces(RuntimeError):
    """There is no place to score a candidate on, so there is no verdict."""


@dataclass(frozen=True)
class ScoredSet:
    """A set on which a cycle's candidate is scored."""

    name: str
    """Name in the settings."""
    sha256: str
    """Checksum of the places."""
    places: tuple[HeldOutPlace, ...]
    trained: frozenset[str] = frozenset()
    """Ids of places that do not count, since they occur in training data."""
    folder: str = sets.FOLDER
    """Folder of the set's object."""
    left_out: Mapping[str, int] = field(default_factory=dict)
    """Number of files and places that do not count, by reason."""
    unchecked: tuple[str, ...] = ()
    """Cycles whose training data are gone, so that the places could not be compared with them."""

    @property
    def completed(self) -> PlaceSet:
        """All places, which models complete: a cycle that leaves out other places can reuse the completions."""
        # The team's completions are stored with its set, under a name that forgetting and retention know.
        prefix = FOLDER if self.folder == sets.FOLDER else f"{self.folder}/held-out-completions-"
        return PlaceSet(self.name, self.sha256, tuple(map(sets.position_of, self.places)), prefix)

    @property
    def scored(self) -> tuple[HeldOutPlace, ...]:
        """Return the places that count."""
        return tuple(place for place in self.places if self.scores(place))

    def scores(self, place: HeldOutPlace) -> bool:
        """Return whether a place counts."""
        return place.id not in self.trained


def scored_sets(
    store: ObjectStore, manifest: Manifest, settings: Evaluate, hashes_of: HashesOf, ancestry: Callable[[], Sequence[Manifest]]
) -> tuple[ScoredSet, ...]:
    """Return the sets of a cycle that have places, compared with the candidate's training data.

    Sealing has compared the manifest's sets with the ancestry's data; here they are compared again with the cycle's own data. A
    manifest from before the sets were recorded has none: the sets of the settings are then compared with everything.

    Args:
        ancestry: returns the manifests of the cycles that made the parent and its ancestors.

    Raises:
        SetMissing: a set is not in the store.
        NoPlaces: every place occurs in training data.
    """
    # The team's own set of an older manifest cannot be drawn afterwards.
    built = (sets.write(store, build(wanted, settings)) for wanted in settings.sets if wanted.kind != "team")
    written = manifest.held_out or tuple(built)
    hashes, gone = hashes_of([manifest, *(() if manifest.held_out else ancestry())])
    found = [_checked(store, one, hashes, gone) for one in written]
    if not any(one.scored for one in found):
        raise NoPlaces(
            f"{manifest.cycle}: its held-out sets {[one.name for one in written]} have no place that training data do not hold; "
            "name more code in evaluate.sets (infra/docs/how/held-out.md), then run `prefect deployment run cycle/cycle`"
        )
    return tuple(one for one in found if one.places)


def _checked(store: ObjectStore, written: HeldOutSet, hashes: Hashes, gone: Sequence[str]) -> ScoredSet:
    places = sets.read(store, written)
    checked = with_trained(written, places, hashes, frozenset(written.trained), sorted({*written.unchecked, *gone}))
    return ScoredSet(
        name=written.name,
        sha256=written.places.sha256,
        places=places.places,
        trained=frozenset(checked.trained),
        folder=written.places.key.rpartition("/")[0],
        left_out=checked.left_out,
        unchecked=checked.unchecked,
    )
