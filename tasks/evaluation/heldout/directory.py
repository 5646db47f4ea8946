"""Places in any directory of code, in any language.

A keyed hash of its name decides whether a file (or a whole repository) is scored; the team's work continues in the others. Scored
files that copy one of the others are left out, since a model that learnt from the work would know them, and so are copies among
the scored files, which would count twice.
"""

import random
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from infra.model.language import language
from infra.settings.evaluation import HeldOut
from tasks.evaluation.heldout import duplicates, packages
from tasks.evaluation.heldout.sets import Places, place_of
from tasks.evaluation.positions import TRIES, Code, Position, Source, silent_positions
from tasks.labels.scored import is_scored

NOT_CODE = frozenset(
    {
        *("", "adoc", "cfg", "conf", "csv", "gitignore", "html", "ini", "ipynb", "json", "jsonl", "lock", "log", "map", "md"),
        *("po", "pot", "properties", "rst", "snap", "sum", "svg", "toml", "tsv", "txt", "xml", "yaml", "yml"),
    }
)
"""Extensions of files that are not code: prose, data, generated text."""
SKIPPED_FOLDERS = frozenset(
    {*packages.SKIPPED_PARTS - {"tests", "test", "locale"}, *("node_modules", "dist", "build", "target", "venv", "third_party")}
)
"""Folders of code that the team did not write."""
LEAST_TRUTH = 3
"""Fewest characters, without blanks, of a place's removed text: a closing bracket does not distinguish models."""


class TooLittleCode(ValueError):
    """A directory holds too few places to score."""


def places(settings: HeldOut, root: Path, count: int) -> Places:
    """Return places in the scored files of a directory: the same for the same files and settings.

    Raises:
        TooLittleCode: the directory is missing or holds too few places.
    """
    if not root.is_dir():
        raise TooLittleCode(
            f"evaluate.sets, set {settings.name!r}: path = {str(root)!r} is no directory; expected a folder of code"
        )
    sources = {source.name: source for source in read_code(root) if spoken(language(source.name), settings.languages)}
    projects = {name: _repository(root, name) for name in sources}
    unit = projects if settings.split == "repository" else {name: name for name in sources}
    scored = {name: source for name, source in sources.items() if is_scored(unit[name], settings.key, settings.share)}
    others = [source for name, source in sources.items() if name not in scored]
    kept, left_out = without_copies(list(scored.values()), others)
    if not kept:
        raise TooLittleCode(
            f"evaluate.sets, set {settings.name!r}: {len(sources)} files of code in {root}, {len(scored)} drawn for scores, of "
            f"which {dict(left_out)} were left out; expected at least one file. Name a folder with more code, or raise share = "
            f"{settings.share:g}"
        )
    drawn, short = draw(kept, settings, count)
    left_out["short"] = short
    if len(drawn) < count:
        raise TooLittleCode(
            f"evaluate.sets, set {settings.name!r}: {count} places asked for in {len(kept)} files of {root}, found only "
            f"{len(drawn)}; set places to at most {len(drawn)}, or name a folder with more code"
        )
    quiet = silent_positions(kept, round(settings.silent * count), f"{settings.key}/{settings.seed}")
    found = tuple(place_of(p, projects[p.file], language(p.file)) for p in (*drawn, *quiet))
    return Places(settings.name, found, left_out)


def read_code(root: Path) -> Iterator[Source]:
    """Yield the files of hand-written code under a folder, by name."""
    for file in sorted(root.rglob("*")):
        inner = file.relative_to(root)
        hidden = any(part.startswith(".") or part in SKIPPED_FOLDERS for part in inner.parts)
        named = str(inner).encode(errors="replace").decode() == str(inner)  # another encoding's name cannot stand in a record
        if named and not hidden and file.suffix.removeprefix(".").lower() not in NOT_CODE and file.is_file():
            text = packages.read_source(file)
            if text is not None:
                yield Source(inner.as_posix(), text)


def spoken(language: str, wanted: Collection[str]) -> bool:
    """Return whether a set accepts places of a language; a set without languages accepts all."""
    return not wanted or language in wanted


def without_copies(scored: Sequence[Source], others: Sequence[Source]) -> tuple[list[Source], Counter[str]]:
    """Return the scored files that repeat neither `others` nor each other, and how many were left out, by reason."""
    known = duplicates.union(duplicates.sketch(source.text) for source in others)
    kept: list[Source] = []
    seen: set[int] = set()
    left_out: Counter[str] = Counter()
    for source in scored:
        hashes = duplicates.sketch(source.text)
        if duplicates.containment(hashes, known) >= duplicates.NEAR:
            left_out["copy_of_other_file"] += 1
        elif len(seen.intersection(hashes.tolist())) >= duplicates.NEAR * max(len(hashes), 1):
            left_out["copy_of_scored_file"] += 1
        else:
            kept.append(source)
            seen.update(hashes.tolist())
    return kept, left_out


def draw(sources: Sequence[Source], settings: HeldOut, count: int) -> tuple[tuple[Position, ...], int]:
    """Return distinct positions, at most `count`, and how many were too short."""
    code, rng = Code(sources), random.Random(f"directory/{settings.key}/{settings.seed}")
    found: dict[tuple[str, int], Position] = {}
    short = 0
    for _ in range(TRIES * count):
        if len(found) == count:
            break
        position = code.draw(rng, settings.several_lines)
        if sum(not character.isspace() for character in position.truth) < LEAST_TRUTH:
            short += 1
        else:
            found.setdefault((position.file, position.offset), position)
    return tuple(found.values()), short


def _repository(root: Path, name: str) -> str:
    """Return the name of the repository that holds a file: the nearest folder with a `.git`, else the directory itself."""
    folders = [root / parent for parent in Path(name).parents]
    return next((folder.resolve().name for folder in folders if (folder / ".git").exists()), root.resolve().name)
