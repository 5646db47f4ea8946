"""The pinned lists: a hash of every file that all sources have alike, a licence of each package, and the check for advisories."""

import importlib.util
import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

from infra.settings import ROOT

FOLDER = ROOT / "infra/requirements"
LISTS = [FOLDER / f"{name}.txt" for name in ("cpu", "gpu", "docs", "app", "engine", "trainer")]
ENTRY = re.compile(r"^(?P<name>[\w.-]+)==(?P<version>\S+)(?P<hashes>( \\\n    --hash=sha256:[0-9a-f]{64})*)$", re.MULTILINE)


def script(name: str) -> ModuleType:
    """A script of the folder, which is no package."""
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("given", "expected"), [((), "gpu.txt"), (("GPU=",), "cpu.txt"), (("GPU=1",), "gpu.txt")], ids=str)
def test_a_target_keeps_the_builds_of_the_last_set_up(given: tuple[str, ...], expected: str, tmp_path: Path) -> None:
    (tmp_path / "Makefile").write_text((ROOT / "Makefile").read_text())
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv/.installed-gpu").write_text("another folder: the packages are installed again\n")
    (tmp_path / "infra/requirements").mkdir(parents=True)
    for name in ("cpu.txt", "gpu.txt"):
        (tmp_path / "infra/requirements" / name).touch()
    command = ["make", "--dry-run", "status", *given]
    environment = {name: value for name, value in os.environ.items() if name not in ("GPU", "MAKEFLAGS", "MAKEOVERRIDES")}
    said = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True).stdout
    assert f"install.sh python3.11 .venv infra/requirements/{expected}\n" in said
    assert "rm -f .venv/.installed-*" in said, "a stamp of the other builds would say that they are there"


hashes, licences, audit = map(script, ("hashes", "licences", "audit"))


def test_the_cuda_libraries_of_torchs_cuda_build_are_pinned() -> None:
    """Where the package source has no CPU build of torch, set-up takes what this build loads from gpu.txt."""
    cpu, gpu = ({entry["name"]: entry["version"] for entry in ENTRY.finditer(file.read_text())} for file in LISTS[:2])
    named = re.search(r"libraries='([^']+)'.*?\(\$libraries\|([^)]+)\)", (FOLDER / "install.sh").read_text(), re.DOTALL)
    assert named and cpu["torch"] == gpu["torch"]
    assert {f"nvidia-{name}" for name in "|".join(named.groups()).split("|")} <= gpu.keys()


@pytest.mark.parametrize("file", LISTS, ids=lambda file: file.name)
def test_every_package_has_a_hash_or_a_reason(file: Path) -> None:
    entries = list(ENTRY.finditer(file.read_text()))
    assert "".join(entry[0] + "\n" for entry in entries) == file.read_text(), "nothing else stands in the list"
    assert {entry["name"] for entry in entries if not entry["hashes"]} <= set(hashes.UNHASHED)


