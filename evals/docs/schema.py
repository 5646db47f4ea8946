"""The parts of generated pages: tables and escapes, and types, limits and fields in words, from JSON schemas."""

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

Schema = Mapping[str, Any]
INTROS: Mapping[str, str] = tomllib.loads(Path(__file__).with_name("intros.toml").read_text())
"""The text at the top of each page, by the page."""
TOML = {"string": "text", "integer": "whole number", "object": "table", "boolean": "true or false", "null": ""}
"""Words of a settings file."""
LIMITS = {
    **{"minimum": "at least {:g}", "exclusiveMinimum": "above {:g}", "maximum": "at most {:g}", "exclusiveMaximum": "below {:g}"},
    **{"minLength": "at least {} characters", "maxLength": "at most {} characters"},
    **{"minItems": "at least {} entries", "maxItems": "at most {} entries"},
}


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; cells are Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    cells = ([" ".join(cell.split()).replace("|", "\\|") for cell in line] for line in lines)
    return "".join(f"| {' | '.join(line)} |\n" for line in cells)


def code(text: str) -> str:
    """Return inline code; nothing for an empty text."""
    return f"`{text}`" if text else ""


def named(name: str, text: str = "") -> str:
    """Return a name, or another text, as code to which links of the form PAGE#NAME lead."""
    return f'<a id="{name}"></a>{code(text or name)}'


def prose(text: str) -> str:
    """Return a docstring as one line of Markdown, in which `<` and names with underscores or stars stay as they are."""
    words = " ".join(text.split()).replace("<", "&lt;")
    return "".join(part if part.startswith("`") else re.sub(r"([*_])", r"\\\1", part) for part in re.split(r"(`[^`]*`)", words))


def resolved(schema: Schema, document: Schema) -> Schema:
    """Return the schema that a reference names, with the reference's own description; any other schema unchanged."""
    if "$ref" not in schema:
        return schema
    held = document.get("components", {}).get("schemas", {}) | document.get("$defs", {}) | schema.get("$defs", {})
    return {**held[_name(schema)], **{key: schema[key] for key in ("description",) if schema.get(key)}}


def forms(schema: Schema, document: Schema) -> list[Schema]:
    """Return the alternatives of a schema, without null; the schema itself if it has none."""
    schema = resolved(schema, document)
    if choices := schema.get("anyOf") or schema.get("oneOf"):
        return [form for each in choices for form in forms(each, document)]
    return [] if schema.get("type") == "null" else [schema]


def values(schema: Schema) -> Schema | None:
    """Return the schema of the values of an object with free keys."""
    found = schema.get("additionalProperties") or next(iter(schema.get("patternProperties", {}).values()), None)
    return found if isinstance(found, dict) else None


def rows(schema: Schema, document: Schema, prefix: str = "") -> Iterator[tuple[str, str, str, str]]:
    """Yield (name, type, required, meaning) of an object's fields, each followed by the fields of objects in it."""
    for name, given in schema.get("properties", {}).items():
        field = resolved(given, document)
        needed = "yes" if name in schema.get("required", ()) else ""
        yield code(prefix + name), words(given, document), needed, field.get("description", "")
        for form in forms(field, document):
            within = "[]." if form.get("type") == "array" else "."
            yield from rows(resolved(form.get("items", form), document), document, prefix + name + within)


def words(schema: Schema, document: Schema, names: Mapping[str, str] = {}) -> str:
    """Return a type with its limits; `names` holds the words of basic types, and links for definitions."""
    if "$ref" in schema and _name(schema) in names:
        return names[_name(schema)]
    schema = resolved(schema, document)
    if literals := schema.get("enum", [schema["const"]] if "const" in schema else None):
        return " or ".join(code('""' if each == "" else "null" if each is None else str(each)) for each in literals)
    if choices := schema.get("anyOf") or schema.get("oneOf"):
        return " or ".join(filter(None, dict.fromkeys(words(each, document, names) for each in choices)))
    kind = schema.get("type", "anything")
    text = "secret" if schema.get("writeOnly") else "path" if schema.get("format") == "path" else names.get(kind, kind)
    if kind == "array":
        items = [*schema.get("prefixItems", ()), schema.get("items")]
        text = "list of " + " and ".join(dict.fromkeys(words(each, document, names) for each in items if each))
    elif kind == "object" and (within := values(schema)):
        text = f"{text} of {words(within, document, names)}"
    limits = [form.format(schema[key]) for key, form in LIMITS.items() if key in schema and (schema[key] or ":g" in form)]
    return ", ".join([text, *limits])


def _name(schema: Schema) -> str:
    return str(schema["$ref"].rpartition("/")[2])
