"""Where the values of settings come from: a TOML file and those that it extends, variables, and the stack's generated secrets.

`tabloop up` remembers its file and its variables in the stack's state directory. Where the environment names no file, later
commands and the stack's parts read these, so that a shell needs no export.
"""

import errno
import json
import os
import re
import stat
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from infra.settings import release
from infra.settings.release import ROOT
from infra.settings.schema import Settings, Stack

SHIPPED = Path(__file__).parent
TEAM, DEMO, DEMO_ADAPTERS, WORKSTATION, PRODUCTION = (
    SHIPPED / f"{name}.toml" for name in ("team", "demo", "demo-adapters", "workstation", "production")
)
PREFIX = "TABLOOP_"
FILE_VARIABLE, STATE_VARIABLE = f"{PREFIX}SETTINGS", f"{PREFIX}STACK__STATE"
SECRETS_NAME, TOKENS_NAME = "secrets.toml", "tokens.toml"
"""Generated secrets of the local stack; beside them the table of developers' tokens, used where serving.token_file is not set."""
REMEMBERED_NAME, ELSEWHERE_NAME = "started_with.json", "elsewhere.json"
"""In the state directory: what the stack was started with; in the default state directory: the state directory of a stack whose
file names another one, while it runs."""
LOOPBACK = ("127.0.0.1", "localhost", "::1")
LOCAL_SERVERS = {"store": "endpoint", "registry": "uri", "orchestration": "api"}
"""Sections whose generated credentials belong to a server on this machine, each with the setting of its address."""
IPV6 = re.compile(r"\[[0-9A-Fa-f:.]+\]:\d+")
"""HOST:PORT with an address of IPv6, which begins as a list in JSON does."""
REMEMBERED = ", remembered by `tabloop up`"
"""End of the origin of a variable that the environment does not have."""
GENERATED = "generated"
"""Origin of a generated secret."""

T = TypeVar("T")
Keys = tuple[str | int, ...]
"""The keys of a value, from the outermost table on."""


class SettingsError(ValueError):
    """A settings file or variable is invalid; the message names each field, its value and what was expected."""


@dataclass(frozen=True)
class StartedWith:
    """What a stack was started with."""

    file: Path
    """The settings file."""
    variables: Mapping[str, str]
    """The variables TABLOOP_..., but for TABLOOP_SETTINGS."""


@dataclass(frozen=True)
class Gathered:
    """The values of all places, before they are validated."""

    file: Path
    """The settings file."""
    values: dict[str, Any]
    origins: Mapping[Keys, str]
    """The file, or the variable, that gave each value; GENERATED for a secret of the stack."""


def expect_file(file: Path) -> None:
    """Raise OSError where no file is, but a directory, a device or a pipe, which may never end."""
    kind = file.stat().st_mode
    if stat.S_ISDIR(kind):
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), str(file))
    if not stat.S_ISREG(kind):
        raise OSError(errno.ENXIO, "a device or a pipe", str(file))


def path(value: Path) -> Path:
    """Return a path of the settings as an absolute path; relative ones start at the repository."""
    return value if value.is_absolute() else ROOT / value


def gather(file: Path | None, environment: Mapping[str, str]) -> Gathered:
    """Return the values of a file, of the variables over it, and of the generated secrets where no value is set.

    Without a file it is that of $TABLOOP_SETTINGS, else the one that the stack was started with, else team.toml. The remembered
    variables count only with the remembered file, and those of the environment override them.

    Raises:
        SettingsError: a file is missing or not TOML, or a variable's value cannot be read.
    """
    started = started_with(file, environment)
    values, found = _read(started.file)
    origins: dict[Keys, str] = dict(found)
    for name, value in started.variables.items():
        keys = name.removeprefix(PREFIX).lower().split("__")
        _set(values, keys, value, name)
        origins[tuple(keys)] = name if environment.get(name) == value else f"{name}{REMEMBERED}"
    origins |= dict.fromkeys(_fill_secrets(values), GENERATED)
    return Gathered(started.file, values, origins)


def started_with(file: Path | None, environment: Mapping[str, str]) -> StartedWith:
    """Return the file and the variables that hold for an environment (`gather`). Raises SettingsError."""
    given = {name: value for name, value in environment.items() if name.startswith(PREFIX) and name != FILE_VARIABLE}
    if environment.get(FILE_VARIABLE) == "":
        raise SettingsError(f"{FILE_VARIABLE} = '': expected a settings file, or the name of one in {SHIPPED}; or unset it")
    if file or FILE_VARIABLE in environment:
        return StartedWith(file or named(environment[FILE_VARIABLE]), given)
    before = remembered(_state(environment))
    return StartedWith(before.file, {**before.variables, **given}) if before else StartedWith(TEAM, given)


def named(file: str) -> Path:
    """Return a settings file by its path, or by its name in infra/settings, with or without the ending."""
    if not (given := Path(file)).is_file():
        for name in (file, f"{file}.toml"):
            if "/" not in name and (SHIPPED / name).is_file():
                return SHIPPED / name
    return given


def remembered(state: Path) -> StartedWith | None:
    """Return what the stack of a state directory was started with; None where none was started. Raises SettingsError."""
    return written_by_up(state / REMEMBERED_NAME, lambda found: StartedWith(Path(found["file"]), dict(found["variables"])))


def elsewhere(default: Path) -> Path | None:
    """Return the state directory of a stack elsewhere, by the default one; None where none runs. Raises SettingsError."""
    return written_by_up(default / ELSEWHERE_NAME, lambda found: Path(found["state"]))


