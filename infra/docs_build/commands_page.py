"""The page of the commands: `make` targets and Prefect's deployments."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from infra.docs_build.markdown import anchor, code, prose, table

TARGET = re.compile(r"^([a-z]+):.*?## (.+)$", re.MULTILINE)
INTRO = """# Commands

Type commands in the repository's root, after `. .venv/bin/activate`. `tabloop --help` lists the commands of `tabloop`, and
`tabloop NAME --help` the options of one. The targets of `make` are short names for the most frequent ones.

"""


def page(root: Path) -> str:
    """Return the page in Markdown."""
    targets = [(anchor(f"make-{name}") + code(f"make {name}"), prose(text)) for name, text in make_targets(root).items()]
    deployments = yaml.safe_load((root / "prefect.yaml").read_text())["deployments"]
    rows = [(code(f"{each['name']}/{each['name']}"), _schedule(each), prose(each["description"])) for each in deployments]
    return (
        INTRO
        + "## make\n\n"
        + table(("command", "what it does"), targets)
        + "\n## Deployments\n\nStart one with `prefect deployment run`, its name and `--param KEY=VALUE`.\n\n"
        + table(("deployment", "runs", "what it does"), rows)
    )


def make_targets(root: Path) -> dict[str, str]:
    """Return the Makefile's targets with their descriptions."""
    return dict(TARGET.findall((root / "Makefile").read_text()))


def _schedule(deployment: Mapping[str, Any]) -> str:
    schedules = deployment.get("schedules", [])
    texts = [f"every {each['interval']} s" if "interval" in each else f"daily ({code(each['cron'])}), off" for each in schedules]
    return ", ".join(texts) or "by hand"
