"""The code's version: equal for equal sources, with git's commit wherever git stores it."""

import subprocess
from pathlib import Path

import pytest

from tasks.steps.version import code_version, commit


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks/a.py").write_text("A = 1\n")
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "2.3.4"\n')
    return tmp_path


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "init.defaultBranch=main")
    return subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


def test_without_git_the_version_names_the_sources(repository: Path) -> None:
    version = code_version(repository)
    assert version.startswith("2.3.4+sources.")
    assert code_version(repository) == version
    (repository / "tasks/a.py").write_text("A = 2\n")
    assert code_version(repository) != version


def test_the_commit_is_gits_head(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    git(repository, "init")
    assert commit(repository) == "", "nothing is committed yet"
    git(repository, "add", ".")
    git(repository, "commit", "-m", "one")
    head = git(repository, "rev-parse", "HEAD")
    assert commit(repository) == head
    assert code_version(repository).startswith(f"2.3.4+commit.{head[:12]}.sources.")
    linked = tmp_path_factory.mktemp("linked") / "tree"
    git(repository, "worktree", "add", "-b", "other", str(linked))
    assert commit(linked) == head
    git(repository, "pack-refs", "--all")
    assert (commit(repository), commit(linked)) == (head, head)
    git(linked, "checkout", "--detach")
    assert commit(linked) == head
