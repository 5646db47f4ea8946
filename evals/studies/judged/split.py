"""Positions to train and to test at: apart by file, and no test position whose text training holds."""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from evals.studies.judged.settings import Judged
from infra import settings as configuration
from infra.settings.evaluation import HeldOut
from tasks.evaluation import positions
from tasks.evaluation.heldout import benchmarks, sets
from tasks.evaluation.heldout.build import scored_sources, typed_sources
from tasks.evaluation.heldout.duplicates import NEAR, containment, shingles_of_all, shingles_of_place
from tasks.evaluation.positions import Position

SEED = 0
SPARE = 1.5
"""Positions drawn for each wanted one, since short ones are dropped."""


class TooFewPlaces(ValueError):
    """The file has too few positions."""


@dataclass(frozen=True)
class Split:
    """Positions to train and to test at."""

    train: tuple[Position, ...]
    test: tuple[Position, ...]
    left_out: Mapping[str, int]  # number of positions in neither, by reason


def split_of(settings: Judged) -> Split:
    """Return the positions of the settings' file, or of the held-out packages; the same for the same settings.

    Raises TooFewPlaces where there are fewer positions than the settings want. Raises Malformed where the file does not have
    its format.
    """
    left_out: Counter[str] = Counter()
    train, test = _of_file(settings, left_out) if settings.file else _of_packages(settings)
    train, test = (_long(found, settings.min_truth, left_out) for found in (train, test))
    known = shingles_of_all([place.prefix + place.truth + place.suffix for place in train[: settings.train_places]])
    fresh = [p for p in test if containment(shingles_of_place(p.prefix, p.truth, p.suffix), known) < NEAR]
    left_out["trained_on"] = len(test) - len(fresh)
    for name, found, wanted in (("train", train, settings.train_places), ("test", fresh, settings.test_places)):
        if len(found) < wanted:
            raise TooFewPlaces(
                f"judged.{name}_places = {wanted}: found {len(found)} in {settings.file or 'the held-out packages'} (left out: "
                f"{dict(left_out)}); ask for fewer, or lower judged.min_truth = {settings.min_truth}"
            )
    return Split(tuple(train[: settings.train_places]), tuple(fresh[: settings.test_places]), dict(left_out))


def _of_file(settings: Judged, left_out: Counter[str]) -> tuple[list[Position], list[Position]]:
    """Return the file's positions in the order of a hash of their files; the first files are for the test."""
    assert settings.file
    wanted = HeldOut(name="judged", kind="code_fim", path=settings.file, languages=settings.languages)
    found = benchmarks.places(wanted, configuration.path(settings.file))
    left_out.update(found.left_out)
    places = sorted(map(sets.position_of, found.places), key=lambda place: hashlib.sha256(place.file.encode()).digest())
    files = list(dict.fromkeys(place.file for place in places))
    share = settings.test_places / (settings.test_places + settings.train_places)
    tested = set(files[: max(1, round(share * len(files)))])
    return [p for p in places if p.file not in tested], [p for p in places if p.file in tested]


def _of_packages(settings: Judged) -> tuple[list[Position], list[Position]]:
    """Return positions in files that developers type in, and in files that models are scored on."""

    def drawn(part: Sequence[positions.Source], count: int) -> list[Position]:
        return list(positions.sample_positions(part, round(4 * SPARE * count), SEED))

    train = drawn(typed_sources(), settings.train_places)
    return train, drawn(scored_sources(), settings.test_places)


def _long(places: Sequence[Position], least: int, left_out: Counter[str]) -> list[Position]:
    long = [place for place in places if sum(not character.isspace() for character in place.truth) >= least]
    left_out["short"] += len(places) - len(long)
    return long
