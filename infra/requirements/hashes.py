"""Add the SHA-256 of every package's files to a pinned list: python infra/requirements/hashes.py LIST

uv finds the files for Python 3.11 and 3.12 on x86-64 Linux, and their hashes, in the index. Packages of UNHASHED keep none.
"""

import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

UNHASHED = {
    "torch": "its CPU build is another file than the index's CUDA build of the same version, and set-up takes either",
    "triton": "PyTorch's own index builds it anew under the same version",
}
"""Packages whose file differs between package sources, with the reason. Set-up trusts the source for these."""
PYTHONS = ("3.11", "3.12")
PLATFORM = ("--python-platform", "x86_64-manylinux_2_34")


def main(file: Path) -> None:
    """Rewrite a list in place."""
    pins = [line for line in file.read_text().splitlines() if line and not line.startswith(("#", " ")) and "==" in line]
    pins = [pin.removesuffix("\\").strip() for pin in pins]
    hashed = [pin for pin in pins if _name(pin) not in UNHASHED]
    found = [_hashes_of(hashed, python) for python in PYTHONS]
    known = {_name(pin): sorted(set().union(*(of_python.get(_name(pin), set()) for of_python in found))) for pin in hashed}
    if missing := [pin for pin in hashed if not all(of_python.get(_name(pin)) for of_python in found)]:
        raise SystemExit(f"{file}: the package index gives no hash of {', '.join(missing)}; add them to UNHASHED with the reason")
    file.write_text("".join(_entry(pin, known.get(_name(pin), [])) for pin in pins))


def _hashes_of(pins: list[str], python: str) -> dict[str, set[str]]:
    """Return the hashes of the files of every package that fit a version of Python, by its name."""
    with tempfile.TemporaryDirectory() as folder:
        plain, lock = Path(folder, "list.txt"), Path(folder, "pylock.toml")
        plain.write_text("\n".join(pins) + "\n")
        command = [sys.executable, "-m", "uv", "pip", "compile", str(plain), "--no-deps", "--format", "pylock.toml", "--quiet"]
        command += ["--python-version", python, *PLATFORM, "--output-file", str(lock)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return {package["name"]: _hashes(package) for package in tomllib.loads(lock.read_text())["packages"]}


def _hashes(package: dict[str, object]) -> set[str]:
    wheels, sdist = package.get("wheels", []), package.get("sdist")
    assert isinstance(wheels, list)
    files = wheels or ([sdist] if isinstance(sdist, dict) else [])  # sources are installed only where there is no wheel
    return {file["hashes"]["sha256"] for file in files}


def _entry(pin: str, hashes: list[str]) -> str:
    return " \\\n".join([pin, *(f"    --hash=sha256:{value}" for value in hashes)]) + "\n"


def _name(pin: str) -> str:
    return pin.partition("==")[0].lower().replace("_", "-").replace(".", "-")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
