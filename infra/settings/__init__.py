"""Load the settings from a TOML file, the local stack's generated secrets and the environment.

The environment overrides the file, and the file overrides the secrets. Importing this module does not import torch.

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
    """A settings file or variable is invalid; the message names each field, its value and what was expected."""


def load(file: Path | None = None, environment: Mapping[str, str] = os.environ) -> Settings:
    """Return the settings of a file (by default $TABLOOP_SETTINGS, else local.toml), overridden by the environment.

    Raises:
        SettingsError: the file is missing or not TOML, a key is unknown, or a value is out of its range.
    """
    file = file or Path(environment.get(FILE_VARIABLE, LOCAL))
    try:
        values = tomllib.loads(file.read_text())
    except FileNotFoundError:
        raise SettingsError(f"{file}: no such settings file; set {FILE_VARIABLE} to an existing one, e.g. {LOCAL}") from None
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{file}: not TOML: {error}") from None
    for name, value in environment.items():
        if name.startswith(PREFIX) and name != FILE_VARIABLE:
            _set(values, name.removeprefix(PREFIX).lower().split("__"), value)
    _fill_secrets(values)
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        lines = [f"  {'.'.join(map(str, e['loc']))} = {_shown(e)}: {e['msg']}" for e in error.errors()]
        raise SettingsError("\n".join([f"{file} and the environment ({PREFIX}...):", *lines])) from None


def _fill_secrets(values: dict[str, Any]) -> None:
    """Fill in the local stack's generated keys and tokens (infra/stack/secrets.py) where no value is set."""
    state = Path(values.get("stack", {}).get("state", Settings().stack.state))
    secrets = path(state) / SECRETS_NAME
    if secrets.exists():
        endpoint = values.get("store", {}).get("endpoint", Settings().store.endpoint) or ""
        for section, entries in tomllib.loads(secrets.read_text()).items():
            if section == "store" and urlsplit(endpoint).hostname not in LOOPBACK:
                continue  # the local server's keys are not valid on another server
            values[section] = {**entries, **values.get(section, {})}


def _set(values: dict[str, Any], keys: list[str], value: str) -> None:
    for key in keys[:-1]:
        values = values.setdefault(key, {})
    # Lists, tables and null are JSON; the field's own type parses any other text.
    values[keys[-1]] = json.loads(value) if value[:1] in ("[", "{") or value == "null" else value


def _shown(error: Any) -> str:
    secret = any(word in str(error["loc"][-1]) for word in ("key", "token", "secret"))
    table = isinstance(error["input"], dict | list)  # of a missing key, the whole table: it may hold secrets
    return "(hidden)" if secret or table else re.sub(r"//[^/@]*@", "//(hidden)@", repr(error["input"]))


def dump(settings: Settings) -> str:
    """Return the resolved settings as JSON with secrets masked, for storage beside a run."""
    return settings.model_dump_json(indent=2)


def path(value: Path) -> Path:
    """Return a path of the settings as an absolute path; relative ones start at the repository."""
    return value if value.is_absolute() else ROOT / value
