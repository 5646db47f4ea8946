"""Commands that show how the loop decided, from the object store alone."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from infra.cli import errors
from infra.cli.app import LOOK, Json, Project, command, print_json
from infra.cli.loop import number_of, store_of

if TYPE_CHECKING:
    from infra.storage.store import ObjectStore

Experiment = Annotated[str, typer.Argument(metavar="ID", help="id of an A/B test; `tabloop history` lists them")]


@command(LOOK)
def history(
    experiment: Annotated[str, typer.Argument(metavar="[ID]", help="the only A/B test to list", show_default=False)] = "",
    count: Annotated[int, typer.Option(min=1, help="most lines, the last ones")] = 100,
    moves: Annotated[bool, typer.Option("--moves", help="leave out the looks")] = False,
    project: Project = "",
    as_json: Json = False,
) -> None:
    """List the moves of versions and the looks at A/B tests, oldest first."""
    from tasks.experiments.reports.history import entries, history

    store = _store(project)
    if as_json:
        found = entries(store, count, experiment, looks=not moves)
        return print_json([{"kind": type(each).__name__, **each.model_dump(mode="json")} for each in found])
    lines = list(history(store, count, experiment, looks=not moves))
    print("\n".join(lines) or f"no moves in {store.uri(f'{store.scope.prefix}moves/')} yet; the controller records the first one")


@command(LOOK)
def explain(
    subject: Annotated[str, typer.Argument(metavar="VERSION_OR_REQUEST", help='version, or id of a completion ("cmpl-...")')],
    as_json: Json = False,
) -> int:
    """Explain where a version stands, or why a request was trained on or not."""
    if not subject.strip():
        raise errors.Failed(
            f"VERSION_OR_REQUEST {subject!r}: expected a version, as `tabloop history` lists them, or the id of a completion, as "
            "`tabloop requests --user NAME` does",
            errors.WRONG_USE,
        )
    version = number_of(subject)
    return _explain_version(version, as_json) if version.isdecimal() else _explain_request(subject, as_json)


def _explain_version(version: str, as_json: bool) -> int:
    """Print the sections of a version's report."""
    from tasks.experiments.reports.explain import explain

    sections = list(explain(_store(), version))
    if as_json:
        print_json(dict(sections))
        return errors.DONE
    for title, section in sections:
        print(f"{title}\n" + "".join(f"  {each}\n" for each in section))
    return errors.DONE


def _explain_request(completion: str, as_json: bool) -> int:
    """Print a line for each cycle whose window held the request, the newest first."""
    from dataclasses import asdict

    from tasks.labels.explain import explain

    store = _store()
    fates = list(explain(store, completion))
    if as_json:
        print_json([asdict(fate) for fate in fates])
        return errors.DONE if fates else errors.NO
    for fate in fates:
        print(fate)
    if fates:
        return errors.DONE
    print(
        f"{completion}: in no cycle of {store.uri('cycles/')}. It was not recorded, no cycle has collected it yet, or its "
        "user is outside the sample that large windows read (collect.most_requests): `tabloop requests --user NAME` "
        "shows what is known of it, `tabloop status` the last cycle"
    )
    return errors.NO


@command(LOOK)
def requests(
    user: Annotated[str, typer.Option(metavar="NAME", help="user, by the name of their token or X-User-ID")],
    last: Annotated[int, typer.Option(min=1, help="most requests, the newest")] = 20,
    hours: Annotated[float, typer.Option(min=0.0, max=8784, help="hours to look back")] = 24.0,
    as_json: Json = False,
) -> int:
    """Show what became of a user's newest requests, before a cycle too; 1 if there is none."""
    import time

    from infra import settings
    from infra.cli.access import hash_of
    from tasks.labels.recent import recent

    found = recent(_store(), settings.load().collect, hash_of(user), time.time(), hours, last)
    if as_json:
        print_json([each.model_dump(mode="json") for each in found])
    elif found:
        print("\n".join(map(str, found)))
    else:
        print(
            f"no request of {user} in the last {hours:g} h is in the store; the name is that of `tabloop token NAME`, and events "
            "arrive within some seconds: `tabloop status`"
        )
    return errors.DONE if found else errors.NO


@command(LOOK)
def recompute(experiment: Experiment) -> int:
    """Compute a decision again from its record, and compare bit by bit."""
    from tasks.experiments.reports import recompute

    with errors.expected(ValueError):
        decision = recompute.read(_store(), experiment)
        different = list(recompute.differences(decision))
    print(f"{decision.experiment.id}: {decision.verdict.verdict}: {decision.verdict.reason}")
    print("\n".join(different or ["computed again from the record: the same, bit by bit"]))
    return errors.NO if different else errors.DONE


@command(LOOK)
def export(
    experiment: Experiment,
    folder: Annotated[Path, typer.Option(help="where to write")] = Path("var/exports"),
) -> None:
    """Write exposures and facts of an A/B test as Parquet."""
    import time

    from infra.pages import figures
    from infra.storage import cycles
    from infra.storage.scope import Scope
    from tasks.experiments.reports.export import export

    store = Scope(cycles.project_of_test(experiment)).view(_store())
    written = export(store, experiment, folder, time.time())
    for path, rows in written.rows.items():
        print(f"{path}: {rows} rows")
    for arm, rate in written.acceptance.items():
        print(f"acceptance per request, {arm}: {figures.share(rate)} of {rate.n} requests")
    if written.note:
        print(written.note)


def _store(project: str = "") -> "ObjectStore":
    from infra import settings

    return store_of(settings.load(), project)
