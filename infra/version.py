"""Which code this is, told without git's command: the version of pyproject.toml, the commit where there is one, and a checksum.

The checksum is over the sources themselves, so that what was changed and not committed, or installed without git, has a name too.
"""

import tomllib
from pathlib import Path

from infra.settings import ROOT
from infra.store import sha256

ROOMS = ("evals", "flows", "infra", "serving", "tasks")
SOURCES = ("*.py", "*.json", "*.toml")
NOT_SOURCES = ("base_model",)
SHORT = 12


def code_version(root: Path = ROOT) -> str:
    """For example 0.1.0+commit.a48bd2cf0b6b.sources.1f0d5c8e7a90; without the commit where there is no git directory."""
    release = tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"]
    found = commit(root)
    return f"{release}+{f'commit.{found[:SHORT]}.' if found else ''}sources.{sources_sha256(root)[:SHORT]}"


def sources_sha256(root: Path) -> str:
    """Checksum of the rooms' sources, their names included."""
    files = sorted(file for room in ROOMS for pattern in SOURCES for file in (root / room).rglob(pattern))
    kept = [file for file in files if not set(NOT_SOURCES) & set(file.parts)]
    return sha256(part for file in kept for part in (str(file.relative_to(root)).encode(), b"\0", file.read_bytes(), b"\0"))


def commit(root: Path) -> str:
    """The commit that git's directory names, read from its files; empty where there is none."""
    git = root / ".git"
    try:
        if git.is_file():  # a linked worktree
            git = root / git.read_text().removeprefix("gitdir:").strip()
        head = (git / "HEAD").read_text().strip()
        if not head.startswith("ref:"):
            return head
        name = head.removeprefix("ref:").strip()
        common = git / (git / "commondir").read_text().strip() if (git / "commondir").exists() else git
        if (common / name).exists():
            return (common / name).read_text().strip()
        packed = (common / "packed-refs").read_text().splitlines() if (common / "packed-refs").exists() else []
        return next((line.split()[0] for line in packed if line.endswith(f" {name}")), "")
    except OSError:
        return ""
