"""What the base model was trained on: packages, versions and licences, from the installed metadata.

python -m tasks.trainer.sources > infra/base_model/SOURCES.md
"""

import platform
from collections import defaultdict
from collections.abc import Iterable
from importlib.metadata import PackageMetadata, metadata, packages_distributions
from pathlib import Path

from evals.heldout import HELD_OUT_PACKAGES, site_packages, training_files
from tasks.trainer.pretraining.corpus import truncate

STANDARD_LIBRARY = "the standard library"


def licence(described: PackageMetadata) -> str:
    """The licence as the distribution states it: SPDX expression, else classifier, else the first line of its text."""
    if "License-Expression" in described:
        return described["License-Expression"]
    classifiers = [c.split(" :: ")[-1] for c in described.get_all("Classifier") or [] if c.startswith("License :: OSI")]
    text = (described.get_all("License") or [""])[0]
    return " / ".join(classifiers) or text.strip().split("\n")[0][:60] or "stated in its files only"


def packages(files: Iterable[Path]) -> dict[str, int]:
    """Bytes read of each top-level package."""
    read: dict[str, int] = defaultdict(int)
    for file in files:
        inside = site_packages() in file.parents
        read[file.relative_to(site_packages()).parts[0] if inside else STANDARD_LIBRARY] += file.stat().st_size
    return dict(read)


def table(read: dict[str, int]) -> str:
    """Markdown: a line for each licence with the distributions under it, and the megabytes read of each."""
    owners = packages_distributions()
    sizes: dict[str, int] = defaultdict(int)
    for package, size in read.items():
        for name in owners.get(package.removesuffix(".py"), [package])[:1]:
            sizes[name] += size
    grouped: dict[str, list[str]] = defaultdict(list)
    for name, size in sorted(sizes.items(), key=lambda item: item[0].lower()):
        if name == STANDARD_LIBRARY:
            version, terms = platform.python_version(), "PSF-2.0"
        elif name in {owner for all_owners in owners.values() for owner in all_owners}:
            described = metadata(name)
            version, terms = described["Version"], licence(described)
        else:
            version, terms = "(no metadata)", "stated in its files only"
        grouped[terms].append(f"{name} {version} ({size / 1e6:.2f})")
    lines = [f"- **{terms}**: {', '.join(names)}" for terms, names in sorted(grouped.items())]
    return "\n".join(lines)


def document(files: Iterable[Path]) -> str:
    """SOURCES.md for these training files."""
    read = packages(files)
    return (
        "# Sources of the base model\n\n"
        f"Python files read, {sum(read.values()) / 1e6:.0f} MB, by licence; megabytes of each distribution in brackets.\n"
        f"Held out whole: {', '.join(HELD_OUT_PACKAGES)}.\n\n{table(read)}\n"
    )


if __name__ == "__main__":
    print(document(truncate(training_files(), seed=0)), end="")
