"""The page of all settings, from their classes and the values of the shipped files."""

import json
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

from evals.docs.schema import INTROS, TOML, Schema, code, forms, named, prose, resolved, table, values, words
from infra.settings import DEMO, PRODUCTION, TEAM, WORKSTATION, Settings

SHIPPED = (("team", TEAM), ("demo", DEMO), ("workstation", WORKSTATION), ("production", PRODUCTION))
LONG = 60
"""Characters of a default beyond which only its kind is named."""


def page() -> str:
    document = Settings.model_json_schema()
    shipped = {name: tomllib.loads(file.read_text()) for name, file in SHIPPED}
    return INTROS["settings"] + "".join(_sections("", "", document, document, shipped))


def _sections(path: str, about: str, section: Schema, document: Schema, shipped: Mapping[str, Any]) -> Iterator[str]:
    """Yield the text of a group of settings and of the groups in it; `about` is the description of the field that holds it."""
    fields = {f"{path}.{name}".lstrip("."): given for name, given in section["properties"].items()}
    alone = {name: given for name, given in fields.items() if not ("$ref" in given and "properties" in resolved(given, document))}
    if alone:
        cells = [
            (named(n), _facts(n, field, document, shipped), prose(field.get("description", ""))) for n, field in alone.items()
        ]
        head = prose(f"{about} {section.get('description', '')}")
        yield f"## {path}\n\n{head}\n\n" + table(("setting", "type; default; shipped", "meaning"), cells) + "\n"
    for name, given in fields.items():
        for place, group in _groups({**given, "description": ""}, document):
            yield from _sections(name + place, given.get("description", ""), group, document, shipped)


def _groups(field: Schema, document: Schema, place: str = "") -> Iterator[tuple[str, Schema]]:
    """Yield the groups of settings in a field, each with the part of its path below the field's name."""
    for form in forms(field, document):
        if "properties" in form:
            yield place, form
        elif entry := form.get("items") or next(iter(form.get("prefixItems", ())), None):
            yield from _groups(entry, document, place + "[]")
        elif within := values(form):
            yield from _groups(within, document, place + ".NAME")


def _facts(path: str, field: Schema, document: Schema, shipped: Mapping[str, Any]) -> str:
    """Return a setting's type, limits and default, and the values of shipped files that differ from it."""
    default = _value(field["default"]) if "default" in field else "required"
    given = {name: _value(value) for name, file in shipped.items() if (value := _value_at(file, path)) is not None}
    others = [f"{name}: {value}" for name, value in given.items() if value != default]
    return "; ".join([words(field, document, TOML), default, *others])


def _value_at(file: Any, path: str) -> Any:
    for key in path.split("."):
        file = file.get(key) if isinstance(file, dict) else None
    return file


def _value(value: Any) -> str:
    if value is None:
        return "none"
    if value in ("", [], {}):
        return "empty"
    text = value if isinstance(value, str) else json.dumps(value)
    return code(text) if len(text) <= LONG or not isinstance(value, list | dict) else f"{len(value)} entries"
