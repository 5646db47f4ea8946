"""The base model's training data by package, with versions and licences from the installed metadata."""

import platform
from collections import defaultdict
from collections.abc import Iterable
from importlib.metadata import PackageMetadata, metadata, packages_distributions
from pathlib import Path

from tasks.evaluation.heldout import HELD_OUT_PACKAGES, site_packages

STANDARD_LIBRARY = "the standard library"


def licence(package: PackageMetadata) -> str:
    """Return the licence as the distribution states it: SPDX expression, else classifier, else the first line of its text."""
    if "License-Expression" in package:
        return package["License-Expression"]
    classifiers = [c.split(" :: ")[-1] for c in package.get_all("Classifier") or [] if c.startswith("License :: OSI")]
    text = (package.get_all("License") or [""])[0]
    return " / ".join(classifiers) or text.strip().split("\n")[0][:60] or "stated in its files only"


def packages(files: Iterable[Path]) -> dict[str, int]:
    """Return the bytes read from each top-level package."""
    sizes: dict[str, int] = defaultdict(int)
    for file in files:
        inside = site_packages() in file.parents
        sizes[file.relative_to(site_packages()).parts[0] if inside else STANDARD_LIBRARY] += file.stat().st_size
    return dict(sizes)


def table(package_sizes: dict[str, int]) -> str:
    """Return Markdown: a line for each licence with its distributions, and the megabytes read from each."""
    owners = packages_distributions()
    sizes: dict[str, int] = defaultdict(int)
    for package, size in package_sizes.items():
        for name in owners.get(package.removesuffix(".py"), [package])[:1]:
            sizes[name] += size
    grouped: dict[str, list[str]] = defaultdict(list)
    for name, size in sorted(sizes.items(), key=lambda item: item[0].lower()):
        if name == STANDARD_LIBRARY:
            version, terms = platform.python_version(), "PSF-2.0"
        elif name in {owner for all_owners in owners.values() for owner in all_owners}:
            package_metadata = metadata(name)
            version, terms = package_metadata["Version"], licence(package_metadata)
        else:
            version, terms = "(no metadata)", "stated in its files only"
        grouped[terms].append(f"{name} {version} ({size / 1e6:.2f})")
    lines = [f"- **{terms}**: {', '.join(names)}" for terms, names in sorted(grouped.items())]
    return "\n".join(lines)


def document(files: Iterable[Path]) -> str:
    """Return SOURCES.md for these training files."""
    sizes = packages(files)
    return (
        "# Sources of the base model\n\n"
        f"Python files read, {sum(sizes.values()) / 1e6:.0f} MB, by licence; megabytes of each distribution in brackets.\n"
        f"Held out whole: {', '.join(HELD_OUT_PACKAGES)}.\n\n{table(sizes)}\n"
    )
