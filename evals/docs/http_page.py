"""The page of the HTTP API from the apps' OpenAPI documents, and the page of the metrics."""

from collections.abc import Iterable, Iterator, Mapping

from evals.docs.schema import INTROS, Schema, code, forms, named, prose, rows, table, words

PORTS = {"completions": "Completions port", "feedback": "Feedback port"}


def metrics_page(metrics: Iterable[Schema]) -> str:
    cells = [(named(one["name"]), one["kind"], ", ".join(map(code, one["labels"])), prose(one["help"])) for one in metrics]
    return INTROS["metrics"] + table(("metric", "type", "labels", "what it counts"), cells)


def http_page(documents: Mapping[str, Schema]) -> str:
    """Return the page of the routes in Markdown; `documents` holds the OpenAPI document of each port."""
    parts = [INTROS["http"]]
    for port, title in PORTS.items():
        parts.append(f"## {title}\n\n")
        for path, operations in sorted(documents[port]["paths"].items()):
            for method, operation in operations.items():
                if port == "feedback" and documents["completions"]["paths"].get(path, {}).get(method) == operation:
                    parts.append(f"`{method.upper()} {path}`: as on the completions port.\n\n")
                else:
                    parts.extend(_route(path, method, operation, documents[port]))
    return "".join(parts)


def _route(path: str, method: str, operation: Schema, document: Schema) -> Iterator[str]:
    yield f"### {method.upper()} {path}\n\n"
    yield "Needs a token.\n\n" if operation.get("security") else "Needs no token.\n\n"
    if parameters := operation.get("parameters"):
        cells = [(code(p["name"]), p["in"], words(p["schema"], document), p.get("description", "")) for p in parameters]
        yield table(("parameter", "in", "type", "meaning"), cells) + "\n"
    if body := operation.get("requestBody"):
        for media, content in body["content"].items():
            yield from _fields(f"Body ({code(media)})", content["schema"], document)
    for status, answer in operation["responses"].items():
        if status != "default":
            for media, content in answer.get("content", {}).items():
                yield from _fields(f"{status} ({code(media)})", content.get("schema") or content["itemSchema"], document)


def _fields(title: str, schema: Schema, document: Schema) -> Iterator[str]:
    """Yield a table of an object's fields, one for each of its forms, or the type of a non-object."""
    every = forms(schema, document)
    for number, form in enumerate(every, 1):
        which = f", form {number} of {len(every)}" if len(every) > 1 else ""
        if cells := list(rows(form, document)):
            yield f"{title}{which}:\n\n" + table(("field", "type", "required", "meaning"), cells) + "\n"
        else:
            yield f"{title}{which}: {words(form, document)}.\n\n"
