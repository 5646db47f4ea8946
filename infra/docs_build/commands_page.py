"""The page of the commands: `make` targets, Prefect's deployments, and the modules that the pages name."""

import ast
import re
from collections.abc import Iterable
from pathlib import Path

import yaml

from infra.docs_build.markdown import anchor, code, prose, table

TARGET = re.compile(r"^([a-z]+):.*?## (.+)$", re.MULTILINE)
MODULE = re.compile(r"python -m ((?:infra|serving|evals|tasks|flows)(?:\.\w+)*)")
INTRO = """# Commands

Type commands in the repository's root. Those of Python need `. .venv/bin/activate`, and those that ask Prefect or MLflow also
`eval "$(python -m infra.stack env)"`. `--help` lists the options of a command.

"""


def page(root: Path, pages: Iterable[str]) -> str:
    """Return the page in Markdown; `pages` are the texts in which commands are named."""
    targets = [(anchor(f"make-{name}") + code(f"make {name}"), prose(text)) for name, text in make_targets(root).items()]
    modules = sorted({name for text in pages for name in MODULE.findall(text)})
    commands = [(code(f"python -m {name}"), prose(about)) for name in modules if (about := _about(root, name))]
    deployments = yaml.safe_load((root / "prefect.yaml").read_text())["deployments"]
    rows = [(code(f"{each['name']}/{each['name']}"), _schedule(each), prose(each["description"])) for each in deployments]
    return (
        INTRO
        + "## make\n\n"
        + table(("command", "what it does"), targets)
        + "\n## Python modules\n\n"
        + table(("command", "what it does"), commands)
        + "\n## Deployments\n\nStart one with `prefect deployment run`, its name and `--param KEY=VALUE`.\n\n"
        + table(("deployment", "runs", "what it does"), rows)
    )


def make_targets(root: Path) -> dict[str, str]:
    """Return the Makefile's targets with their descriptions."""
    return dict(TARGET.findall((root / "Makefile").read_text()))


def _about(root: Path, name: str) -> str:
    """Return the first paragraph of a command's docstring; "" if there is none."""
    folder = root.joinpath(*name.split("."))
    files = [file for file in (folder / "__main__.py", folder.with_suffix(".py")) if file.exists()]
    text = (ast.get_docstring(ast.parse(files[0].read_text())) or "") if files else ""
    return text.partition("\n\n")[0]


def _schedule(deployment: dict[str, object]) -> str:
    schedules = deployment.get("schedules", [])
    assert isinstance(schedules, list)
    texts = [f"every {each['interval']} s" if "interval" in each else f"daily ({code(each['cron'])}), off" for each in schedules]
    return ", ".join(texts) or "by hand"
