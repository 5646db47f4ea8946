"""Commands that run the loop's flows by Prefect's deployments, and wait for their end."""

import getpass
from typing import Annotated, Any

import typer

from infra.cli import errors
from infra.cli.app import LOOP, app, command, make

Version = Annotated[str, typer.Argument(metavar="[VERSION]", show_default=False)]
Reason = Annotated[str, typer.Option(help="why; a version that failed or was rolled back is promoted only with one")]
By = Annotated[str, typer.Option(help="who asks (default: your login name)", show_default=False)]
Plan = Annotated[bool, typer.Option("--dry-run", help="show what would be done, and change nothing")]
Approve = Annotated[bool, typer.Option("--approve", help="wait until a person has approved it in Prefect")]
Remove = Annotated[bool, typer.Option("--dry-run/--no-dry-run", help="only report, or change the data")]


def number_of(version: str) -> str:
    """Return the number of a version that may be written as pages show it, such as v3."""
    return version[1:] if version[:1] == "v" and version[1:].isdecimal() else version


def run(flow: str, **parameters: Any) -> int:
    """Run a deployment and return the exit code."""
    if "version" in parameters:
        parameters["version"] = number_of(parameters["version"])
    from infra import settings
    from infra.stack import flow_runs

    return flow_runs.run(settings.load(), flow, parameters)


@command(LOOP)
def cycle() -> int:
    """Train a challenger from the labels that came in, or complete a cycle."""
    return run("cycle")


loop_ = make("Pause or resume training: the schedule of the flow `cycle`.", no_args_is_help=True)
app.add_typer(loop_, name="loop", rich_help_panel=LOOP)


def schedule(*, paused: bool) -> int:
    """Pause or resume the schedule of the flow `cycle`, and print its state."""
    from infra import settings
    from infra.stack import orchestration

    orchestration.set_schedules(settings.load(), paused=paused, only=("cycle",))
    print("training is paused; A/B tests and probations go on: `tabloop loop resume`" if paused else "training goes on")
    return errors.DONE


@loop_.command("pause")
def pause_() -> int:
    """Let no cycle begin until `tabloop loop resume`; a running one is completed."""
    return schedule(paused=True)


@loop_.command("resume")
def resume_() -> int:
    """Let cycles begin by their schedule again."""
    return schedule(paused=False)


@command(LOOP)
def promote(version: Version = "", reason: Reason = "", by: By = "", dry_run: Plan = False, approve: Approve = False) -> int:
    """Make a version the champion; without VERSION, the challenger."""
    return run("promote", version=version, reason=reason, by=by or getpass.getuser(), dry_run=dry_run, approve=approve)


@command(LOOP)
def rollback(version: Version = "", reason: Reason = "", by: By = "", dry_run: Plan = False, approve: Approve = False) -> int:
    """Put the champion before this one back, or VERSION."""
    return run("rollback", version=version, reason=reason, by=by or getpass.getuser(), dry_run=dry_run, approve=approve)


@command(LOOP)
def reject(version: Version = "", reason: Reason = "", by: By = "", dry_run: Plan = False, approve: Approve = False) -> int:
    """End the running A/B test with a rejection of its challenger."""
    return run("reject", version=version, reason=reason, by=by or getpass.getuser(), dry_run=dry_run, approve=approve)


@command(LOOP)
def forget(
    user: Annotated[str, typer.Option(help="keyed hash of a user, as `tabloop hash NAME` prints it")] = "",
    project: Annotated[str, typer.Option(help="project, in place of a user")] = "",
    reason: Annotated[str, typer.Option(help="why")] = "",
    by: By = "",
    dry_run: Remove = True,
) -> int:
    """Remove a user's or a project's data, and list the versions trained on them."""
    return run("forget", user=user, project=project, reason=reason, by=by or getpass.getuser(), dry_run=dry_run)


@command(LOOP)
def retention(dry_run: Remove = True) -> int:
    """Remove data that are older than retention.*_days."""
    return run("retention", dry_run=dry_run)


@command(LOOP)
def compaction(dry_run: Remove = True) -> int:
    """Merge the small event objects of each hour."""
    return run("compaction", dry_run=dry_run)
