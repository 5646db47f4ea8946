"""The page of all settings, from their classes, and from the values of the shipped files."""

import re
import tomllib
import types
from collections.abc import Iterator, Mapping
from typing import Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Interval, Le, Lt, MaxLen, MinLen
from pydantic import SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from infra.docs_build.markdown import anchor, code, prose, table
from infra.settings import LOCAL, PREFIX, PRODUCTION, Settings
from infra.settings.section import Section

INTRO = f"""# Settings

Every setting with its type, default and meaning. [How settings are given](../operations.md#settings): a TOML file, or one
value in the environment, `{PREFIX}SECTION__NAME`, with sections joined by two underscores. In the names below, `NAME` is a key
that you choose, and `[]` an entry of a list. Where `local.toml` or `production.toml` differs from the default, it is named.

"""
SHIPPED = {"local": LOCAL, "production": PRODUCTION}
SIGNS = {Ge: ("at least", "ge"), Gt: ("above", "gt"), Le: ("at most", "le"), Lt: ("below", "lt")}
LONG = 60
"""Characters of a default beyond which only its kind is named."""


def page() -> str:
    """Return the page in Markdown."""
    parts = [INTRO]
    shipped = {name: tomllib.loads(file.read_text()) for name, file in SHIPPED.items()}
    for path, section, about in sections():
        parts.append(f"## {path}\n\n{prose(about)}\n\n")
        rows = [
            (
                anchor(f"{path}.{name}") + code(f"{path}.{name}"),
                _values(f"{path}.{name}", field, shipped),
                prose(field.description or ""),
            )
            for name, field in section.model_fields.items()
            if not _is_group(field)
        ]
        parts.append(table(("setting", "type; default; shipped", "meaning"), rows) + "\n")
    return "".join(parts)


def sections() -> Iterator[tuple[str, type[Section], str]]:
    """Yield the path, class and description of every group of settings that has settings of its own."""
    for name, field in Settings.model_fields.items():
        yield from _below(name, field)


def _below(path: str, field: FieldInfo) -> Iterator[tuple[str, type[Section], str]]:
    for place, section in nested(field):
        where = path + place
        about = field.description or ""
        if any(not _is_group(each) for each in section.model_fields.values()):
            yield where, section, f"{about} {section.__doc__ or ''}" if _documented(section) else about
        for name, each in section.model_fields.items():
            yield from _below(f"{where}.{name}", each)


def _documented(section: type[Section]) -> bool:
    return section.__doc__ is not None and section.__doc__ != Section.__doc__


def nested(field: FieldInfo) -> list[tuple[str, type[Section]]]:
    """Return the groups of settings that a field holds, each with what stands between the field's name and theirs."""
    return list(dict.fromkeys(_groups(field.annotation, "")))


def _is_group(field: FieldInfo) -> bool:
    """Return whether a field is one group of settings, which has a section of its own, rather than a list or a table of them."""
    return any(place == "" for place, _ in nested(field)) and get_origin(field.annotation) is None


def _groups(annotation: Any, place: str) -> Iterator[tuple[str, type[Section]]]:
    if isinstance(annotation, type) and issubclass(annotation, Section):
        yield place, annotation
    origin, arguments = get_origin(annotation), get_args(annotation)
    within = ".NAME" if _is(origin, dict) else "[]" if _is(origin, tuple) or _is(origin, list) else ""
    for each in arguments:
        yield from _groups(each, place + within)


def _is(origin: Any, kind: type) -> bool:
    return isinstance(origin, type) and (issubclass(origin, kind) or (kind is dict and origin.__name__ == "Mapping"))


def _values(path: str, field: FieldInfo, shipped: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a setting's type, limits and default, and where the shipped files differ from that."""
    typed = ", ".join([_name(field.annotation), *_limits(field.metadata)])
    default = "required" if field.is_required() else _default(field.get_default(call_default_factory=True))
    others = [f"{name}: {_default(value)}" for name, file in shipped.items() if (value := _value_at(file, path)) is not None]
    return "; ".join([typed, default, *(other for other in others if not other.endswith(f": {default}"))])


def _value_at(values: Any, path: str) -> Any:
    for key in path.split("."):
        values = values.get(key) if isinstance(values, dict) else None
    return tuple(values) if isinstance(values, list) else values


def _name(annotation: Any) -> str:
    """Return a type in words of TOML."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (types.UnionType, Union):
        return " or ".join(dict.fromkeys(_name(each) for each in arguments if each is not types.NoneType))
    if origin is Literal:
        return " or ".join(code(str(each)) for each in arguments)
    if origin is not None and hasattr(annotation, "__metadata__"):
        return _name(arguments[0])
    if _is(origin, dict):
        return f"table of {_name(arguments[1])}"
    if _is(origin, tuple) or _is(origin, list):
        return "list of " + " and ".join(dict.fromkeys(_name(each) for each in arguments if each is not Ellipsis))
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return "table"
    return {str: "text", int: "whole number", float: "number", bool: "true or false", SecretStr: "secret"}.get(
        annotation, getattr(annotation, "__name__", str(annotation)).lower()
    )


def _limits(metadata: list[Any]) -> Iterator[str]:
    for each in metadata:
        for kind, (words, name) in SIGNS.items():
            if isinstance(each, kind) or (isinstance(each, Interval) and getattr(each, name) is not None):
                yield f"{words} {getattr(each, name):g}"
        if isinstance(each, MinLen) and each.min_length > 0:
            yield f"at least {each.min_length} long"
        if isinstance(each, MaxLen):
            yield f"at most {each.max_length} long"


def _default(value: Any) -> str:
    if value is None or value is PydanticUndefined:
        return "none"
    if isinstance(value, Section):
        return "see its section"
    if isinstance(value, bool):
        return code(str(value).lower())
    if value in ("", (), {}):
        return "empty"
    text = str(list(value)) if isinstance(value, tuple) else str(value)
    text = re.sub(r"\s+", " ", text)
    return code(text) if len(text) <= LONG else f"{len(value)} entries" if isinstance(value, tuple | dict) else code(text)
