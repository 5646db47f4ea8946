"""Commands of the stack on this machine, and of servers elsewhere that the settings name."""

from pathlib import Path
from typing import Annotated

import typer

from infra.cli import errors
from infra.cli.app import (
    PROJECT,
    STACK,
    DeveloperKind,
    Json,
    SettingsFile,
    command,
    not_empty,
    print_json,
    use_demo_settings,
    use_settings,
)

MODEL = "TABLOOP_MODEL__BASE"
"""Environment variable of the setting model.base; `up` remembers it as it remembers all of them."""


@command(STACK)
def up(
    parts: Annotated[list[str] | None, typer.Argument(metavar="[PART]...", help="parts to start; none: all")] = None,
    settings: SettingsFile = None,
    model: Annotated[
        Path | None, typer.Option(metavar="DIR", help="directory of your base model, in place of model.base of the settings")
    ] = None,
    paused: Annotated[bool, typer.Option("--paused", help="leave the schedules of the deployments paused")] = False,
) -> None:
    """Start every stopped part and wait until all are ready. Settings and model are remembered for later commands."""
    import os

    from infra.stack import addresses, control

    use_settings(settings)
    if model:
        os.environ[MODEL] = os.path.abspath(os.path.expanduser(model))
    print(addresses.described(control.up(parts or (), paused=paused)))


@command(STACK)
def down() -> None:
    """Stop every part, also processes left by earlier runs."""
    from infra.stack import control

    control.down()


@command(STACK)
def restart(
    part: Annotated[str, typer.Argument(metavar="[PART]", help="part to stop and start; none: all", callback=not_empty)] = "",
    settings: SettingsFile = None,
    paused: Annotated[bool, typer.Option("--paused", help="leave the schedules of the deployments paused")] = False,
) -> None:
    """Stop and start one part, or the whole stack."""
    from infra.stack import control

    use_settings(settings)
    if part and paused:
        raise errors.Failed(f"--paused is of the whole stack, expected no part beside it, got {part}", errors.WRONG_USE)
    if part:
        return control.restart(part)
    down()
    up(paused=paused)


@command(STACK)
def status(as_json: Json = False) -> int:
    """Show every part's state and log, what of each loop hangs, and login links; 3 if a part is not ready."""
    import time

    from infra import settings
    from infra.stack import addresses, control, health, started

    loaded, rows = settings.load(), control.status()
    not_ready = [row.part for row in rows if not row.ready]
    down = len(not_ready) == len(rows)
    signs = {} if down else health.signs(loaded, time.time())
    changes = started.changes(settings.path(loaded.stack.state), loaded)
    if as_json:
        parts = [
            {
                "part": r.part,
                "state": r.state,
                "ready": r.ready,
                "pid": r.pid,
                "seconds": r.seconds,
                "address": r.address,
                "log": str(r.log),
            }
            for r in rows
        ]
        loop = [
            {"project": project, "name": sign.name, "text": sign.text, "ok": sign.ok}
            for project, found in signs.items()
            for sign in found
        ]
        print_json({"parts": parts, "loop": loop, "changed settings": [change.key for change in changes]})
        return errors.NOT_READY if not_ready else errors.DONE
    print(f"{'part':<10} {'state':<9} {'ready':<6} {'pid':>7} {'up':>8}  address / log")
    for row in rows:
        ready = "yes" if row.ready else "no"
        print(f"{row.part:<10} {row.state:<9} {ready:<6} {row.pid or '-':>7} {row.seconds:>7.0f}s  {row.address}  {row.log}")
    if down:
        print("\nthe stack is down; `tabloop up` starts it")
        return errors.NOT_READY
    for project, found in signs.items():
        print(f"\nthe loop of project {project}:" if project else "")
        for sign in found:
            print(f"{sign.name:<10} {'' if sign.ok else '! '}{sign.text}")
    if changes:
        print(f"settings   ! {len(changes)} differ from those of the running parts: `tabloop settings diff`")
    if not_ready:
        print(f"\nnot ready: {', '.join(not_ready)}; read the log (`tabloop logs {not_ready[0]}`), then `tabloop up`")
        return errors.NOT_READY
    print(addresses.described(loaded))
    return errors.DONE


@command(STACK)
def logs(
    part: Annotated[str, typer.Argument(metavar="PART", help="part of the stack; `tabloop status` lists them")],
    lines: Annotated[int, typer.Option("-n", "--lines", min=1, help="lines to show, the last ones")] = 50,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="go on with new lines until interrupted")] = False,
) -> int:
    """Show the end of a part's log."""
    from infra import settings
    from infra.stack import logs as logs_
    from infra.stack.supervision import Supervisor

    supervisor = Supervisor(settings.path(settings.load().stack.state))
    if not (log := supervisor.log(part)).is_file():
        known = ", ".join(sorted(file.stem for file in log.parent.glob("*.log"))) or "none: the stack was never started"
        raise errors.Failed(f"{part}: no log {log}; there are {known}", errors.WRONG_USE)
    for line in logs_.lines(log, lines, follow=follow):
        print(line, flush=True)
    return errors.DONE


