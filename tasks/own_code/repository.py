"""The files of a repository: of a directory on this machine, or of an address that git clones."""

import os
import re
import subprocess
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp

from infra.model.language import language
from infra.settings import masked
from tasks.evaluation.heldout import directory
from tasks.evaluation.positions import Source

ADDRESS = re.compile(r"(?:https?|ssh|git|file)://\S+|[\w.-]+@[\w.-]+:\S+")
PROTOCOLS = "https:http:ssh:git:file"
"""Protocols that git may use; others run commands of the address."""
CLONE_SECONDS = 300.0
NEXT = "next: `tabloop learn DIR` with a folder of source files"


class NoCode(ValueError):
    """A source holds no code to learn from; the message says what was found and what is expected."""


@dataclass(frozen=True)
class Repository:
    """The hand-written files of a repository."""

    name: str
    source: str
    """Directory or address, without credentials."""
    root: Path
    sources: tuple[Source, ...]


def read(source: str, languages: Collection[str], work: Path) -> Repository:
    """Return the hand-written files of these languages (endings; empty: all) of a directory or an address.

    Args:
        work: folder for a clone.

    Raises:
        NoCode: there is no such directory, git cannot clone the address, or no file is code of these languages.
    """
    root = _opened(source, work)
    found = [each for each in directory.read_code(root) if (root / each.name).resolve().is_relative_to(root.resolve())]
    spoken = tuple(each for each in found if directory.spoken(language(each.name), languages))
    if not spoken:
        raise NoCode(_nothing(source, root, found, languages))
    return Repository(name_of(source), masked(source), root, spoken)


def name_of(source: str) -> str:
    """Return a repository's name: that of its folder, without `.git`, of the characters that a project may have."""
    last = (
        Path(source).expanduser().resolve().name
        if Path(source).expanduser().exists()
        else re.split(r"[/:]", source.rstrip("/"))[-1]
    )
    return re.sub(r"[^\w.-]", "-", last.removesuffix(".git"))[:64] or "code"


def _opened(source: str, work: Path) -> Path:
    """Return the directory of a source, cloned where it is an address or a bare repository."""
    path = Path(source).expanduser()
    bare = (path / "HEAD").is_file() and (path / "objects").is_dir()
    if path.is_dir() and not bare:
        return path.resolve()
    if path.is_file():
        raise NoCode(
            f"{source}: is a file, expected a directory or the address of a repository; next: `tabloop learn {path.parent}`"
        )
    if not bare and not ADDRESS.fullmatch(source):
        raise NoCode(
            f"{masked(source)}: no such directory on the machine of the flow, and no address (https://..., git@HOST:PATH); {NEXT}"
        )
    work.mkdir(parents=True, exist_ok=True)
    own = Path(mkdtemp(dir=work))  # another address may end in the same name
    return _clone(f"file://{path.resolve()}" if bare else source, own / name_of(source))


def _clone(address: str, folder: Path) -> Path:
    command = ("git", "clone", "--quiet", "--depth", "1", "--", address, str(folder))
    variables = {**os.environ, "GIT_TERMINAL_PROMPT": "0", "GIT_ALLOW_PROTOCOL": PROTOCOLS}
    shown = masked(address)
    try:
        ended = subprocess.run(
            command, env=variables, capture_output=True, text=True, errors="replace", timeout=CLONE_SECONDS, check=False
        )
    except FileNotFoundError:
        raise NoCode(f"{shown}: git is not installed on the machine of the flow; clone it by hand, {NEXT}") from None
    except subprocess.TimeoutExpired:
        raise NoCode(f"{shown}: git did not clone it within {CLONE_SECONDS:.0f} s; clone it by hand, {NEXT}") from None
    if ended.returncode:
        raise NoCode(f"{shown}: git cannot clone it: {masked(ended.stderr.strip())[-300:]}; correct the address, or {NEXT}")
    return folder


def _nothing(source: str, root: Path, found: list[Source], languages: Collection[str]) -> str:
    """Return why a source has no file to learn from."""
    shown = masked(source)
    if found:
        counts = ", ".join(
            f"{name or 'none'} ({count})" for name, count in Counter(language(s.name) for s in found).most_common(8)
        )
        asked = ", ".join(languages)
        return f"{shown}: none of its {len(found)} files of code is in {asked}; it has {counts}: name one by --language"
    files = sum(
        1 for each in root.rglob("*") if each.is_file() and not any(p.startswith(".") for p in each.relative_to(root).parts)
    )
    if not files:
        return f"{shown}: the directory has no file; {NEXT}"
    return (
        f"{shown}: none of its {files} files is hand-written code: text in UTF-8 of 400 to 200,000 characters, with short lines, "
        f"not generated and outside folders such as node_modules; {NEXT}"
    )
