"""The command that learns from a team's own repositories."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from infra.cli import errors
from infra.cli.app import LOOP, command

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
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> int:
    """Train a candidate on a team's own code, and test it as any other; 1 if the offline gate does not let it pass."""
    import json

    from infra import settings as settings_
    from infra.storage.store import ObjectStore
    from tasks.own_code.report import newest

    settings = settings_.load()
    state = _run(settings, [_absolute(source) for source in sources], [each.lstrip(".") for each in language or ()], places)
    trained = state["name"] in (LEARNED, "NotLearned")
    found = newest(ObjectStore.connect(settings.store)) if trained else None
    if as_json:
        values = {"state": state["name"], "message": state.get("message") or "", "cycle": found.values() if found else None}
        print(json.dumps(values, indent=2, ensure_ascii=False))
    else:
        ended = f"{state['name']}: {state.get('message') or 'see its run in Prefect'}"
        print("\n".join([*(found.lines() if found else ()), ended]))
        if state["name"] == LEARNED and found and found.outcome:
            print(
                f"next: the A/B test decides; before anybody types, `tabloop promote {found.outcome.version}` makes it champion"
            )
    return errors.DONE if state["name"] == LEARNED else errors.NO


def _absolute(source: str) -> str:
    """Return a folder's absolute path, since the flow runs in another directory; an address as it is."""
    return str(Path(source).expanduser().resolve()) if Path(source).expanduser().exists() else source


def _run(settings: "Settings", sources: Sequence[str], languages: Sequence[str], places: int) -> dict[str, str]:
    """Run the flow `cycle` on own code, and return the state in which it ended."""
    import time

    import httpx

    from infra.stack import flow_runs, prefect_api

    own_code = {"sources": list(sources), "languages": list(languages), "places": places}
    with prefect_api.connect(settings) as prefect:
        try:
            return flow_runs.run_alone(prefect, "cycle", {"own_code": own_code}, time.monotonic)
        except httpx.HTTPError as error:
            raise prefect_api.explained(settings, error) from error
