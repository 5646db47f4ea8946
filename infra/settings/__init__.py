"""Load the settings from a TOML file, the local stack's generated secrets and the environment.

The environment overrides the file, and the file overrides the secrets (sources.py). Importing this module does not import torch.

    TABLOOP_SETTINGS=path.toml                file (default: what `tabloop up` was started with, else infra/settings/team.toml)
    TABLOOP_SERVING__SAMPLING__TEMPERATURE=.8 one value, sections joined by two underscores

A file may extend another, and then holds only what differs:

    extends = "team.toml"

`extends` is a path, relative to the file that has it, or the name of a file in infra/settings. Tables are merged; any other
value, a list too, replaces that of the extended file. The extended file may extend a further one.
"""

import difflib
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import SecretStr, ValidationError

# ruff: noqa: F401, other modules import from here
from infra.settings.schema import Settings
from infra.settings.section import Section
from infra.settings.sources import (
    DEMO,
    DEMO_ADAPTERS,
    FILE_VARIABLE,
    LOOPBACK,
    PREFIX,
    PRODUCTION,
    REMEMBERED,
    ROOT,
    SECRETS_NAME,
    TEAM,
    TOKENS_NAME,
    WORKSTATION,
    Keys,
    SettingsError,
    gather,
    path,
)

CREDENTIALS = re.compile(r"(?<=//)[^/?#\s\"'\\]*@")
"""The part `user:password@` of a URL."""
SECRET_WORDS = ("key", "token", "secret", "password", "auth_string", "webhook", "valkey")
"""Words in the names of settings whose values no message shows."""
HIDDEN = "**********"
KINDS = {
    **dict.fromkeys(("tuple_type", "list_type"), "expected a list"),
    **dict.fromkeys(("dict_type", "model_type"), "expected a table"),
}
"""Words of TOML for the types of Python that the validation's messages name."""


def load(file: Path | None = None, environment: Mapping[str, str] = os.environ, kind: type[Settings] = Settings) -> Settings:
    """Return the settings of a file, overridden by the environment.

    Without a file it is that of $TABLOOP_SETTINGS, else the one that the stack was started with, else team.toml. A `kind` that
    adds sections reads these too.

    Raises:
        SettingsError: a file is missing, not TOML or extends itself; a key is unknown, or a value is out of its range.
    """
    gathered = gather(file, environment)
    try:
        return kind.model_validate(gathered.values)
    except ValidationError as error:
        lines = [f"  {_explained(e, _origin(e['loc'], gathered.origins, gathered.file))}" for e in error.errors()]
        raise SettingsError("\n".join([f"{gathered.file} and the environment ({PREFIX}...):", *lines])) from None


def load_for(program: str) -> Settings:
    """Return the settings of a program other than the command. Exits, with what is wrong with them, in the program's name."""
    try:
        return load()
    except SettingsError as error:
        text = in_line(str(error))
        before = "\n  " if "\n" in text else "; "
        raise SystemExit(
            f"{program}: {text}{before}next: correct it in the file or the environment, then start it again"
        ) from None


def in_line(message: str) -> str:
    """Return the message of a SettingsError, in one line where it names one setting."""
    return message.replace(":\n  ", ": ", 1) if message.count("\n") == 1 else message


def _origin(keys: Keys, origins: Mapping[Keys, str], file: Path) -> str:
    """Return the file or variable that gave a value; of a table, that of a value in it, or else the file that was loaded."""
    given = [origins[keys[:count]] for count in range(len(keys), 0, -1) if keys[:count] in origins]
    within = [origin for leaf, origin in origins.items() if leaf[: len(keys)] == keys]
    own = [origin for origin in within if origin == str(file) or origin.startswith(PREFIX)]  # rather than those of extended files
    return next(iter((*given, *own, *within)), str(file))


def _explained(error: Any, origin: str) -> str:
    """Return one error of the validation in words."""
    named = error["loc"][-1:] == ("[key]",)  # the name of a table in a table is wrong, as that of a project
    name = ".".join(map(str, error["loc"])).removesuffix(".[key]")
    if origin.endswith(REMEMBERED):
        origin += ": `tabloop up --settings FILE` forgets it, `tabloop --settings FILE down` stops what runs"
    # Of a missing key, or a rule between several settings, the input is the whole table.
    text = f"{name}: " if named or isinstance(error["input"], dict) else f"{name} = {_shown(error)}: "
    if error["type"] != "extra_forbidden":
        return f"{text}{KINDS.get(error['type'], error['msg'].removeprefix('Value error, '))} ({origin})"
    if near := nearest(name):
        return f"{text}no such setting ({origin}); did you mean {' or '.join(near)}?"
    hint = "some of earlier versions are constants now: `tabloop settings show --all` prints every setting"
    return f"{text}no such setting ({origin}); {hint}"


def nearest(name: str) -> list[str]:
    """Return the settings and sections whose names are like a name, the most similar first."""
    return difflib.get_close_matches(name, list(names(Settings)), n=3, cutoff=0.75)


def names(section: type[Section], prefix: str = "") -> Iterator[str]:
    """Yield the dotted name of every section and setting in a group."""
    for name, field in section.model_fields.items():
        yield prefix + name
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            yield from names(field.annotation, f"{prefix}{name}.")


def _shown(error: Any) -> str:
    name = str(error["loc"][-1]) if error["loc"] else ""
    secret = any(word in name for word in SECRET_WORDS) and not name.endswith("_tokens")  # which is a number of them
    several = isinstance(error["input"], list)  # its tables may hold secrets
    return "(hidden)" if secret or several else masked(repr(error["input"]))


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
