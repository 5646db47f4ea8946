"""Repositories as the data of a cycle: samples whose settled text is a line of the team's code, and places to score on.

A file is trained on or scored, never both. Files that repeat others are left out, and so are positions with a secret. A
repository is a project, whose share the settings cap, and no file has more than its share of positions and of weight.
"""

import hashlib
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from infra.model.fim import Renderer
from infra.model.language import language
from infra.records import LearnedRepository, Sample
from infra.redaction.redactor import Redactor
from infra.settings import Settings
from infra.settings.collect import Collect
from infra.settings.evaluation import HeldOut
from tasks.evaluation.heldout import directory
from tasks.evaluation.heldout.sets import Places, place_of
from tasks.evaluation.positions import Position, Source, silent_positions
from tasks.labels.samples import SettledTokens, parquet, table
from tasks.labels.shares import choose, codes
from tasks.own_code.places import SEED, draw, near, share_of_file
from tasks.own_code.repository import NoCode, Repository
from tasks.rewards.scaling import scale

HELD_OUT_SHARE = 0.2
"""Share of a repository's files that are scored; of two files or more, at least one."""
KEY = "own code"
"""Key of the hash that draws these files: a later call draws the same ones."""
PREFIX = "own-"
"""Begins the names of the sets of own code, and the ids of its samples."""
COLUMNS = {"file": pl.String, "project": pl.String, "tokens": pl.Float64}


@dataclass(frozen=True, eq=False)
class LearnedCode:
    """Repositories as samples and held-out places."""

    parent: str
    """Version to train."""
    samples: bytes
    """Parquet of infra.records.Sample."""
    rows: int
    """Number of samples."""
    repositories: tuple[LearnedRepository, ...]
    held_out: tuple[Places, ...]
    """A set for each repository, in its order."""
    cycle: str = ""
    """Id of the cycle that the samples are sealed in; empty before a flow gives one."""


@dataclass(frozen=True)
class _Split:
    """A repository's files."""

    repository: Repository
    trained: list[Source]
    held_out: list[Source]
    left_out: Counter[str]


def learn(
    repositories: Sequence[Repository],
    revisions: Sequence[str],
    settings: Settings,
    renderer: Renderer,
    redactor: Redactor,
    parent: str,
    count: int,
) -> LearnedCode:
    """Return at most `count` samples of repositories, and their held-out places: the same for the same files.

    Args:
        revisions: commit of each repository; empty if unknown.
        renderer: of the parent's prompts.
        parent: the version to train.

    Raises:
        NoCode: two repositories have the same name, or one has too few files to hold some out, or for the shares.
    """
    if len(repeated := {repository.name for repository in repositories}) < len(repositories):
        raise NoCode(
            f"two of the {len(repositories)} sources have the same name, of {', '.join(sorted(repeated))}; rename a folder"
        )
    splits = [split(repository) for repository in repositories]
    drawn = [draw(each.trained, count, redactor) for each in splits]
    found = [(each.repository.name, position) for each, one in zip(splits, drawn, strict=True) for position in one.positions]
    kept = _within_shares(found, settings.collect, count)
    random.Random(SEED).shuffle(kept)
    rows = _samples(kept, settings, renderer, parent)
    learned, held_out = [], []
    for each, one, revision in zip(splits, drawn, revisions, strict=True):
        own = [position for name, position in kept if name == each.repository.name]
        left_out = each.left_out + one.left_out
        left_out["over_share"] += len(one.positions) - len(own)
        held_out.append(_places(each, settings, redactor))
        learned.append(
            LearnedRepository(
                name=each.repository.name,
                source=each.repository.source,
                revision=revision,
                files=len({position.file for position in own}),
                held_out_files=len(each.held_out),
                places=len(own),
                left_out={reason: number for reason, number in sorted(left_out.items()) if number},
                languages=dict(Counter(language(position.file) for position in own).most_common()),
            )
        )
    return LearnedCode(parent, parquet([table(rows)]), len(rows), tuple(learned), tuple(held_out))


def split(repository: Repository) -> _Split:
    """Return a repository's files to train on and to score, without copies. Raises NoCode for a single file."""
    if len(repository.sources) < 2:
        raise NoCode(
            f"{repository.source}: has one file of code, expected two or more, since a file is trained on or scored, never both; "
            "next: `tabloop learn DIR` with the folder of the whole repository"
        )
    ordered = sorted(repository.sources, key=lambda source: hashlib.blake2b(f"{KEY}\0{source.name}".encode()).digest())
    scored = ordered[: max(1, round(HELD_OUT_SHARE * len(ordered)))]
    trained, copies = directory.without_copies(ordered[len(scored) :], ())
    held_out, others = directory.without_copies(scored, trained)
    left_out = Counter(copy=copies.total(), held_out_copy=others.total())
    return _Split(repository, trained, held_out, left_out)