@command(STACK)
def version() -> None:
    """Show the version and the folder of the code that runs."""
    from infra.cli.app import show_version

    show_version(True)


@command(STACK, "try")
def try_() -> int:
    """Send one completion and one event to the running stack, step by step; 1 if a step fails."""
    from infra import settings
    from infra.stack import try_it

    return try_it.run(settings.load())


@command(STACK)
def demo(
    seed: Annotated[int, typer.Option(min=0, help="seed of the simulated developers")] = 0,
    users: Annotated[int, typer.Option(min=1, help="number of simulated developers")] = 1000,
    code: Annotated[
        list[Path] | None,
        typer.Option(metavar="DIR", help="type the Python files below (default: the held-out packages); may be repeated"),
    ] = None,
    cycles: Annotated[int, typer.Option(min=0, help="cycles to run, including those of earlier demos")] = 1,
    labels: Annotated[int, typer.Option(min=1, help="minimum requests that a cycle waits for")] = 5000,
    minutes: Annotated[float, typer.Option(min=0, help="minutes after which no cycle begins")] = 12.0,
    visits: Annotated[int, typer.Option(min=1, help="positions of the closing comparison in later code")] = 7200,
    rate: Annotated[float, typer.Option(min=0, help="maximum requests a second; 0: limited by --concurrency only")] = 0.0,
    concurrency: Annotated[
        int | None, typer.Option(min=1, help="developers who type at the same time (default 96, with --adapters 16)")
    ] = None,
    kind: DeveloperKind = "people",
    adapters: Annotated[
        bool, typer.Option("--adapters", help="versions are adapters of the base, which one engine serves; slower on a CPU")
    ] = False,
) -> int:
    """Run the whole loop with simulated developers and show the model improve."""
    import os

    if adapters and (other := os.environ.get("TABLOOP_SETTINGS")):
        message = f"--adapters reads demo-adapters.toml, and TABLOOP_SETTINGS names {other}: leave one out"
        raise errors.Failed(message, errors.WRONG_USE)
    use_demo_settings("demo-adapters.toml" if adapters else "demo.toml")
    from evals.demo.run import Options, run

    # An engine of adapters takes four times as long: with 96 at a time, a suggestion would come after its developer types on.
    typing = concurrency or (16 if adapters else 96)
    return run(Options(seed, users, tuple(code or ()), cycles, labels, minutes, visits, rate, typing, kind))


@command(STACK)
def bootstrap(
    base: Annotated[
        str,
        typer.Option(
            metavar="FROM", help="directory or s3://BUCKET/PREFIX of the base model (default: model.base)", show_default=False
        ),
    ] = "",
) -> None:
    """Make what servers lack: bucket, base model, work pool and deployments."""
    from infra import settings
    from infra.stack import bootstrap as steps

    loaded = settings.load()
    try:
        for line in steps.run(loaded, steps.steps(base)):
            print(line, flush=True)
    except steps.USERS_ERRORS as error:
        code = errors.code_of(error) or errors.NO
        raise errors.Failed(f"{errors.message_of(error)}\n  next: correct it, then `{steps.COMMAND}` again", code) from error


@command(STACK)
def automations() -> None:
    """Make Prefect's automations, which post to orchestration.webhook."""
    import os

    from infra import settings
    from infra.stack.parts import clients

    loaded = settings.load()
    os.environ |= clients(loaded)  # before Prefect is imported, which reads them
    from infra.stack import automations

    print("automations: " + (", ".join(automations.apply(loaded)) or "none, since orchestration.webhook is not set"))


@command(PROJECT)
def env() -> None:
    """Print the variables by which other programs find the servers, as a shell's `export` lines."""
    import shlex

    from infra import settings
    from infra.stack.parts import clients

    for name, value in clients(settings.load()).items():
        print(f"export {name}={shlex.quote(value)}")


@command(PROJECT, "exec", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
def exec_(
    words: Annotated[list[str], typer.Argument(metavar="COMMAND...", help="program and its arguments")],
) -> None:
    """Run a program (prefect, mlflow, curl...) with addresses and credentials of the servers."""
    import os

    from infra import settings
    from infra.stack.parts import BIN, clients

    path = f"{BIN}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    variables = {**os.environ, **clients(settings.load()), "PATH": path}
    try:
        os.execvpe(words[0], words, variables)
    except (OSError, ValueError) as error:  # ValueError: an empty name
        reason = getattr(error, "strerror", "no name")
        raise errors.Failed(f"{words[0]}: {reason}; expected a program of {BIN} or of the PATH", errors.WRONG_USE) from None
