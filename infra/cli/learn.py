"""The command that learns from a team's own repositories."""

from pathlib import Path
from typing import Annotated

import typer

from infra.cli import errors
from infra.cli.app import LOOP, Json, Project, command, print_json
from infra.cli.loop import of_project, store_of

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
    from infra.stack import flow_runs
    from tasks.own_code.report import newest

    settings = settings_.load()
    store = store_of(settings, project)
    languages = [each.lstrip(".") for each in language or ()]
    own_code = {"sources": [_absolute(source) for source in sources], "languages": languages, "places": places}
    ended = flow_runs.run(settings, "cycle", {"own_code": own_code, **of_project(project)})
    found = newest(store) if ended.state in (LEARNED, "NotLearned") else None
    if as_json:
        print_json({"state": ended.state, "message": ended.message, "cycle": found.values() if found else None})
    else:
        print("\n".join([*(found.lines() if found else ()), f"{ended.state}: {ended.message or 'see its run in Prefect'}"]))
        if ended.state == LEARNED and found and found.outcome:
            promote = " ".join(["tabloop promote", found.outcome.version or "", *(["--project", project] if project else [])])
            print(f"next: the A/B test decides; before anybody types, `{promote}` makes it champion")
    return errors.DONE if ended.state == LEARNED else errors.NO


def _absolute(source: str) -> str:
    """Return a folder's absolute path, since the flow runs in another directory; an address as it is."""
    import os

    folder = Path(os.path.expanduser(source))  # leaves the name of an unknown user as it is
    return str(folder.resolve()) if folder.exists() else source