def written_by_up(file: Path, read: Callable[[Any], T]) -> T | None:
    """Return what a file of the state directory holds in JSON; None where there is none. Raises SettingsError."""
    try:
        return read(json.loads(file.read_text()))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SettingsError(
            f"{file}: expected what `tabloop up` wrote: {error}; remove it, then `tabloop up --settings FILE`"
        ) from None


def _state(environment: Mapping[str, str]) -> Path:
    """Return the state directory of the stack that an environment means."""
    if STATE_VARIABLE in environment:
        return path(Path(environment[STATE_VARIABLE]))
    default = path(Stack().state)
    return elsewhere(default) or default


def _read(file: Path, extended_by: tuple[Path, ...] = ()) -> tuple[dict[str, Any], dict[Keys, str]]:
    """Return the values of a file and of those that it extends, and the file of each value."""
    if file.resolve() in [other.resolve() for other in extended_by]:
        chain = " -> ".join(map(str, (*extended_by, file)))
        raise SettingsError(f"{file}: extends itself: {chain}; remove one `extends`")
    try:
        expect_file(file)
        values = tomllib.loads(file.read_text("utf-8-sig"))
    except OSError as error:
        raise SettingsError(
            f"{file}: no settings file can be read there ({error.strerror}); name one that exists: `tabloop up --settings FILE`, "
            f"or {FILE_VARIABLE}"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{file}: not TOML: {error}") from None
    if (wanted := values.pop(release.KEY, None)) is not None and (problem := release.problem(wanted, release.installed())):
        raise SettingsError(f"{file}: {problem}")
    base = values.pop("extends", None)
    origins: dict[Keys, str] = dict.fromkeys(leaves(values), str(file))
    if base is None:
        return values, origins
    below, earlier = _read(_extended(file, base), (*extended_by, file))
    return _merged(below, values), earlier | origins


def _extended(file: Path, base: object) -> Path:
    """Return the file that another one extends."""
    for folder in (file.parent, SHIPPED):
        if isinstance(base, str) and (found := folder / base).is_file():
            return found
    shipped = ", ".join(sorted(path.name for path in SHIPPED.glob("*.toml")))
    raise SettingsError(f"{file}: extends = {base!r}: expected a path relative to {file.parent}, or one of {shipped}")


def leaves(values: Mapping[str, Any], keys: Keys = ()) -> Iterator[Keys]:
    """Yield the keys of every value that is no table."""
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, (*keys, key))
        else:
            yield (*keys, key)


def _merged(below: dict[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table with the values of another one over its own."""
    both = {name for name, value in above.items() if isinstance(value, dict) and isinstance(below.get(name), dict)}
    return below | {name: _merged(below[name], value) if name in both else value for name, value in above.items()}


def _set(values: dict[str, Any], keys: list[str], text: str, name: str) -> None:
    """Set the value of a variable: lists, tables and null are JSON; the field's own type parses any other text."""
    for number, key in enumerate(keys[:-1], 1):
        inner = values.setdefault(key, {})
        if not isinstance(inner, dict):
            raise SettingsError(f"{name}: {'.'.join(keys[:number])} is a setting, and no section; expected {PREFIX}SECTION__NAME")
        values = inner
    try:
        is_json = text == "null" or (text[:1] in ("[", "{") and not IPV6.fullmatch(text))
        values[keys[-1]] = json.loads(text) if is_json else text
    except ValueError as error:
        raise SettingsError(
            f"{name}: a value that begins with {text[0]} is JSON, and this one is not: {error}; write texts in it in double "
            f"""quotes: {name}='["a", "b"]'"""
        ) from None


def _fill_secrets(values: dict[str, Any]) -> Iterator[Keys]:
    """Fill in the generated keys and tokens of the local stack (infra/stack/secrets.py) where none is set; yield their keys.

    A value in place of a table, a path or an address is left to the validation, which names it.
    """
    stack, state = values.get("stack"), Stack().state
    if isinstance(stack, dict) and isinstance(given_state := stack.get("state"), str):
        state = Path(given_state)
    secrets = path(state) / SECRETS_NAME
    try:
        generated = tomllib.loads(secrets.read_text()) if secrets.exists() else {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{secrets}: not TOML: {error}") from None
    for section, entries in generated.items():
        if not isinstance(entries, dict):
            raise SettingsError(f"{secrets}: {section}: expected a table [{section}]")
        given = values.get(section, {})
        if not isinstance(given, dict):
            continue
        if (name := LOCAL_SERVERS.get(section)) and not _local(given.get(name, getattr(getattr(Settings(), section), name))):
            continue  # another server gets no credential of the local one
        values[section] = {**entries, **given}
        yield from ((section, key) for key in entries if key not in given)
    serving = values.setdefault("serving", {})
    if (tokens := path(state) / TOKENS_NAME).exists() and isinstance(serving, dict) and "token_file" not in serving:
        serving["token_file"] = str(tokens)
        yield "serving", "token_file"


def _local(address: object) -> bool:
    """Return whether an address is on this machine; a malformed one is not."""
    try:
        return urlsplit(str(address)).hostname in LOOPBACK
    except ValueError:
        return False


def environment_of_parts(given: Mapping[str, str], state: Path) -> dict[str, str]:
    """Return an environment in which settings are those that the stack of a state directory was started with."""
    return {name: value for name, value in given.items() if not name.startswith(PREFIX)} | {STATE_VARIABLE: os.fspath(state)}
