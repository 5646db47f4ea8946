"""The words of docstrings, comments, messages and documents: plain technical English."""

import ast
import io
import re
import subprocess
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("flows", "tasks", "serving", "evals", "infra")
HISTORY = ("CHANGELOG.md", "LOG.md", "infra/docs/changes.md", "infra/docs/measurements", "tests/")
BANNED = re.compile(
    r"\b(?:told|tells?|whoever|that of which|(?<!there )(?:is|are) none|what is no|as it is had|is had|was had)\b"
    r"|\A(?:return )?what (?:is|of)\b|\bof what\b",
    re.IGNORECASE,
)
"""tell: report, show, know, state. None stands for a missing value. A noun stands in place of a clause with "what"."""


def prose(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of every docstring and other string of several words, and of every comment."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value.split()) > 2:
            yield node.lineno, " ".join(node.value.split())
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string.lstrip("# ")


def wrong(path: Path) -> list[str]:
    """Return the banned words of a file with their places."""
    text = (ROOT / path).read_text()
    pieces = prose(text) if path.suffix == ".py" else enumerate(text.splitlines(), 1)
    return [f"{path}:{line}: {found[0]!r}" for line, piece in pieces for found in BANNED.finditer(piece)]


def tracked(suffix: str) -> list[Path]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", f"*{suffix}"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return [Path(name) for name in names if (ROOT / name).exists()]


@pytest.mark.parametrize("room", ROOMS)
def test_source_is_written_in_plain_words(room: str) -> None:
    files = [path for path in tracked(".py") if path.is_relative_to(room)]
    assert [line for path in files for line in wrong(path)] == []


def test_documents_are_written_in_plain_words() -> None:
    assert [line for path in tracked(".md") if not str(path).startswith(HISTORY) for line in wrong(path)] == []


def test_banned_words_are_found() -> None:
    source = '"""Return what is of use."""\nx = "the rate tells nothing at all"  # whoever\ny = "a teller of tales"\n'
    assert [found[0] for _, text in prose(source) for found in BANNED.finditer(text)] == ["Return what is", "tells", "whoever"]
