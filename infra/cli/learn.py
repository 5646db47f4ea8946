"""The command that learns from a team's own repositories."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from infra.cli import errors
from infra.cli.app import LOOP, Json, Project, command, print_json
from infra.cli.loop import of_project

if TYPE_CHECKING:
    from infra.settings import Settings

LEARNED = "Learned"
"""Name of the state of a run whose candidate passed the offline gate (tasks/steps/own_code.py)."""


@command(LOOP)
def learn(
    sources: Annotated[list[str], typer.Argument(metavar="DIR|REPOSITORY...", help="folder of code, or address for git clone")],
    language: Annotated[
        list[str] | None, typer.Option(help='ending of the files, such as "py" or "ts" (default: all); may be repeated')
    ] = None,
    places: Annotated[int, typer.Option(min=0, help="most positions to train on; 0: collect.max_samples")] = 0,
    project: Project = "",
    as_json: Json = False,
) -> int:
    """Train a candidate on a team's own code, and test it as any other; 1 if the offline gate does not let it pass."""
    from infra import settings as settings_
    from infra.stack.flow_runs import said
    from infra.storage.scope import scope_of
    from infra.storage.store import ObjectStore
    from tasks.own_code.report import newest

    parameters, settings = of_project(project), settings_.load()
    languages = [each.lstrip(".") for each in language or ()]
    own_code = {"sources": [_absolute(source) for source in sources], "languages": languages, "places": places}
    state = _run(settings, {"own_code": own_code, **parameters})
    trained = state["name"] in (LEARNED, "NotLearned")
    found = newest(scope_of(settings, project).view(ObjectStore.connect(settings.store))) if trained else None
    if as_json:
        values = {"state": state["name"], "message": said(state), "cycle": found.values() if found else None}
        print_json(values)
    else:
        ended = f"{state['name']}: {said(state) or 'see its run in Prefect'}"
        print("\n".join([*(found.lines() if found else ()), ended]))
        if state["name"] == LEARNED and found and found.outcome:
            promote = " ".join(["tabloop promote", found.outcome.version or "", *(["--project", project] if project else [])])
            print(f"next: the A/B test decides; before anybody types, `{promote}` makes it champion")
    return errors.DONE if state["name"] == LEARNED else errors.NO


def _absolute(source: str) -> str:
    """Return a folder's absolute path, since the flow runs in another directory; an address as it is."""
    import os

    folder = Path(os.path.expanduser(source))  # leaves the name of an unknown user as it is
    return str(folder.resolve()) if folder.exists() else source


def _run(settings: "Settings", parameters: Mapping[str, Any]) -> dict[str, str]:
    """Run the flow `cycle` on own code, and return the state in which it ended."""
    import time

    import httpx

    from infra.stack import flow_runs, prefect_api

    with prefect_api.connect(settings) as prefect:
        try:
            return flow_runs.run_alone(prefect, "cycle", dict(parameters), time.monotonic)[1]
        except httpx.HTTPError as error:
            raise prefect_api.explained(settings, error) from error
