"""Check a pinned list against the advisory databases that can be reached: python infra/requirements/audit.py LIST

Exit code 0: no advisory; 1: advisories, which are printed; 3: no database can be reached, so nothing was checked, which `make
audit` lets pass. pip-audit runs in an environment of its own, since nothing else needs its packages; audit.txt pins them with
their hashes.
"""

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

TOOL = Path(__file__).with_name("audit.txt")
"""Pinned list of pip-audit and its packages."""
SERVICES = ("osv", "pypi")
"""pip-audit's services, in the order tried."""
TIMEOUT_SECONDS = 15
MOST_SECONDS = 600
"""Seconds for the download of pip-audit, and for one service with its retries."""
UNREACHED = 3


@dataclass(frozen=True)
class Audit:
    """A frozen record of one service's answer."""

    checked: int
    """Packages that the service knows."""
    skipped: tuple[str, ...]
    """Packages it does not know, or could not be asked for."""
    advisories: tuple[str, ...]


def parse(answer: str) -> Audit:
    """Return what pip-audit's JSON says; an empty audit for other text, as after a failed connection."""
    try:
        packages = json.loads(answer)["dependencies"]
    except (ValueError, KeyError):
        return Audit(0, (), ())
    known = [package for package in packages if "vulns" in package]
    advisories = [
        f"{package['name']} {package['version']}: {found['id']}, fixed in {', '.join(found['fix_versions']) or 'no release'}"
        for package in known
        for found in package["vulns"]
    ]
    return Audit(len(known), tuple(package["name"] for package in packages if "vulns" not in package), tuple(advisories))


def install(folder: Path) -> Path | None:
    """Install pip-audit into a folder and return its program; none if its packages cannot be had."""
    program = folder / "bin" / "pip-audit"
    uv = (sys.executable, "-m", "uv", "--quiet")
    python = ("--python", str(folder / "bin" / "python"))
    commands = (
        (*uv, "venv", "--python", sys.executable, str(folder)),
        (*uv, "pip", "install", *python, "--no-deps", "--require-hashes", "--only-binary", ":all:", "-r", str(TOOL)),
    )
    for command in commands:
        try:
            subprocess.run(command, check=True, timeout=MOST_SECONDS)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
            return None
    return program


def ask(program: Path, service: str, file: Path) -> Audit:
    """Ask one service about every package of a list."""
    command = [str(program), "--requirement", str(file), "--no-deps", "--disable-pip", "--vulnerability-service", service]
    options = ["--format", "json", "--progress-spinner", "off", "--timeout", str(TIMEOUT_SECONDS)]
    try:
        ended = subprocess.run([*command, *options], capture_output=True, text=True, check=False, timeout=MOST_SECONDS)
    except subprocess.TimeoutExpired:
        return parse("")
    return parse(ended.stdout)


def main(file: Path) -> int:
    """Run the command; return its exit code."""
    with tempfile.TemporaryDirectory() as folder:
        program = install(Path(folder))
        if program is None:
            print(f"{file}: NOT CHECKED: not every package of {TOOL.name} can be downloaded on this machine")
            return UNREACHED
        for service in SERVICES:
            audit = ask(program, service, file)
            if audit.checked:
                skipped = f"; not known there: {', '.join(audit.skipped)}" if audit.skipped else ""
                print("\n".join([*audit.advisories, f"{file}: {audit.checked} packages checked with {service}{skipped}"]))
                return 1 if audit.advisories else 0
    print(f"{file}: NOT CHECKED: no advisory database ({', '.join(SERVICES)}) can be reached from this machine")
    return UNREACHED


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
