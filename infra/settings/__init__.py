"""Settings: a TOML file, the local stack's generated secrets, the environment; a later one wins.

`load()` is the only way in; importing this imports no torch.

    TABLOOP_SETTINGS=path.toml                file (default: infra/settings/local.toml)
    TABLOOP_SERVING__SAMPLING__TEMPERATURE=.8 one value, sections joined by two underscores
"""

import json
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pydantic import ValidationError

from infra.settings.schema import Settings

ROOT = Path(__file__).resolve().parents[2]
LOCAL = Path(__file__).with_name("local.toml")
PRODUCTION = Path(__file__).with_name("production.toml")
PREFIX = "TABLOOP_"
SECRETS_NAME = "secrets.toml"
LOOPBACK = ("127.0.0.1", "localhost", "::1")
FILE_VARIABLE = "TABLOOP_SETTINGS"

__all__ = ["FILE_VARIABLE", "LOCAL", "PRODUCTION", "ROOT", "Settings", "SettingsError", "dump", "load", "path"]


class SettingsError(ValueError):
    """A settings file or variable that cannot be used; the message names each field, its value and what was expected."""


def load(file: Path | None = None, environment: Mapping[str, str] = os.environ) -> Settings:
    """Read the settings file and lay the environment over it.

    Raises:
        SettingsError: the file is missing or not TOML, a key is unknown, or a value is out of its range.
    """
    file = file or Path(environment.get(FILE_VARIABLE, LOCAL))
    try:
        values = tomllib.loads(file.read_text())
    except FileNotFoundError:
        raise SettingsError(f"{file}: no such settings file; set {FILE_VARIABLE} to one, e.g. {LOCAL}") from None
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{file}: not TOML: {error}") from None
    for name, value in environment.items():
        if name.startswith(PREFIX) and name != FILE_VARIABLE:
            _lay(values, name.removeprefix(PREFIX).lower().split("__"), value)
    _fill_secrets(values)
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        lines = [f"  {'.'.join(map(str, e['loc']))} = {_shown(e)}: {e['msg']}" for e in error.errors()]
        raise SettingsError("\n".join([f"{file} and the environment ({PREFIX}...):", *lines])) from None


def _fill_secrets(values: dict[str, Any]) -> None:
    """Lay the local stack's generated keys and tokens (see infra/stack) under what the file says."""
    state = Path(values.get("stack", {}).get("state", Settings().stack.state))
    secrets = path(state) / SECRETS_NAME
    if secrets.exists():
        endpoint = values.get("store", {}).get("endpoint", Settings().store.endpoint) or ""
        for section, entries in tomllib.loads(secrets.read_text()).items():
            if section == "store" and urlsplit(endpoint).hostname not in LOOPBACK:
                continue  # keys of the local server are nobody's on another
            values[section] = {**entries, **values.get(section, {})}


def _lay(values: dict[str, Any], keys: list[str], value: str) -> None:
    for key in keys[:-1]:
        values = values.setdefault(key, {})
    # A list, table or null is written as JSON; anything else is left to the field's own type.
    values[keys[-1]] = json.loads(value) if value[:1] in ("[", "{") or value == "null" else value


def _shown(error: Any) -> str:
    secret = any(word in str(error["loc"][-1]) for word in ("key", "token", "secret"))
    table = isinstance(error["input"], dict | list)  # what lacks a key: secrets may stand beside it
    return "(hidden)" if secret or table else re.sub(r"//[^/@]*@", "//(hidden)@", repr(error["input"]))


def dump(settings: Settings) -> str:
    """The resolved settings as JSON, secrets masked: what is kept beside every run."""
    return settings.model_dump_json(indent=2)


def path(value: Path) -> Path:
    """A path of the settings, made absolute against the repository."""
    return value if value.is_absolute() else ROOT / value
