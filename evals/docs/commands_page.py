"""The page of the commands: `tabloop`, `make` targets and Prefect's deployments."""

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from evals.docs.schema import INTROS, code, named, prose, table

TARGET = re.compile(r"^([a-z]+):.*?## (.+)$", re.MULTILINE)
DECLARED = re.compile(r"(?:(\w+)\.)?(command|callback)\((?:[A-Z]+)?(?:, )?(?:'(\w+)')?")
"""A decorator of infra/cli: its group of commands if it is not `tabloop` itself, its kind, and the command's name if given."""


def page(root: Path) -> str:
    """Return the page in Markdown."""
    makefile = (root / "Makefile").read_text()
    commands = [(code(name), prose(about)) for name, about in sorted(_commands(root))]
    targets = [(named(f"make-{name}", f"make {name}"), prose(text)) for name, text in TARGET.findall(makefile)]
    deployments = yaml.safe_load((root / "prefect.yaml").read_text())["deployments"]
    rows = [(code(f"{each['name']}/{each['name']}"), _schedule(each), prose(each["description"])) for each in deployments]
    return (
        f"{INTROS['commands']}## tabloop\n\n{table(('command', 'what it does'), commands)}\n"
        f"## make\n\n{table(('command', 'what it does'), targets)}\n"
        "## Deployments\n\nStart one with `tabloop exec prefect deployment run`, its name and `--param KEY=VALUE`.\n\n"
        + table(("deployment", "runs", "what it does"), rows)
    )


def _commands(root: Path) -> Iterator[tuple[str, str]]:
    """Yield name and summary of each function that infra/cli declares as a command, without importing it."""
    for file in (root / "infra/cli").glob("*.py"):
        for function in (node for node in ast.parse(file.read_text()).body if isinstance(node, ast.FunctionDef)):
            for decorator in function.decorator_list:
                declared = DECLARED.match(ast.unparse(decorator))
                if declared and declared[1] != "app":
                    own = declared[3] or function.name if declared[2] == "command" else ""
                    name = " ".join(part.strip("_") for part in (declared[1], own) if part)
                    yield name, (ast.get_docstring(function) or "").partition("\n")[0]


def _schedule(deployment: Mapping[str, Any]) -> str:
    schedules = deployment.get("schedules", [])
    texts = [f"every {each['interval']} s" if "interval" in each else f"daily ({code(each['cron'])}), off" for each in schedules]
    return ", ".join(texts) or "by hand"
