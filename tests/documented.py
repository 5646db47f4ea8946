"""The commands in the READMEs and the docs."""

import re
from dataclasses import dataclass

from infra.settings import ROOT

PAGES = (
    *sorted(ROOT.glob("*/README.md")),
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")),
    ROOT / "tasks/trainer/README.md",
    *sorted((ROOT / "infra/docs").rglob("*.md")),
)
LOG = "measurements-history.md"
"""Page without checked commands: its entries hold the commands of their day."""
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
PROGRAMS = r"make|tabloop|python[0-9.]*|\.venv/bin/python|prefect|pytest|torchrun|vllm|mlflow|curl"
COMMAND = re.compile(rf"(?:(?:[A-Z][A-Z_0-9]*=\S* +)*(?:{PROGRAMS}) \S.*|make)")


@dataclass(frozen=True)
class Command:
    """A command and the page that names it."""

    text: str
    page: str


def commands() -> list[Command]:
    """Return the commands of every page: lines of shell blocks, and inline code that begins with a program."""
    return sorted(
        {
            Command(text, str(page.relative_to(ROOT)))
            for page in PAGES
            if page.name != LOG
            for text in commands_of(page.read_text())
        },
        key=lambda c: (c.page, c.text),
    )


def commands_of(page: str) -> set[str]:
    """Return the commands of a page in Markdown."""
    shell = [body for language, body in FENCE.findall(page) if language in ("sh", "bash", "console")]
    lines = [line for body in shell for line in body.replace("\\\n", " ").splitlines()]
    lines += [line.strip() for line in page.splitlines() if line.startswith("    ")]
    texts = [line.split(" #")[0].strip().removeprefix("$ ") for line in lines]
    texts += SPAN.findall(FENCE.sub("", page))
    return {re.sub(r"\s+", " ", text).strip() for text in texts if COMMAND.fullmatch(text)}