def training_settings(settings: Settings) -> Settings:
    """Return the settings of a cycle of own code: written text alone teaches, since nobody was shown anything."""
    only_text = {"actions": ("written",), "kl_weight": 0.0}
    return settings.model_copy(update={"train": settings.train.model_copy(update=only_text)})


def project_share(projects: int, settings: Collect) -> float:
    """Return the largest share of the samples, and of their weight, from one of so many repositories."""
    return max(settings.max_project_share, 1 / max(projects, 1))


def _within_shares(found: Sequence[tuple[str, Position]], settings: Collect, count: int) -> list[tuple[str, Position]]:
    """Return at most `count` positions, repositories in turns, none with more than its share."""
    names = [name for name, _ in found]
    rows = pl.DataFrame(
        {"id": [str(n) for n in range(len(found))], "time": [-float(n) for n in range(len(found))], "user": names}
    )
    share = project_share(len(set(names)), settings)
    chosen = choose(rows.with_columns(project="user"), {"project": share}, count)
    return [each for each, bucket in zip(found, chosen, strict=True) if bucket == "trained"]


def _samples(kept: Sequence[tuple[str, Position]], settings: Settings, renderer: Renderer, parent: str) -> list[Sample]:
    """Return a sample of each position; the weight of a file, and of a repository, is scaled down to its share."""
    tokens = SettledTokens(renderer, settings.serving.sampling.max_tokens, settings.collect.hindsight.lines)
    written = [tuple(tokens.ids(position.truth, True)) for _, position in kept]
    sizes = [(f"{name}/{position.file}", name, float(len(ids))) for (name, position), ids in zip(kept, written, strict=True)]
    frame = pl.DataFrame(sizes, COLUMNS, orient="row")
    shares = {
        "file": share_of_file(frame["file"].n_unique()),
        "project": project_share(frame["project"].n_unique(), settings.collect),
    }
    factors = scale(frame["tokens"].to_numpy(), [(codes(frame[name]), share) for name, share in shares.items()])
    if len(factors) and not factors.any():
        raise NoCode(_too_few_files(frame, shares))
    return [
        Sample(
            completion_id=f"{PREFIX}{number:06d}",
            user="",
            project=name,
            policy_version=parent,
            prompt_token_ids=tuple(renderer.render(position.prefix, position.suffix)),
            token_ids=(),
            logprobs=(),
            temperature=settings.serving.sampling.temperature,
            outcome="unjudged",
            shown_characters=0,
            accepted_characters=0,
            settled_token_ids=ids,
            settled_weight=float(factor),
        )
        for number, ((name, position), ids, factor) in enumerate(zip(kept, written, factors, strict=True))
    ]


def _too_few_files(frame: pl.DataFrame, shares: Mapping[str, float]) -> str:
    """Return why no weights are within the shares of files and of repositories, and what can be done."""
    files = frame.group_by("project").agg(pl.col("file").n_unique()).sort("project")
    most = [min(1.0, shares["file"] * count) for count in files["file"]]
    least = next(percent for percent in range(100) if sum(min(percent / 100, one) for one in most) >= 1) / 100
    few = ", ".join(f"{name}: {count}" for name, count in files.iter_rows())
    return (
        f"collect.max_project_share = {shares['project']:g}, and no file has more than {shares['file']:.3g} of the weight: the "
        f"repositories have too few files that are trained on for both ({few}); set collect.max_project_share to {least:g} or "
        "more, or leave the small repository out"
    )


def _places(each: _Split, settings: Settings, redactor: Redactor) -> Places:
    """Return at most `evaluate.samples` places of a repository's held-out files, and some where nothing should be written."""
    name, count = each.repository.name, settings.evaluate.samples
    wanted = HeldOut(name=f"{PREFIX}{name}", kind="directory", path=each.repository.root, key=KEY)
    if not each.held_out:
        return Places(wanted.name, (), each.left_out)
    drawn, short = directory.draw(each.held_out, wanted, count)
    quiet = silent_positions(each.held_out, round(wanted.silent * len(drawn)), wanted.key)
    secrets = {source.name: redactor.spans(source.text, language(source.name)) for source in each.held_out}
    safe = [one for one in (*drawn, *quiet) if not near(secrets[one.file], one.offset, one.offset + len(one.truth))]
    left_out = Counter(short=short, secret=len(drawn) + len(quiet) - len(safe))
    return Places(wanted.name, tuple(place_of(one, name, language(one.file)) for one in safe), left_out)
