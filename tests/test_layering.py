"""The structure of the repository: allowed imports, sizes of rooms and files, and the top level."""

import ast
import subprocess
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MAY_IMPORT = {
    "flows": {"tasks", "infra"},
    "tasks": {"infra"},
    "serving": {"infra"},
    "evals": {"flows", "tasks", "serving", "infra"},
    "infra": set(),
}
# Packages that only these folders may import.
ONLY_IN = {"megatron": ("tasks/trainer", "evals/base_model"), "vllm": ("serving/engine",), "supervisor": ("infra/stack",)}
# The sub-rooms of a room; each imports only itself and earlier ones. A module that is not named is a command or wires the room:
# it may import every sub-room, and no sub-room imports it.
ORDER = {
    "tasks": (
        *("statistics", "labels", "validation", "evaluation", "rewards", "own_code", "showing", "trainer", "versions"),
        *("experiments", "upkeep", "steps"),
    ),
    "tasks/trainer": ("model", "options", "job", "memory", "update"),
    "tasks/experiments": ("counting", "verdict", "planning", "stages", "moves", "controller", "reports"),
    "tasks/evaluation": (
        *("positions", "heldout", "metrics", "judge", "models", "scores", "scoring", "sandbox", "gate"),
        *("team_set", "training_overlap", "cycle_sets", "evaluate"),
    ),
    "serving": ("access", "metrics", "engine", "recording", "slots", "gateway", "status", "app"),
    "evals": ("progress", "developers", "base_model", "compare", "demo", "bench", "studies", "docs"),
    "infra": (
        *(
            "records",
            "settings",
            "telemetry",
            "assignment",
            "identity",
            "model",
            "redaction",
            "http",
            "storage",
            "registry",
            "pages",
        ),
        *("stack", "cli"),
    ),
}
COMMAND = "infra/cli"
"""The console command, which alone imports every room."""
ONLY_STEPS = "prefect"
"""Package that only tasks/steps imports among the sub-rooms of tasks."""
MOST_AT_TOP = {"tasks": 12, "tasks/experiments": 8, "serving": 8, "evals": 8, "infra": 18}
MOST_LINES = 400
TOP_DIRECTORIES = {"flows", "tasks", "serving", "evals", "infra", "tests", ".ci", ".github"}
TOP_FILES = {
    *("pyproject.toml", "Makefile", "prefect.yaml", "README.md", "LICENSE", ".gitignore", ".gitattributes"),
    *("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", ".pre-commit-config.yaml"),
}


def tracked() -> list[Path]:
    """Return the files of the repository, including files that are not added yet."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return [Path(name) for name in listed if (ROOT / name).exists()]


def modules(room: str) -> list[Path]:
    return sorted(path.relative_to(ROOT) for path in (ROOT / room).rglob("*.py"))


def imports(source: str, package: str, nested: bool = True) -> Iterator[tuple[int, str]]:
    """Yield the line and full name of every import, or only of imports at the module's top level."""
    tree = ast.parse(source)
    for node in ast.walk(tree) if nested else tree.body:
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package.split(".")[: len(package.split(".")) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (base, node.module or "") if part)
            yield node.lineno, module
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)


@cache
def imports_of_file(path: Path, nested: bool = True) -> list[tuple[int, str]]:
    return list(imports((ROOT / path).read_text(), ".".join(path.parent.parts), nested))


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_rooms_import_only_what_they_may(room: str) -> None:
    forbidden = set(MAY_IMPORT) - MAY_IMPORT[room] - {room} | {"tests"}
    wrong = [
        f"{path}:{line} imports {name}"
        for path in modules(room)
        if not path.is_relative_to(COMMAND)
        for line, name in imports_of_file(path)
        if name.split(".")[0] in forbidden
    ]
    assert wrong == []


def test_the_command_imports_every_room_inside_functions_only_and_nothing_imports_it() -> None:
    light = ("collections", "contextlib", "getpass", "importlib", "math", "pathlib", "sys", "typing", "typer", "infra.cli")
    heavy = [
        f"{path}:{line} imports {name} at its top"
        for path in modules(COMMAND)
        for line, name in imports_of_file(path, nested=False)
        if not name.startswith(light)
    ]
    users = [
        f"{path}:{line} imports {name}"
        for room in MAY_IMPORT
        for path in modules(room)
        if not path.is_relative_to(COMMAND)
        for line, name in imports_of_file(path)
        if f"{name}.".startswith("infra.cli.")
    ]
    assert heavy == [] and users == []


