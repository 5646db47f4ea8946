"""The page of the commands: `tabloop`, `make` targets and Prefect's deployments."""

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from evals.docs.schema import INTROS, code, named, prose, table

TARGET = re.compile(r"^([a-z-]+):.*?## (.+)$", re.MULTILINE)
PARAMETERS = ("Argument", "Option")
DECLARED = re.compile(r"(?:(\w+)\.)?(command|callback)\((?:[A-Z]+)?(?:, )?(?:'(\w+)')?")
"""A decorator of infra/cli: its group of commands if it is not `tabloop` itself, its kind, and the command's name if given."""


def page(root: Path) -> str:
    """Return the page in Markdown."""
    makefile = (root / "Makefile").read_text()
    commands = [(code(name), prose(about), code(given) if given else "") for name, given, about in sorted(_commands(root))]
    targets = [(named(f"make-{name}", f"make {name}"), prose(text)) for name, text in TARGET.findall(makefile)]
    deployments = yaml.safe_load((root / "prefect.yaml").read_text())["deployments"]
    rows = [(code(f"{each['name']}/{each['name']}"), _schedule(each), prose(each["description"])) for each in deployments]
    return (
        f"{INTROS['commands']}## tabloop\n\n{table(('command', 'what it does', 'arguments and options'), commands)}\n"
        f"## make\n\n{table(('command', 'what it does'), targets)}\n"
        "## Deployments\n\nStart one with `tabloop exec prefect deployment run`, its name and `--param KEY=VALUE`.\n\n"
        + table(("deployment", "runs", "what it does"), rows)
    )


def _commands(root: Path) -> Iterator[tuple[str, str, str]]:
    """Yield name, parameters and summary of each function that infra/cli declares as a command, without importing it."""
    modules = [ast.parse(file.read_text()) for file in (root / "infra/cli").glob("*.py")]
    named = {
        node.targets[0].id: node.value
        for module in modules
        for node in module.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    for module in modules:
        for function in (node for node in module.body if isinstance(node, ast.FunctionDef)):
            for decorator in function.decorator_list:
                declared = DECLARED.match(ast.unparse(decorator))
                if declared and declared[1] != "app":
                    own = declared[3] or function.name if declared[2] == "command" else ""
                    name = " ".join(part.strip("_") for part in (declared[1], own) if part)
                    given = " ".join(filter(None, (_parameter(each, named) for each in function.args.args)))
                    yield name, given, (ast.get_docstring(function) or "").partition("\n")[0]


def _parameter(argument: ast.arg, named: Mapping[str, ast.expr]) -> str:
    """Return an argument of a command as it is written, or an option's name; `named` has the types that have a name."""
    kind = named.get(argument.annotation.id) if isinstance(argument.annotation, ast.Name) else argument.annotation
    for call in (node for node in ast.walk(kind) if isinstance(node, ast.Call)) if kind else ():
        if isinstance(call.func, ast.Attribute) and call.func.attr in PARAMETERS:
            if call.func.attr == "Argument":
                metavar = next((each.value for each in call.keywords if each.arg == "metavar"), None)
                return str(ast.literal_eval(metavar)) if metavar else argument.arg.upper()
            words = [each.value for each in call.args if isinstance(each, ast.Constant)]
            return " ".join(map(str, words)) or f"--{argument.arg.replace('_', '-')}"
    return ""


def _schedule(deployment: Mapping[str, Any]) -> str:
    schedules = deployment.get("schedules", [])
    texts = [f"every {each['interval']} s" if "interval" in each else f"daily ({code(each['cron'])}), off" for each in schedules]
    return ", ".join(texts) or "by hand"
