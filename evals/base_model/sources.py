"""The installed Python sources that the base model is trained on, and their packages with versions and licences.

Files that repeat lines of the held-out packages, such as a vendored copy or a fork, are left out.
"""

import hashlib
import platform
import sysconfig
from collections import defaultdict
from collections.abc import Iterable
from importlib.metadata import PackageMetadata, metadata, packages_distributions
from pathlib import Path

from tasks.evaluation.heldout.packages import HELD_OUT_PACKAGES, held_out_files, read_source, site_packages, source_files

LONG_LINE = 30
MAX_SHARED = 0.1
"""Largest share of a training file's long lines that may also occur in held-out files."""
STANDARD_LIBRARY = "the standard library"


def standard_library() -> Path:
    return Path(sysconfig.get_paths()["stdlib"])


def training_files() -> list[Path]:
    """Return the sources of the standard library and the other packages, without duplicates and copies of held-out code."""
    digests: set[bytes] = set()
    held_lines = {line for file in held_out_files() for line in _long_lines(read_source(file) or "")}
    held_out = {site_packages() / package for package in HELD_OUT_PACKAGES}
    files = []
    for file in (file for root in (standard_library(), site_packages()) for file in sorted(source_files(root))):
        text = None if held_out.intersection(file.parents) else read_source(file)
        if text is None or (digest := hashlib.sha256(text.encode()).digest()) in digests:
            continue
        digests.add(digest)
        lines = _long_lines(text)
        if sum(line in held_lines for line in lines) <= MAX_SHARED * len(lines):
            files.append(file)
    return files


def _long_lines(text: str) -> list[str]:
    return [line for raw in text.splitlines() if len(raw) >= LONG_LINE and len(line := raw.strip()) >= LONG_LINE]


def package_of(file: Path) -> str:
    """Return the top-level package of a training file, or STANDARD_LIBRARY."""
    return file.relative_to(site_packages()).parts[0] if site_packages() in file.parents else STANDARD_LIBRARY


def licence(package: PackageMetadata) -> str:
    """Return the licence as the distribution states it: SPDX expression, else classifier, else the first line of its text."""
    if "License-Expression" in package:
        return package["License-Expression"]
    classifiers = [c.split(" :: ")[-1] for c in package.get_all("Classifier") or [] if c.startswith("License :: OSI")]
    text = (package.get_all("License") or [""])[0]
    return " / ".join(classifiers) or text.strip().split("\n")[0][:60] or "stated in its files only"


def table(package_sizes: dict[str, int]) -> str:
    """Return Markdown: a line for each licence with its distributions, and the megabytes read from each."""
    owners = packages_distributions()
    known = {name for names in owners.values() for name in names}
    sizes, grouped = defaultdict[str, int](int), defaultdict[str, list[str]](list)
    for package, size in package_sizes.items():
        for name in owners.get(package.removesuffix(".py"), [package])[:1]:
            sizes[name] += size
    for name, size in sorted(sizes.items(), key=lambda item: item[0].lower()):
        version, terms = "(no metadata)", "stated in its files only"
        if name == STANDARD_LIBRARY:
            version, terms = platform.python_version(), "PSF-2.0"
        elif name in known:
            version, terms = metadata(name)["Version"], licence(metadata(name))
        grouped[terms].append(f"{name} {version} ({size / 1e6:.2f})")
    return "\n".join(f"- **{terms}**: {', '.join(names)}" for terms, names in sorted(grouped.items()))


def document(files: Iterable[Path]) -> str:
    """Return SOURCES.md for these training files."""
    sizes: dict[str, int] = defaultdict(int)
    for file in files:
        sizes[package_of(file)] += file.stat().st_size
    return (
        "# Sources of the base model\n\n"
        f"Python files read, {sum(sizes.values()) / 1e6:.0f} MB, by licence; megabytes of each distribution in brackets.\n"
        f"Held out whole: {', '.join(HELD_OUT_PACKAGES)}.\n\n{table(sizes)}\n"
    )