@pytest.mark.parametrize(("package", "folders"), ONLY_IN.items())
def test_a_heavy_package_is_imported_in_its_folders_only(package: str, folders: tuple[str, ...]) -> None:
    wrong = [
        f"{path}:{line} imports {name}"
        for room in MAY_IMPORT
        for path in modules(room)
        for line, name in imports_of_file(path)
        if name.split(".")[0] == package and not any(path.is_relative_to(folder) for folder in folders)
    ]
    assert wrong == []


def sub_rooms(room: str) -> set[str]:
    """Return the folders and modules with code in a room, without its commands (`__main__`)."""
    names = {path.relative_to(room).with_suffix("").parts[0] for path in modules(room) if (ROOT / path).read_text().strip()}
    return names - {"__init__", "__main__"}


def arrows(room: str) -> dict[tuple[str, str], str]:
    """Return the imports between a room's sub-rooms: importing and imported sub-room, with one place of each."""
    package, known, found = room.replace("/", "."), sub_rooms(room), {}
    for path in modules(room):
        inner = path.relative_to(room).with_suffix("").parts[0]
        # `from package import name` may import a sub-room, too.
        for line, name in imports_of_file(path):
            target = name.removeprefix(f"{package}.").split(".")[0] if name.startswith(f"{package}.") else ""
            if target in known and inner in known and target != inner:
                found[inner, target] = f"{path}:{line} imports {name}"
    return found


@pytest.mark.parametrize("room", ORDER)
def test_a_sub_room_imports_only_earlier_sub_rooms(room: str) -> None:
    names, unnamed = ORDER[room], sub_rooms(room) - set(ORDER[room])
    later = {name: {*names[index + 1 :], *unnamed} for index, name in enumerate(names)}
    assert [place for (inner, target), place in arrows(room).items() if target in later.get(inner, ())] == []


def test_modules_do_not_import_each_other_in_a_circle() -> None:
    files = {
        ".".join(path.with_suffix("").parts).removesuffix(".__init__"): path for room in MAY_IMPORT for path in modules(room)
    }
    graph = {
        module: {name for _, name in imports_of_file(path, nested=False) if name in files and name != module}
        for module, path in files.items()
    }
    # Importing a module imports its package, which is not an edge of the graph.
    edges = {module: {t for t in targets if not module.startswith(f"{t}.")} for module, targets in graph.items()}
    assert list(TopologicalSorter(edges).static_order())


def test_only_the_steps_of_tasks_import_prefect() -> None:
    wrong = [
        f"{path}:{line}"
        for path in modules("tasks")
        for line, name in imports_of_file(path)
        if name.split(".")[0] in (ONLY_STEPS, "prefect_dask") and not path.is_relative_to("tasks/steps")
    ]
    assert wrong == []


@pytest.mark.parametrize(("room", "most"), MOST_AT_TOP.items())
def test_a_room_has_few_entries_at_its_top_level(room: str, most: int) -> None:
    entries = {path.relative_to(room).parts[0].removesuffix(".py") for path in tracked() if path.is_relative_to(room)}
    assert len(entries - {"__init__", "__main__", "README.md"}) <= most, sorted(entries)


def test_no_source_file_is_longer_than_the_limit() -> None:
    long = {
        str(path): lines
        for room in MAY_IMPORT
        for path in modules(room)
        if (lines := len((ROOT / path).read_text().splitlines())) > MOST_LINES
    }
    assert long == {}


def test_the_top_level_has_only_the_folders_and_files_of_the_design() -> None:
    files = tracked()
    directories = {path.parts[0] for path in files if len(path.parts) > 1}
    assert directories <= TOP_DIRECTORIES
    assert {path.name for path in files if len(path.parts) == 1} <= TOP_FILES


def test_relative_and_nested_imports_are_read() -> None:
    source = "from . import a\nfrom ..b import c\ndef f():\n    import vllm.engine\n"
    assert {name for _, name in imports(source, "serving.engine")} == {
        *("serving.engine", "serving.engine.a", "serving.b", "serving.b.c", "vllm.engine"),
    }
