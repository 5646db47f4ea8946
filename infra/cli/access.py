"""Commands about who may use the servers, and about the settings."""

from pathlib import Path
from typing import Annotated

import typer

from infra.cli import errors
from infra.cli.app import ACCESS, command

ROLES = ("complete", "feedback", "users", "versions", "metrics", "admin")
"""As infra/settings/serving.py has them, which is slow to import."""


@command(ACCESS)
def token(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="person or program; also the user's id in records")],
    project: Annotated[list[str] | None, typer.Option(help="project of the tokens (default: all); may be repeated")] = None,
    role: Annotated[list[str] | None, typer.Option(help=f"{', '.join(ROLES)} (default: the first two); may be repeated")] = None,
    table: Annotated[
        Path | None, typer.Option(metavar="FILE", help="add the tokens' SHA-256 to this file (serving.token_file)")
    ] = None,
) -> None:
    """Make a token for each person or program, and print it once."""
    from serving.access import new_tokens

    with errors.expected(ValueError, OSError, code=errors.WRONG_USE):
        for line in new_tokens.make(names, project or (), role or (), table):
            print(line)


@command(ACCESS)
def hash(name: Annotated[str, typer.Argument(metavar="NAME", help="a user's id, as clients send it in X-User-ID")]) -> None:
    """Print the keyed hash under which a user is stored."""
    print(hash_of(name))


def hash_of(name: str) -> str:
    """Return the keyed hash of a user's id. Raises Failed without the key, and for a text that cannot be a name."""
    from infra import settings
    from infra.identity import NAME_RULE, user_hash, user_name

    if (secret := settings.load().serving.user_secret) is None:
        raise errors.Failed(
            "serving.user_secret is not set; set TABLOOP_SERVING__USER_SECRET to the value that the serving app uses",
            errors.WRONG_USE,
        )
    with errors.expected(ValueError, code=errors.WRONG_USE):
        if not user_name(name):
            raise ValueError(f"NAME {name!r}: expected {NAME_RULE}")
        return user_hash(secret.get_secret_value().encode(), name)
