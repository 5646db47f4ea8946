"""The version of the running code: release of pyproject.toml, git commit if there is one, checksum of the sources.

The checksum also identifies uncommitted changes and installations without git. The git command is not needed.
"""

import tomllib
from pathlib import Path

from infra.settings import ROOT
from infra.storage.store import sha256

ROOMS = ("evals", "flows", "infra", "serving", "tasks")
SOURCES = ("*.py", "*.json", "*.toml")
NOT_SOURCES = ("base_model",)
SHORT = 12


def code_version(root: Path = ROOT) -> str:
    """Return for example 0.2.0+commit.a48bd2cf0b6b.sources.1f0d5c8e7a90; without a git directory, the commit is left out."""
    release = tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"]
    head = commit(root)
    return f"{release}+{f'commit.{head[:SHORT]}.' if head else ''}sources.{sources_sha256(root)[:SHORT]}"


def sources_sha256(root: Path) -> str:
    """Return the SHA-256 of the rooms' source files, names included, in hex."""
    files = sorted(file for room in ROOMS for pattern in SOURCES for file in (root / room).rglob(pattern))
    sources = [file for file in files if not set(NOT_SOURCES) & set(file.parts)]
    return sha256(part for file in sources for part in (str(file.relative_to(root)).encode(), b"\0", file.read_bytes(), b"\0"))


def commit(root: Path) -> str:
    """Return the commit checked out at root, read from git's files; empty if there is none."""
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
