"""The house of design.md, read from the imports themselves: who may import whom, and what lies at the top."""

import ast
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MAY_IMPORT = {
    "flows": {"tasks", "infra"},
    "tasks": {"evals", "infra"},
    "serving": {"infra"},
    "evals": {"infra"},
    "infra": set(),
}
# Packages that one room alone may know, and the folder that is its only door.
ONLY_IN = {"megatron": "tasks/trainer", "vllm": "serving/engine", "supervisor": "infra/stack"}
TOP_DIRECTORIES = {"flows", "tasks", "serving", "evals", "infra", "tests", ".ci"}
TOP_FILES = {
    *("pyproject.toml", "Makefile", "prefect.yaml", "README.md", "LICENSE", ".gitignore", ".gitattributes"),
    *("CONTRIBUTING.md", "CHANGELOG.md", "LOG.md"),
}


def tracked() -> list[Path]:
    """Files of the repository, those not added yet included."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return [Path(name) for name in listed if (ROOT / name).exists()]


def modules(room: str) -> list[Path]:
    return sorted(path.relative_to(ROOT) for path in (ROOT / room).rglob("*.py"))


def imports(source: str, package: str) -> Iterator[tuple[int, str]]:
    """Line and full name of every import, wherever it stands in the file."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package.split(".")[: len(package.split(".")) - node.level + 1]) if node.level else ""
            whole = ".".join(part for part in (base, node.module or "") if part)
            yield node.lineno, whole
            yield from ((node.lineno, f"{whole}.{alias.name}") for alias in node.names)


def found_imports(path: Path) -> list[tuple[int, str]]:
    return list(imports((ROOT / path).read_text(), ".".join(path.parent.parts)))


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_rooms_import_only_what_they_may(room: str) -> None:
    forbidden = set(MAY_IMPORT) - MAY_IMPORT[room] - {room} | {"tests"}
    wrong = [
        f"{path}:{line} imports {name}"
        for path in modules(room)
        for line, name in found_imports(path)
        if name.split(".")[0] in forbidden
    ]
    assert wrong == []


@pytest.mark.parametrize(("package", "door"), ONLY_IN.items())
def test_heavy_packages_have_one_door(package: str, door: str) -> None:
    wrong = [
        f"{path}:{line} imports {name}"
        for room in MAY_IMPORT
        for path in modules(room)
        for line, name in found_imports(path)
        if name.split(".")[0] == package and not path.is_relative_to(door)
    ]
    assert wrong == []


def test_nothing_lies_at_the_top_that_the_design_does_not_name() -> None:
    files = tracked()
    directories = {path.parts[0] for path in files if len(path.parts) > 1}
    assert directories <= TOP_DIRECTORIES
    assert {path.name for path in files if len(path.parts) == 1} <= TOP_FILES


def test_relative_and_nested_imports_are_read() -> None:
    source = "from . import a\nfrom ..b import c\ndef f():\n    import vllm.engine\n"
    assert {name for _, name in imports(source, "serving.engine")} == {
        *("serving.engine", "serving.engine.a", "serving.b", "serving.b.c", "vllm.engine"),
    }
