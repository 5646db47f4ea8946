"""Put the site's sources together: the written pages of infra/docs, and the generated pages of an app that is not started."""

import asyncio
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prometheus_client.metrics import MetricWrapperBase
from pydantic import SecretStr
from typer import Typer

from evals.docs import capacity_page, commands_page, formats_page, http_page, records_page, settings_page
from infra.settings import Settings
from serving.__main__ import wire
from serving.gateway.dialects import CLIENT_NAMES
from serving.gateway.drain import Drain
from serving.metrics import Metrics
from serving.metrics.loop import GAUGES
from serving.slots import client

CONFIG = "evals/docs/mkdocs.yml"


async def describe(settings: Settings) -> dict[str, Any]:
    """Return the OpenAPI documents of the ports `completions` and `feedback`, and the `metrics`."""
    with tempfile.TemporaryDirectory() as folder:
        unused = SecretStr("unused")
        changes = {"spool": Path(folder, "spool"), "state": Path(folder, "state"), "token": unused, "user_secret": unused}
        settings = settings.model_copy(update={"serving": settings.serving.model_copy(update=changes)})
        async with client.session() as http:
            parts = wire(settings, http, Metrics(CLIENT_NAMES), Drain(settings.serving.drain))
        ports = {"completions": parts.completions.openapi(), "feedback": parts.feedback.openapi()}
        return ports | {"metrics": described(parts.metrics)}


def described(metrics: Metrics) -> list[dict[str, Any]]:
    """Return name, type, labels and help of every metric, in the order in which they are declared."""
    declared = [metric for metric in vars(metrics).values() if isinstance(metric, MetricWrapperBase)]
    of_loop = [{"name": n, "kind": "gauge", "labels": labels, "help": text} for n, (text, labels) in GAUGES.items()]
    return of_loop + [
        {
            "name": each.name + ("_total" if each.type == "counter" else ""),
            "kind": each.type,
            "labels": metric._labelnames,
            "help": each.documentation,
        }
        for metric in declared
        for each in metric.describe()
    ]


def written(root: Path) -> dict[str, str]:
    """Return the pages of infra/docs by their path in the site."""
    folder = root / "infra/docs"
    return {str(file.relative_to(folder)): file.read_text() for file in sorted(folder.rglob("*.md"))}


def generated(root: Path, app: Mapping[str, Any], command: Typer) -> dict[str, str]:
    """Return the generated pages by their path; `app` is the result of `describe`, `command` the command `tabloop`."""
    changelog = (root / "CHANGELOG.md").read_text()
    return {
        "changes.md": changelog.replace("](infra/docs/", "]("),  # its links lead from the root of the repository
        "operate/capacity.md": capacity_page.page(),
        "operate/settings.md": settings_page.page(),
        "operate/metrics.md": http_page.metrics_page(app["metrics"]),
        "reference/http.md": http_page.http_page(app),
        **{f"reference/{name}": text for name, text in records_page.pages().items()},
        "reference/commands.md": commands_page.page(root, command),
        "reference/formats.md": formats_page.page(),
    }


def sources(root: Path, app: Mapping[str, Any], command: Typer) -> dict[str, str]:
    """Return all pages by their path. Raises ValueError if a generated page would replace a written one."""
    made = generated(root, app, command)
    if clashes := made.keys() & (pages := written(root)).keys():
        raise ValueError(f"infra/docs: {', '.join(sorted(clashes))} would be replaced by a generated page; give it another name")
    return pages | made


def write(root: Path, app: Mapping[str, Any], command: Typer, folder: Path) -> int:
    """Write all pages and assets into a folder, which is emptied before; return the number of pages."""
    pages = sources(root, app, command)
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(root / "infra/docs", folder, ignore=shutil.ignore_patterns("*.md"))
    for path, text in pages.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return len(pages)


def build(root: Path, settings: Settings, command: Typer) -> bool:
    """Build var/docs with MkDocs; return whether it succeeded. Raises FileNotFoundError without MkDocs' environment."""
    python = root / ".venv-docs/bin/python"
    if not python.exists():
        raise FileNotFoundError(f"{python}: not found; `make docs` installs MkDocs and builds the documentation")
    write(root, asyncio.run(describe(settings)), command, root / "var/docs-source")
    mkdocs = (*(str(python), "-m", "mkdocs", "build", "--strict", "--quiet", "--clean"), "--config-file", CONFIG)
    return not subprocess.run(mkdocs, cwd=root, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, check=False).returncode