def test_a_file_with_another_hash_is_refused(tmp_path: Path) -> None:
    wheel = tmp_path / "made_up-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as out:
        out.writestr("made_up-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: made-up\nVersion: 1.0\n")
        out.writestr("made_up-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        out.writestr("made_up-1.0.dist-info/RECORD", "")
    given = tmp_path / "list.txt"
    given.write_text(f"made-up==1.0 \\\n    --hash=sha256:{'0' * 64}\n")
    source = ["--no-index", "--find-links", str(tmp_path), "--no-deps", "--target", str(tmp_path / "out"), "-r", str(given)]
    ended = subprocess.run([sys.executable, "-m", "pip", "install", *source], capture_output=True, text=True, check=False)
    assert ended.returncode != 0 and "DO NOT MATCH THE HASHES" in ended.stderr


@pytest.mark.parametrize("name", ["uv.txt", "audit.txt"])
def test_the_tools_of_set_up_and_audit_are_pinned_with_all_their_packages(name: str) -> None:
    lines = (FOLDER / name).read_text().splitlines()
    pins = [line for line in lines if not line.startswith(" ")]
    assert pins and all(re.fullmatch(r"[\w.-]+==\S+( ; .+)? \\", pin) for pin in pins)
    assert len(lines) > 2 * len(pins) or name == "uv.txt"
    assert "--hash=sha256:" in lines[-1]


def test_set_up_takes_no_file_without_its_hash() -> None:
    text = (FOLDER / "install.sh").read_text()
    installs = [line for line in text.splitlines() if " pip install" in line and not line.lstrip().startswith("#")]
    unhashed = [line for line in installs if "--require-hashes" not in line]
    (own,) = (line for line in installs if "--editable" in line)
    assert "--no-index" in own and '"$here/../.."' in own, "the project itself, from this folder"
    unhashed.remove(own)
    assert len(installs) == 5 and all('-r "$list"' in line or '-r "$unhashed"' in line for line in unhashed)
    assert "UV_VERIFY_HASHES=true" in text


def test_the_licence_of_every_installed_package_is_written_down() -> None:
    found = licences.table(FOLDER / "cpu.txt")
    assert len(found) > 200
    assert licences.problems(found, licences.written()) == []


@pytest.mark.parametrize(
    ("text", "blocked"),
    [
        ("GPL-3.0-only", True),
        ("AGPL-3.0", True),
        ("GNU General Public License v3", True),
        ("MIT OR GPL-2.0", False),
        ("LGPL-2.1-only", False),
        ("Apache-2.0", False),
    ],
)
def test_a_licence_that_would_bind_the_program_is_named(text: str, blocked: bool) -> None:
    assert bool(licences.problems({"p": text}, {"p": text})) == blocked


def test_a_new_or_changed_licence_is_named() -> None:
    assert licences.problems({"p": "MIT"}, {}) == ["p: not in licences.txt"]
    assert licences.problems({"p": "MIT"}, {"p": "BSD"}) == ["p: MIT, not BSD as in licences.txt"]


def test_an_audit_that_reached_nothing_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(audit, "install", lambda folder: Path("pip-audit"))
    monkeypatch.setattr(audit, "ask", lambda program, service, file: audit.parse(""))
    assert audit.main(tmp_path) == audit.UNREACHED and "NOT CHECKED" in capsys.readouterr().out
    skipped = {"dependencies": [{"name": "attrs", "skip_reason": "not found"}]}
    monkeypatch.setattr(audit, "ask", lambda program, service, file: audit.parse(json.dumps(skipped)))
    assert audit.main(tmp_path) == audit.UNREACHED


def test_an_advisory_is_named_with_the_release_that_fixes_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    found = [{"id": "GHSA-1", "fix_versions": ["2.0"], "aliases": [], "description": ""}]
    answer = {"dependencies": [{"name": "a", "version": "1.0", "vulns": found}, {"name": "b", "version": "1", "vulns": []}]}
    monkeypatch.setattr(audit, "install", lambda folder: Path("pip-audit"))
    monkeypatch.setattr(audit, "ask", lambda program, service, file: audit.parse(json.dumps(answer)))
    assert audit.main(Path("list.txt")) == 1
    assert capsys.readouterr().out == "a 1.0: GHSA-1, fixed in 2.0\nlist.txt: 2 packages checked with osv\n"


def test_where_no_database_can_be_reached_the_audit_says_so(tmp_path: Path) -> None:
    """With the real program, which finds neither its package nor a database behind a proxy that nobody serves."""
    given = tmp_path / "list.txt"
    given.write_text("attrs==25.1.0\n")
    nowhere = "http://127.0.0.1:9"
    variables = {name: nowhere for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")}
    variables |= {"UV_DEFAULT_INDEX": nowhere, "UV_HTTP_RETRIES": "0", "UV_CACHE_DIR": str(tmp_path / "cache"), "NO_PROXY": ""}
    variables |= {"UV_TOOL_DIR": str(tmp_path / "tools"), "UV_OFFLINE": "0"}
    command = [sys.executable, str(FOLDER / "audit.py"), str(given)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | variables, timeout=60)
    assert ended.returncode == audit.UNREACHED and "NOT CHECKED" in ended.stdout, ended.stderr


@pytest.mark.parametrize(("code", "expected"), [(0, 0), (1, 2), (2, 2), (3, 0)])
def test_make_audit_stops_for_advisories_and_faults_alone(tmp_path: Path, code: int, expected: int) -> None:
    python, stamp = tmp_path / "python", tmp_path / "stamp"
    python.write_text(f'#!/bin/sh\ncase "$1" in *audit.py) exit {code};; esac\n')
    python.chmod(0o700)
    stamp.touch()
    command = ["make", "-C", str(ROOT), "-o", str(stamp), "audit", f"PY={python}", f"STAMP={stamp}"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == expected, ended.stdout + ended.stderr
