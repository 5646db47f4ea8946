"""Load the settings from a TOML file, the local stack's generated secrets and the environment.

The environment overrides the file, and the file overrides the secrets. Importing this module does not import torch.

    TABLOOP_SETTINGS=path.toml                file (default: infra/settings/local.toml)
    TABLOOP_SERVING__SAMPLING__TEMPERATURE=.8 one value, sections joined by two underscores

A file may extend another, and then holds only what differs:

    extends = "local.toml"

`extends` is a path, relative to the file that has it, or the name of a file in infra/settings. Tables are merged; any other
value, a list too, replaces that of the extended file. The extended file may extend a further one.
"""

import difflib
import json
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pydantic import SecretStr, ValidationError

from infra.settings.schema import Settings
from infra.settings.section import Section

ROOT = Path(__file__).resolve().parents[2]
LOCAL = Path(__file__).with_name("local.toml")
PRODUCTION = Path(__file__).with_name("production.toml")
PREFIX = "TABLOOP_"
SECRETS_NAME = "secrets.toml"
TOKENS_NAME = "tokens.toml"
"""Table of developers' tokens of the local stack, beside its secrets; used where serving.token_file is not set."""
LOOPBACK = ("127.0.0.1", "localhost", "::1")
FILE_VARIABLE = "TABLOOP_SETTINGS"

CREDENTIALS = re.compile(r"(?<=//)[^/?#\s\"'\\]*@")
"""The part `user:password@` of a URL."""
SECRET_WORDS = ("key", "token", "secret", "password", "auth_string", "webhook", "valkey")
"""Words in the names of settings whose values no message shows."""
HIDDEN = "**********"
LOCAL_SERVERS = {"store": "endpoint", "registry": "uri", "orchestration": "api"}
"""Sections whose generated credentials belong to a server on this machine, each with the setting of its address."""


class SettingsError(ValueError):
    """A settings file or variable is invalid; the message names each field, its value and what was expected."""


def load(file: Path | None = None, environment: Mapping[str, str] = os.environ, kind: type[Settings] = Settings) -> Settings:
    """Return the settings of a file (by default $TABLOOP_SETTINGS, else local.toml), overridden by the environment.

    A `kind` that adds sections reads these too.

    Raises:
        SettingsError: a file is missing, not TOML or extends itself; a key is unknown, or a value is out of its range.
    """
    file = file or Path(environment.get(FILE_VARIABLE, LOCAL))
    values, origins = _read(file)
    for name, value in environment.items():
        if name.startswith(PREFIX) and name != FILE_VARIABLE:
            keys = name.removeprefix(PREFIX).lower().split("__")
            _set(values, keys, value)
            origins[tuple(keys)] = name
    _fill_secrets(values)
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        lines = [f"  {_explained(e, _origin(e['loc'], origins, file))}" for e in error.errors()]
        raise SettingsError("\n".join([f"{file} and the environment ({PREFIX}...):", *lines])) from None


Keys = tuple[str | int, ...]
"""The keys of a value, from the outermost table on."""


def _read(file: Path, extended_by: tuple[Path, ...] = ()) -> tuple[dict[str, Any], dict[Keys, str]]:
    """Return the values of a file and of those that it extends, and the file of each value."""
    if file.resolve() in [other.resolve() for other in extended_by]:
        chain = " -> ".join(map(str, (*extended_by, file)))
        raise SettingsError(f"{file}: extends itself: {chain}; remove one `extends`")
    try:
        values = tomllib.loads(file.read_text())
    except FileNotFoundError:
        raise SettingsError(f"{file}: no such settings file; set {FILE_VARIABLE} to an existing one, e.g. {LOCAL}") from None
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{file}: not TOML: {error}") from None
    base = values.pop("extends", None)
    origins: dict[Keys, str] = dict.fromkeys(_leaves(values), str(file))
    if base is None:
        return values, origins
    below, earlier = _read(_extended(file, base), (*extended_by, file))
    return _merged(below, values), earlier | origins


def _extended(file: Path, base: object) -> Path:
    """Return the file that another one extends."""
    for folder in (file.parent, LOCAL.parent):
        if isinstance(base, str) and (found := folder / base).is_file():
            return found
    shipped = ", ".join(sorted(path.name for path in LOCAL.parent.glob("*.toml")))
    raise SettingsError(f"{file}: extends = {base!r}: expected a path relative to {file.parent}, or one of {shipped}")


