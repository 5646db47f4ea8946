"""Make tokens: `python -m serving.access NAME... [--project P] [--role R] [--table FILE]`.

A token is printed once and stored nowhere; the settings hold its SHA-256.
"""

import argparse
import json
import os
import secrets
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from infra.settings.schema import Role
from serving.access.callers import PROJECT, PROJECT_RULE
from serving.access.credentials import digest, read_table

ROLES: tuple[Role, ...] = get_args(Role)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a new token for each name, and its settings or, with --table, add these to a file."""
    options = _parser().parse_args(arguments)
    tokens = {name: secrets.token_urlsafe(24) for name in options.names}
    if options.table is None:
        for name, token in tokens.items():
            print(f"# give to {_quoted(name)}, stored nowhere: {token}")
            print("\n".join(_entry(f"serving.tokens.{_quoted(name)}", token, options.project, options.role)))
        return 0
    try:
        taken = tokens.keys() & read_table(options.table).keys() if options.table.exists() else set()
        if taken:
            raise ValueError(f"{options.table} has {', '.join(sorted(taken))}; delete the entry first to replace the token")
        entries = (_entry(_quoted(name), token, options.project, options.role) for name, token in tokens.items())
        _append(options.table, [line for entry in entries for line in entry])
    except (OSError, ValueError) as error:
        print(f"serving.access: {error}", file=sys.stderr)
        return 1
    for name, token in tokens.items():
        print(f"{name}\t{token}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m serving.access", description="Make a token for each person or program.")
    add = parser.add_argument
    add("names", nargs="+", metavar="NAME", help="person or program that uses the token; also the user's id in records")
    add("--project", action="append", type=_project, default=[], help="project of the tokens (default: all); may be repeated")
    add("--role", action="append", choices=ROLES, default=[], help="role (default: complete and feedback); may be repeated")
    add("--table", type=Path, metavar="FILE", help="add the tokens' SHA-256 to this file (serving.token_file)")
    return parser


def _entry(table: str, token: str, projects: Sequence[str], roles: Sequence[str]) -> list[str]:
    """Return the lines of TOML that describe a token."""
    lines = [f"[{table}]", f'sha256 = "{digest(token.encode()).hex()}"']
    lines += [f"projects = {json.dumps(projects)}"] if projects else []
    lines += [f"roles = {json.dumps(roles)}"] if roles else []
    return lines


def _append(file: Path, lines: Sequence[str]) -> None:
    """Add lines to a file that only its owner reads; a reader sees all of them or none."""
    before = file.read_text() if file.exists() else ""
    partial = file.with_name(f"{file.name}.{os.getpid()}")
    with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
        out.write(before + "\n".join([*([""] if before else []), *lines, ""]))
    os.replace(partial, file)


def _quoted(name: str) -> str:
    return json.dumps(name, ensure_ascii=False)


def _project(name: str) -> str:
    if not PROJECT.fullmatch(name):
        raise argparse.ArgumentTypeError(f"{name!r}: expected {PROJECT_RULE}")
    return name


if __name__ == "__main__":
    sys.exit(main())
