"""The page of the HTTP API from the apps' OpenAPI documents, and the page of the metrics."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from infra.docs_build.markdown import anchor, code, prose, table

Schema = Mapping[str, Any]
HTTP_INTRO = """# HTTP API

Every route with the fields of its body and of its answers, from the documents that the app serves as `GET /openapi.json`.
[API](api.md) says what the routes are for, who may call them and what they refuse. Every route may also answer an error in
OpenAI's shape.

"""
METRICS_INTRO = """# Metrics

What `GET /metrics` of the completions port answers, in Prometheus' exposition format. [Monitoring](monitoring.md) says how to
read them.

"""
PORTS = {"completions": "Completions port", "feedback": "Feedback port"}


def metrics_page(metrics: Iterable[Schema]) -> str:
    """Return the page of the metrics in Markdown."""
    rows = [
        (
            anchor(metric["name"]) + code(metric["name"]),
            metric["kind"],
            ", ".join(map(code, metric["labels"])),
            prose(metric["help"]),
        )
        for metric in metrics
    ]
    return METRICS_INTRO + table(("metric", "type", "labels", "what it counts"), rows)


def http_page(documents: Mapping[str, Schema]) -> str:
    """Return the page of the routes in Markdown; `documents` holds the OpenAPI document of each port."""
    parts = [HTTP_INTRO]
    for port, title in PORTS.items():
        parts.append(f"## {title}\n\n")
        for path, operations in sorted(documents[port]["paths"].items()):
            for method, operation in operations.items():
                if port == "feedback" and _same_route(documents["completions"], path, method, operation):
                    parts.append(f"`{method.upper()} {path}`: as on the completions port.\n\n")
                else:
                    parts.extend(_route(path, method, operation, documents[port]))
    return "".join(parts)


def _same_route(document: Schema, path: str, method: str, operation: Schema) -> bool:
    return bool(document["paths"].get(path, {}).get(method) == operation)


def _route(path: str, method: str, operation: Schema, document: Schema) -> Iterator[str]:
    yield f"### {method.upper()} {path}\n\n"
    yield "Needs a token.\n\n" if operation.get("security") else "Needs no token.\n\n"
    if parameters := operation.get("parameters"):
        rows = [
            (code(each["name"]), each["in"], _type(each["schema"], document), each.get("description", "")) for each in parameters
        ]
        yield table(("parameter", "in", "type", "meaning"), rows) + "\n"
    if body := operation.get("requestBody"):
        for media, content in body["content"].items():
            yield from _fields(f"Body ({code(media)})", content["schema"], document)
    for status, answer in operation["responses"].items():
        if status != "default":
            for media, content in answer.get("content", {}).items():
                yield from _fields(f"{status} ({code(media)})", content.get("schema") or content["itemSchema"], document)


def _fields(title: str, schema: Schema, document: Schema) -> Iterator[str]:
    """Yield a table of an object's fields, one for each form that it may have, or the type of what is no object."""
    forms = [_resolved(form, document) for form in _resolved(schema, document).get("anyOf", [schema])]
    for number, form in enumerate(forms, 1):
        which = f", form {number} of {len(forms)}" if len(forms) > 1 else ""
        if rows := list(_rows(form, document)):
            yield f"{title}{which}:\n\n" + table(("field", "type", "required", "meaning"), rows) + "\n"
        else:
            yield f"{title}{which}: {_type(form, document)}.\n\n"


def _rows(schema: Schema, document: Schema, prefix: str = "") -> Iterator[tuple[str, str, str, str]]:
    """Yield the rows of an object's fields, with those of objects in it below their field."""
    required = schema.get("required", ())
    for name, given in schema.get("properties", {}).items():
        field = _resolved(given, document)
        yield code(prefix + name), _type(field, document), "yes" if name in required else "", field.get("description", "")
        for form in [_resolved(each, document) for each in field.get("anyOf", [field])]:
            within = "[]." if form.get("type") == "array" else "."
            yield from _rows(_resolved(form.get("items", form), document), document, prefix + name + within)


def _resolved(schema: Schema, document: Schema) -> Schema:
    """Return what a reference refers to; any other schema as it is."""
    if "$ref" not in schema:
        return schema
    name = schema["$ref"].rpartition("/")[2]
    held = document.get("components", {}).get("schemas", {}) | schema.get("$defs", {})
    return {**held[name], **{key: value for key, value in schema.items() if key == "description"}}


def _type(schema: Schema, document: Schema) -> str:
    """Return a schema's type in words, with its limits."""
    schema = _resolved(schema, document)
    if "const" in schema:
        return code(str(schema["const"]))
    if "enum" in schema:
        return " or ".join(code('""' if each == "" else "null" if each is None else str(each)) for each in schema["enum"])
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_type(each, document) for each in schema["anyOf"]))
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}), document)}" + _limit(schema, "Items", "entries")
    limits = [f"{words} {schema[key]:g}" for key, words in (("minimum", "at least"), ("maximum", "at most")) if key in schema]
    return schema.get("type", "anything") + _limit(schema, "Length", "characters") + "".join(f", {limit}" for limit in limits)


def _limit(schema: Schema, key: str, unit: str) -> str:
    words = [
        f"{word} {schema[bound + key]} {unit}"
        for bound, word in (("min", "at least"), ("max", "at most"))
        if bound + key in schema
    ]
    return "".join(f", {each}" for each in words)