def _leaves(values: Mapping[str, Any], keys: Keys = ()) -> Iterator[Keys]:
    """Yield the keys of every value that is no table."""
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, (*keys, key))
        else:
            yield (*keys, key)


def _merged(below: dict[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table with the values of another one over its own."""
    both = {name for name, value in above.items() if isinstance(value, dict) and isinstance(below.get(name), dict)}
    return below | {name: _merged(below[name], value) if name in both else value for name, value in above.items()}


def _origin(keys: Keys, origins: Mapping[Keys, str], file: Path) -> str:
    """Return the file or variable that gave a value; of a table, that of a value in it, or else the file that was loaded."""
    given = [origins[keys[:count]] for count in range(len(keys), 0, -1) if keys[:count] in origins]
    within = [origin for leaf, origin in origins.items() if leaf[: len(keys)] == keys]
    return next(iter((*given, *within)), str(file))


def _explained(error: Any, origin: str) -> str:
    """Return one error of the validation in words."""
    name = ".".join(map(str, error["loc"]))
    text = f"{name} = {_shown(error)}: {error['msg']}"
    if error["type"] != "extra_forbidden":
        return f"{text} ({origin})"
    near = difflib.get_close_matches(name, list(_names(Settings)), n=3, cutoff=0.75)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    return (
        f"{text} ({origin}); {hint}Some settings of earlier versions are constants now: `tabloop settings` prints every setting"
    )


def _names(section: type[Section], prefix: str = "") -> Iterator[str]:
    """Yield the dotted name of every setting in a group."""
    for name, field in section.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            yield from _names(field.annotation, f"{prefix}{name}.")
        else:
            yield prefix + name


def _fill_secrets(values: dict[str, Any]) -> None:
    """Fill in the local stack's generated keys and tokens (infra/stack/secrets.py) where no value is set."""
    state = Path(values.get("stack", {}).get("state", Settings().stack.state))
    secrets = path(state) / SECRETS_NAME
    if secrets.exists():
        for section, entries in tomllib.loads(secrets.read_text()).items():
            given = values.get(section, {})
            if (name := LOCAL_SERVERS.get(section)) and not _local(given.get(name, getattr(getattr(Settings(), section), name))):
                continue  # another server gets no credential of the local one
            values[section] = {**entries, **given}
    if (tokens := path(state) / TOKENS_NAME).exists():
        values["serving"] = {"token_file": str(tokens), **values.get("serving", {})}


def _local(address: str | None) -> bool:
    """Return whether an address is on this machine."""
    return urlsplit(address or "").hostname in LOOPBACK


def _set(values: dict[str, Any], keys: list[str], value: str) -> None:
    for key in keys[:-1]:
        values = values.setdefault(key, {})
    # Lists, tables and null are JSON; the field's own type parses any other text.
    values[keys[-1]] = json.loads(value) if value[:1] in ("[", "{") or value == "null" else value


def _shown(error: Any) -> str:
    secret = any(word in str(error["loc"][-1:]) for word in SECRET_WORDS)
    table = isinstance(error["input"], dict | list)  # of a missing key, the whole table: it may hold secrets
    return "(hidden)" if secret or table else masked(repr(error["input"]))


def masked(text: str, mask: str = "(hidden)@") -> str:
    """Return a text with the part `user:password@` of every URL in it replaced."""
    return CREDENTIALS.sub(mask, text)


def revealed(secret: SecretStr | None) -> str:
    """Return a secret's text; empty without one."""
    return secret.get_secret_value() if secret else ""


def dump(settings: Settings) -> str:
    """Return the resolved settings as JSON with secrets and credentials in URLs masked, for storage beside a run."""
    return masked(json.dumps(_hidden(settings.model_dump(mode="json")), indent=2, ensure_ascii=False))


def _hidden(value: Any) -> Any:
    """Return a value with those texts hidden whose key names a secret, as in tables that are passed on (engine_arguments)."""
    if not isinstance(value, dict):
        return value
    secrets = {k for k, v in value.items() if isinstance(v, str) and v and any(word in k.lower() for word in SECRET_WORDS)}
    return {k: HIDDEN if k in secrets else _hidden(v) for k, v in value.items()}


def path(value: Path) -> Path:
    """Return a path of the settings as an absolute path; relative ones start at the repository."""
    return value if value.is_absolute() else ROOT / value
