"""The command that gives a developer a token and the configuration of an editor."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from infra.cli import errors
from infra.cli.app import ACCESS, Json, command, print_json

if TYPE_CHECKING:
    from infra.pages.editors import Configuration, Reached
    from infra.settings import Settings

EDITORS = ("continue", "zed", "tabby", "llama.vim", "llama.vscode", "openai")
"""As infra/pages/editors.py has them."""


@command(ACCESS)
def invite(
    name: Annotated[str, typer.Argument(metavar="NAME", help="the developer; also the user's id in records")],
    editor: Annotated[list[str] | None, typer.Option(help=f"{', '.join(EDITORS)}; may be repeated")] = None,
    host: Annotated[
        str, typer.Option(metavar="URL", help="address of the completions port for the editor (default: this machine's)")
    ] = "",
    project: Annotated[str, typer.Option(help="project of the token and of its requests (default: all)")] = "",
    token: Annotated[str, typer.Option(help="a token that NAME has already, in place of a new one")] = "",
    table: Annotated[
        Path | None, typer.Option(metavar="FILE", help="file that gets the token's SHA-256 (default: serving.token_file)")
    ] = None,
    as_json: Json = False,
) -> int:
    """Make a developer's token and print the finished configuration of an editor; 3 if the app does not accept the token yet."""
    from dataclasses import replace

    from infra import settings as settings_
    from infra.pages import editors
    from infra.settings.section import http_address
    from infra.stack import token_check

    if not all("!" <= character <= "~" for character in token):
        raise errors.Failed("--token: expected a token as `tabloop invite` prints it, without blanks, in ASCII", errors.WRONG_USE)
    settings = settings_.load()
    serving = settings.serving
    with errors.expected(ValueError, code=errors.WRONG_USE):
        where = editors.reached(
            host or serving.completions_url, token, settings.model.name, project, "" if host else serving.feedback_url
        )
        http_address(where.completions)  # no port beyond the last one
        for each in editor or ():
            editors.configure(each, where)  # a wrong name is refused before a token is made
    where = replace(where, token=token or _new_token(settings, name, project, table))
    found = [editors.configure(each, where) for each in editor or ()]
    state = token_check.ask(where.completions, where.token, token_check.SECONDS)
    said = [*_warnings(settings, where), _result(where, state)]
    if as_json:
        _print_json(name, where, found, state, said)
    else:
        _print(name, where, found, said)
    return errors.DONE if state == "accepted" else errors.NOT_READY


def _new_token(settings: "Settings", name: str, project: str, table: Path | None) -> str:
    """Add a token to the table, and return it."""
    from infra.settings import path
    from serving.access import new_tokens

    of_settings = settings.serving.token_file
    file = table or (of_settings and path(of_settings))
    if file is None:
        raise errors.Failed(
            "serving.token_file is not set: `tabloop up` makes the local stack's table; elsewhere name a file in "
            "serving.token_file, or by --table FILE",
            errors.WRONG_USE,
        )
    with errors.expected(ValueError, OSError, code=errors.WRONG_USE):
        (line,) = new_tokens.make([name], [project] if project else (), (), file)
    return line.rpartition("\t")[2]


def _print(name: str, where: "Reached", found: "Sequence[Configuration]", said: Sequence[str]) -> None:
    """Print token, configurations and the app's answer for people."""
    from infra.pages.editors import check_command

    print(f"token of {name}: {where.token}  (stored nowhere: only its SHA-256 is)")
    for one in found:
        print(f"\n{one.editor}, in {one.file}:\n")
        print("\n".join(f"    {line}".rstrip() for line in one.text.splitlines()), end="\n\n")
        print("\n".join(f"- {note}" for note in one.notes))
    if not found:
        print(f"  its editor: `tabloop invite {name} --token TOKEN --editor EDITOR`, one of {', '.join(EDITORS)}")
    print(f"\ncheck:    {check_command(where)}")
    print(f"own page: {where.completions}/me  (any user name; the password is the token)")
    print("\n".join(said))


def _print_json(name: str, where: "Reached", found: "Sequence[Configuration]", state: str, said: Sequence[str]) -> None:
    """Print the same as JSON."""
    from dataclasses import asdict

    values = {"name": name, "token": where.token, "page": f"{where.completions}/me", "state": state, "said": said}
    print_json(values | {"editors": [asdict(one) for one in found]})


def _result(where: "Reached", state: str) -> str:
    """Return what the app says of the token, with the next command."""
    match state:
        case "accepted":
            return f"the app at {where.completions} accepts the token"
        case "silent":
            return f"no app answers at {where.completions}; next: `tabloop up`, then `tabloop status`"
        case _:
            return (
                f"the app at {where.completions} refuses the token; next: `tabloop restart serving`: it may have started without "
                "this table"
            )


def _warnings(settings: "Settings", where: "Reached") -> list[str]:
    """Return why an address of another machine may not reach the app, or not safely."""
    from urllib.parse import urlsplit

    from infra.settings import LOOPBACK
    from serving.gateway.browsers import accepted_hosts

    serving, parts = settings.serving, urlsplit(where.completions)
    name = parts.hostname or ""
    if name in LOOPBACK:
        return []
    found = []
    if name not in accepted_hosts(serving):
        found.append(f"serving.hosts lacks {name!r}, so requests for it get 403: add it, then `tabloop restart serving`")
    if parts.scheme == "http":
        tunnel = f"ssh -N -L {serving.port}:127.0.0.1:{serving.port} {name}"
        found.append(
            f"http sends token and code in the clear: use https, or `{tunnel}` on the developer's machine without --host"
        )
        if serving.host in LOOPBACK:
            found.append(f"serving.host = {serving.host!r} listens on this machine alone")
    return found
