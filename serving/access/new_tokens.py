"""New tokens: `tabloop token NAME...`. A token is printed once and stored nowhere; the settings hold its SHA-256."""

import json
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import get_args

from infra.identity import NAME_RULE, user_name
from infra.settings.schema import Role
from infra.stack import files
from serving.access.callers import PROJECT, PROJECT_RULE
from serving.access.credentials import digest, read_table


def make(names: Sequence[str], projects: Sequence[str], roles: Sequence[str], table: Path | None) -> Iterator[str]:
    """Yield lines with a new token for each name, and its settings or, with a table, add these to that file.

    Names are also the users' ids in records. No projects: all; no roles: complete and feedback.

    Raises:
        ValueError: a name, a project's name or a role is not one, the table is wrong, or it has one of the names.
    """
    if not all(map(user_name, names)):
        raise ValueError(f"NAME '': expected {NAME_RULE}")
    if wrong := [project for project in projects if not PROJECT.fullmatch(project)]:
        raise ValueError(f"--project {wrong[0]!r}: expected {PROJECT_RULE}")
    if wrong := [role for role in roles if role not in get_args(Role)]:
        raise ValueError(f"--role {wrong[0]!r}: expected one of {', '.join(get_args(Role))}")
    tokens = {name: secrets.token_urlsafe(24) for name in names}
    if table is None:
        for name, token in tokens.items():
            yield f"# give to {_quoted(name)}, stored nowhere: {token}"
            yield from _entry(f"serving.tokens.{_quoted(name)}", token, projects, roles)
        return
    entries = (_entry(_quoted(name), token, projects, roles) for name, token in tokens.items())
    with files.locked(table):
        taken = tokens.keys() & read_table(table).keys() if table.exists() else set()
        if taken:
            raise ValueError(f"{table} has {', '.join(sorted(taken))}; delete the entry first to replace the token")
        _append(table, [line for entry in entries for line in entry])
    yield from (f"{name}\t{token}" for name, token in tokens.items())


def _entry(table: str, token: str, projects: Sequence[str], roles: Sequence[str]) -> list[str]:
    """Return the lines of TOML that describe a token."""
    lines = [f"[{table}]", f'sha256 = "{digest(token.encode()).hex()}"']
    lines += [f"projects = {json.dumps(projects)}"] if projects else []
    lines += [f"roles = {json.dumps(roles)}"] if roles else []
    return lines


def _append(file: Path, lines: Sequence[str]) -> None:
    """Add lines to a file that only its owner reads; a reader sees all of them or none."""
    before = file.read_text("utf-8-sig") if file.exists() else ""
    files.write(file, before + "\n".join([*([""] if before else []), *lines, ""]))


def _quoted(name: str) -> str:
    return json.dumps(name, ensure_ascii=False)
