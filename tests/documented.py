"""The commands that READMEs and docs tell a reader to type."""

import re
from dataclasses import dataclass

from infra.settings import ROOT

PAGES = (
    *sorted(ROOT.glob("*/README.md")),
    ROOT / "README.md",
    ROOT / "tasks/trainer/README.md",
    *sorted((ROOT / "infra/docs").glob("*.md")),
)
DIARY = "measurements.md"
"""Tells what was run at its time, with the code of its time."""
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
PROGRAMS = r"make|python[0-9.]*|\.venv/bin/python|prefect|pytest|torchrun|vllm|mlflow"
COMMAND = re.compile(rf"(?:(?:[A-Z][A-Z_0-9]*=\S* +)*(?:{PROGRAMS}) \S.*|make)")


@dataclass(frozen=True)
class Command:
    """A command and the page that names it."""

    text: str
    page: str


def commands() -> list[Command]:
    """Return the commands of every page: the lines of its shell blocks, and code in its text that begins with a program."""
    return sorted(
        {
            Command(text, str(page.relative_to(ROOT)))
            for page in PAGES
            if page.name != DIARY
            for text in commands_of(page.read_text())
        },
        key=lambda c: (c.page, c.text),
    )


def commands_of(page: str) -> set[str]:
    """Return the commands of a page in Markdown."""
    shell = [body for language, body in FENCE.findall(page) if language in ("sh", "bash", "console")]
    lines = [line for body in shell for line in body.replace("\\\n", " ").splitlines()]
    lines += [line.strip() for line in page.splitlines() if line.startswith("    ")]
    found = [line.split(" #")[0].strip().removeprefix("$ ") for line in lines]
    found += SPAN.findall(FENCE.sub("", page))
    return {re.sub(r"\s+", " ", text).strip() for text in found if COMMAND.fullmatch(text)}
