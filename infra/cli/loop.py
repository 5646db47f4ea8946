"""Commands that run the loop's flows by Prefect's deployments, and wait for their end."""

import getpass
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from infra.cli import errors
from infra.cli.app import LOOP, Json, Project, app, command, make, not_empty, print_json

if TYPE_CHECKING:
    from infra.settings import Settings
    from infra.stack.flow_runs import Ended
    from infra.storage.scope import Scope
    from infra.storage.store import ObjectStore

Version = Annotated[
    str,
    typer.Argument(
        metavar="[VERSION]", help="number of a version, as `tabloop history` lists them", show_default=False, callback=not_empty
    ),
]
Challenger = Annotated[
    str,
    typer.Argument(
        metavar="[VERSION]", help="the challenger, lest another one is rejected", show_default=False, callback=not_empty
    ),
]
Why = Annotated[str, typer.Option(help="why, for the log of moves")]
Reason = Annotated[str, typer.Option(help="why; a version that failed or was rolled back is promoted only with one")]
By = Annotated[str, typer.Option(help="who asks (default: your login name)", show_default=False)]
Plan = Annotated[bool, typer.Option("--dry-run", help="show what would be done, and change nothing")]
Approve = Annotated[bool, typer.Option("--approve", help="wait until a person has approved it in Prefect")]
Remove = Annotated[bool, typer.Option("--dry-run/--no-dry-run", help="only report, or change the data")]


def number_of(version: str) -> str:
    """Return the number of a version that may be written as pages show it, such as v3."""
    return version[1:] if version[:1] == "v" and version[1:].isdecimal() else version


DECLINED, LEFT = "Declined", "Pending"
"""Names of completed states that are no success: a person declined it; work is left for another run."""


def run(flow: str, as_json: bool, **parameters: Any) -> int:
    """Run a deployment, wait for its end, print it and return the exit code."""
    if "version" in parameters:
        parameters["version"] = number_of(parameters["version"])
    from infra import settings
    from infra.stack import flow_runs

    return report(flow_runs.run(settings.load(), flow, parameters), as_json)


def report(ended: "Ended", as_json: bool) -> int:
    """Print how a run ended; return the exit code."""
    if as_json:
        print_json({"state": ended.state, "message": ended.message, "run": ended.run, "page": ended.link})
    else:
        print(ended)
    if ended.kind not in ("COMPLETED", "PAUSED") or ended.state == DECLINED:
        return errors.NO
    return errors.NOT_READY if ended.state == LEFT else errors.DONE


@command(LOOP)
def cycle(
    watch: Annotated[bool, typer.Option("--watch", help="print each step as it begins, and the trainer's steps")] = False,
    project: Project = "",
    as_json: Json = False,
) -> int:
    """Train a challenger from the labels that came in, or complete a cycle; 1 if none begins."""
    from dataclasses import replace

    from infra import settings
    from infra.stack import flow_runs
    from infra.storage import loop_runs

    loaded = settings.load()
    store = store_of(loaded, project)
    ended = flow_runs.run(loaded, "cycle", of_project(project), _progress(store) if watch else None)
    noted = loop_runs.read(store).get("cycle")
    if noted and noted.run == ended.run and noted.ended:
        ended = replace(ended, state=noted.state, message=noted.message)
    code = report(ended, as_json)
    return code or (errors.DONE if ended.state in TRAINED else errors.NO)


TRAINED = ("registered", "refused")
"""Ends of a cycle that trained a candidate (infra/records/cycles.py)."""
PROGRESS_SECONDS = 2.0


def _progress(store: "ObjectStore") -> Callable[[str], None]:
    """Return a function that prints the stage of a cycle's run and its work, where they changed, by the run's id."""
    import sys
    import time

    from infra.storage import cycle_progress

    began, last, shown = time.monotonic(), -PROGRESS_SECONDS, ""

    def watch(identifier: str) -> None:
        nonlocal last, shown
        if (now := time.monotonic() - began) - last < PROGRESS_SECONDS:
            return
        last, found = now, cycle_progress.read(store)
        if found and found.run == identifier and (work := f"{found.stage} {found.done}") != shown:
            print(f"{now:6.0f} s  {cycle_progress.described(found, time.time())}", file=sys.stderr, flush=True)
            shown = work

    return watch


loop_ = make("Pause or resume training: the schedule of the flow `cycle`.", no_args_is_help=True)
app.add_typer(loop_, name="loop", rich_help_panel=LOOP)


