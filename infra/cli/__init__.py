"""The console command `tabloop`. Its commands are functions that import the rooms inside, so that help is quick."""

import sys
from collections.abc import Sequence

from infra.cli import (  # noqa: F401, each adds its commands
    access,
    errors,
    invite,
    learn,
    look,
    loop,
    measure,
    plan,
    project,
    settings,
    stack,
)
from infra.cli.app import app

__all__ = ["app", "main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code (infra/cli/errors.py); by default the process's own arguments."""
    from io import TextIOWrapper

    _bypass_proxies()
    if isinstance(sys.stdout, TextIOWrapper):  # a locale without some letter costs that letter, not the command's answer
        sys.stdout.reconfigure(errors="backslashreplace")
    lost: OSError | None
    try:
        code = _run(arguments)
    except OSError as error:
        lost = errors.lost_output() or error
        if lost is error and errors.code_of(error) is None:
            raise
    else:
        lost = errors.lost_output()
    if not lost:
        return code
    errors.discard_output()
    if isinstance(lost, BrokenPipeError):
        return errors.READER_GONE
    print(f"tabloop: the output cannot be written: {lost.strerror}; {errors.OTHER_OUTPUT}", file=sys.stderr)
    return errors.WRONG_USE


def _bypass_proxies() -> None:
    """Reach the servers of this machine without the environment's proxy, which cannot reach them; children inherit this."""
    import os

    kinds = {f"{scheme}_proxy" for scheme in ("http", "https", "all")}
    given = os.environ.get("no_proxy") or os.environ.get("NO_PROXY", "")
    if given.strip() != "*" and kinds & {name.lower() for name, value in os.environ.items() if value}:
        names = [name.strip() for name in given.split(",") if name.strip()]
        own = ",".join(dict.fromkeys([*names, "127.0.0.1", "localhost", "::1"]))
        os.environ |= {"no_proxy": own, "NO_PROXY": own}  # programs read the one or the other


def _run(arguments: Sequence[str] | None) -> int:
    try:
        app(args=arguments, prog_name="tabloop")
    except SystemExit as ended:
        if isinstance(ended.code, str):
            print(f"tabloop: {ended.code}", file=sys.stderr)
            return errors.NO
        return ended.code or errors.DONE
    return errors.DONE
