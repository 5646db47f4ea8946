"""The page of the commands: `tabloop`, `make` targets and Prefect's deployments."""

import re
from collections.abc import Iterator, Mapping
from inspect import getdoc
from pathlib import Path
from typing import Any

import yaml
from typer import Typer
from typer.main import get_command

from evals.docs.schema import INTROS, code, named, prose, table

TARGET = re.compile(r"^([a-z-]+):.*?## (.+)$", re.MULTILINE)


def page(root: Path, command: Typer) -> str:
    """Return the page in Markdown; `command` is `tabloop`."""
    makefile = (root / "Makefile").read_text()
    commands = [(code(name), prose(about), code(given)) for name, given, about in sorted(_commands(get_command(command)))]
    targets = [(named(f"make-{name}", f"make {name}"), prose(text)) for name, text in TARGET.findall(makefile)]
    deployments = yaml.safe_load((root / "prefect.yaml").read_text())["deployments"]
    rows = [(code(f"{each['name']}/{each['name']}"), _schedule(each), prose(each["description"])) for each in deployments]
    return (
        f"{INTROS['commands']}## tabloop\n\n{table(('command', 'what it does', 'arguments and options'), commands)}\n"
        f"## make\n\n{table(('command', 'what it does'), targets)}\n"
        "## Deployments\n\nStart one with `tabloop exec prefect deployment run`, its name and `--param KEY=VALUE`.\n\n"
        + table(("deployment", "runs", "what it does"), rows)
    )


def _commands(group: Any, prefix: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield name, parameters and summary of each command of a group, and of the groups in it."""
    for name, command in group.commands.items():
        inner = getattr(command, "commands", None)
        if inner is None or command.invoke_without_command:
            yield prefix + name, " ".join(map(_parameter, command.params)), (getdoc(command.callback) or "").partition("\n")[0]
        if inner is not None:
            yield from _commands(command, f"{prefix}{name} ")


def _parameter(parameter: Any) -> str:
    """Return an argument of a command as its help shows it, or an option's names."""
    if parameter.param_type_name == "argument":
        return str(parameter.metavar or parameter.name.upper())
    return " ".join(parameter.opts) + "".join(f"/{name}" for name in parameter.secondary_opts)


def _schedule(deployment: Mapping[str, Any]) -> str:
    schedules = deployment.get("schedules", [])
    texts = [f"every {each['interval']} s" if "interval" in each else f"daily ({code(each['cron'])}), off" for each in schedules]
    return ", ".join(texts) or "by hand"