def schedule(*, paused: bool, as_json: bool) -> int:
    """Pause or resume the schedule of the flow `cycle`, and print its state."""
    from infra import settings
    from infra.stack import orchestration

    if not orchestration.set_schedules(settings.load(), paused=paused, only=("cycle",)):
        raise errors.Failed("Prefect has no deployment cycle/cycle with a schedule: `tabloop up` or `tabloop bootstrap` makes it")
    if as_json:
        print_json({"paused": paused})
    else:
        print("training is paused; A/B tests and probations go on: `tabloop loop resume`" if paused else "training goes on")
    return errors.DONE


@loop_.command("pause")
def pause_(as_json: Json = False) -> int:
    """Let no cycle begin until `tabloop loop resume`; a running one is completed."""
    return schedule(paused=True, as_json=as_json)


@loop_.command("resume")
def resume_(as_json: Json = False) -> int:
    """Let cycles begin by their schedule again."""
    return schedule(paused=False, as_json=as_json)


@command(LOOP)
def promote(
    version: Version = "",
    reason: Reason = "",
    by: By = "",
    dry_run: Plan = False,
    approve: Approve = False,
    project: Project = "",
    as_json: Json = False,
) -> int:
    """Make a version the champion; without VERSION, the challenger."""
    return _move("promote", as_json, project, version=version, reason=reason, by=_by(by), dry_run=dry_run, approve=approve)


@command(LOOP)
def rollback(
    version: Version = "",
    reason: Reason = "",
    by: By = "",
    dry_run: Plan = False,
    approve: Approve = False,
    project: Project = "",
    as_json: Json = False,
) -> int:
    """Put the champion before this one back, or VERSION."""
    return _move("rollback", as_json, project, version=version, reason=reason, by=_by(by), dry_run=dry_run, approve=approve)


@command(LOOP)
def reject(
    version: Challenger = "",
    reason: Why = "",
    by: By = "",
    dry_run: Plan = False,
    approve: Approve = False,
    project: Project = "",
    as_json: Json = False,
) -> int:
    """End the running A/B test with a rejection of its challenger."""
    return _move("reject", as_json, project, version=version, reason=reason, by=_by(by), dry_run=dry_run, approve=approve)


@command(LOOP)
def forget(
    name: Annotated[
        str, typer.Argument(metavar="[NAME]", help="user, by the name of their token or X-User-ID", show_default=False)
    ] = "",
    user: Annotated[str, typer.Option(help="keyed hash of the user, in place of NAME", show_default=False)] = "",
    project: Annotated[str, typer.Option(help="project, in place of a user", show_default=False)] = "",
    reason: Why = "",
    by: By = "",
    dry_run: Remove = True,
    as_json: Json = False,
) -> int:
    """Remove a user's or a project's data, and list the versions trained on them; 3 if a run must follow."""
    if sum(map(bool, (name, user, project))) != 1:
        raise errors.Failed("expected one of NAME, --user HASH and --project PROJECT", errors.WRONG_USE)
    if name:
        from infra.cli.access import hash_of

        user = hash_of(name)
    return run("forget", as_json, user=user, project=project, reason=reason, by=_by(by), dry_run=dry_run)


@command(LOOP)
def retention(dry_run: Remove = True, as_json: Json = False) -> int:
    """Remove data that are older than retention.*_days."""
    return run("retention", as_json, dry_run=dry_run)


@command(LOOP)
def compaction(dry_run: Remove = True, as_json: Json = False) -> int:
    """Merge the small event objects of each hour."""
    return run("compaction", as_json, dry_run=dry_run)


def _move(flow: str, as_json: bool, project: str, **parameters: Any) -> int:
    """Run a flow that moves versions of a project's loop, or of the common one."""
    return run(flow, as_json, **parameters, **of_project(project))


def of_project(project: str) -> dict[str, str]:
    """Return the parameter that names a project's loop; none for the common one. Fails where it has no champion of its own."""
    from infra import settings

    _scope(settings.load(), project)
    return {"project": project} if project else {}


def store_of(settings: "Settings", project: str = "") -> "ObjectStore":
    """Return the store as a project's loop sees it, or the common one. Fails where it has no champion of its own."""
    from infra.storage.store import ObjectStore

    return _scope(settings, project).view(ObjectStore.connect(settings.store))


def _scope(settings: "Settings", project: str) -> "Scope":
    from infra.storage.scope import NoOwnChampion, scope_of

    with errors.expected(NoOwnChampion, code=errors.WRONG_USE):
        return scope_of(settings, project)


def _by(name: str) -> str:
    import os

    if name:
        return name
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # no such user on this machine, as in a container with a number of its own
        return f"user {os.getuid()}"
