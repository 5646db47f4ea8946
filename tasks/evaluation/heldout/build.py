"""Build the held-out sets that the settings name, apart from the team's own (tasks/evaluation/cycle_sets.py)."""

from infra.model.language import language
from infra.settings import path
from infra.settings.evaluation import Evaluate, HeldOut
from tasks.evaluation import positions
from tasks.evaluation.heldout import benchmarks, directory
from tasks.evaluation.heldout.packages import held_out_files, site_packages
from tasks.evaluation.heldout.sets import Places, place_of


def build(wanted: HeldOut, evaluate: Evaluate) -> Places:
    """Return a set's places. Raises ValueError: the set's files are missing, malformed or too few."""
    match wanted.kind:
        case "packages":
            return _packages(wanted, wanted.places or evaluate.samples, evaluate.seed)
        case "directory":
            assert wanted.path  # the settings refuse a directory without one
            return directory.places(wanted, path(wanted.path), wanted.places or evaluate.samples)
        case "team":
            raise ValueError(f"set {wanted.name!r}: a set of kind 'team' is made from a cycle's requests, not from files")
        case "code_fim" | "humaneval_infilling" | "safim" | "crosscodeeval":
            assert wanted.path
            return benchmarks.places(wanted, path(wanted.path))


def held_out_positions(count: int, seed: int) -> tuple[positions.Position, ...]:
    """Return rest-of-line positions in files of the held-out packages that no simulated developer opens."""
    return positions.sample_positions(scored_sources(), count, seed)


def scored_sources() -> list[positions.Source]:
    """Return the files of the held-out packages that models are scored on."""
    return _sources(scored=True)


def typed_sources() -> list[positions.Source]:
    """Return the other files of these packages, which simulated developers type in."""
    return _sources(scored=False)


def _sources(*, scored: bool) -> list[positions.Source]:
    root = site_packages()
    files = (file for file in held_out_files() if positions.is_scored(file.relative_to(root).as_posix()) is scored)
    return positions.read_sources(files, [root])


def _packages(wanted: HeldOut, count: int, seed: int) -> Places:
    if not directory.spoken("py", wanted.languages):
        return Places(wanted.name, (), {"other_language": count})  # the packages are Python alone
    sources = scored_sources()
    drawn = positions.sample_positions(sources, count, seed)
    quiet = positions.silent_positions(sources, round(wanted.silent * count), str(seed))
    return Places(wanted.name, tuple(place_of(p, p.file.split("/")[0], language(p.file)) for p in (*drawn, *quiet)))
