"""/openapi.json: helpers for its schemas, and an app that documents its POST routes.

A test sends bodies that the schemas allow and bodies that they forbid, so schema and parser stay consistent.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI
from starlette.types import Receive, Scope, Send

MAX_STOPS = 64
"""Stop strings in one request."""

Schema = dict[str, Any]
Answers = dict[int | str, Schema]
"""Responses by status."""
TEXT: Schema = {"type": "string"}
NULL: Schema = {"type": "null"}
FLAG: Schema = {"anyOf": [{"type": "boolean"}, NULL]}
STOP: Schema = {"anyOf": [TEXT, {"type": "array", "items": TEXT, "maxItems": MAX_STOPS}, NULL]}
USER: Schema = {"anyOf": [TEXT, NULL], "description": "the user's id, if the header X-User-ID does not give it"}


def object_schema(required: tuple[str, ...], **fields: Schema) -> Schema:
    """Return the schema of an object with the fields that the server reads; it may have others."""
    return {"type": "object", "required": list(required), "properties": fields}


def optional(schema: Schema) -> Schema:
    """Return a schema that allows null too."""
    return {"anyOf": [schema, NULL]}


def any_of(schemas: Sequence[Schema]) -> Schema:
    """Return a schema that allows a value if any of these allows it; two dialects may have the same one."""
    different = [schema for number, schema in enumerate(schemas) if schema not in schemas[:number]]
    return {"anyOf": different} if len(different) > 1 else different[0]


def answer_schema(required: tuple[str, ...], **fields: Schema) -> Schema:
    """Return the schema of an object that the server sends; it has no other fields."""
    return {**object_schema(required, **fields), "additionalProperties": False}


HEALTH = answer_schema(("status",), status={"const": "ok"})
ERROR = answer_schema(
    ("error",),
    error=answer_schema(("message", "type", "param", "code"), message=TEXT, type=TEXT, param=optional(TEXT), code=NULL),
)
EVENT: Schema = object_schema(("data",), data={"type": "string", "pattern": r"^(\{.*\}|\[DONE\])$"})
"""A server-sent event: a JSON object, or [DONE], which ends OpenAI's streams. OpenAPI describes the events of a stream by
itemSchema, from version 3.2 on."""
SECURITY: Schema = {"security": [{"bearer": []}, {"apiKey": []}]}
"""Of a route that needs a token."""
SCHEMES: Schema = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "apiKey": {"type": "apiKey", "in": "header", "name": "api-key"},
}


def answers(schema: Schema, *statuses: int, events: bool = False) -> Answers:
    """Return the responses of a route: JSON of a schema with these statuses (none: 200), or server-sent events too."""
    content: Schema = {"application/json": {"schema": schema}}
    if events:
        content["text/event-stream"] = {"itemSchema": EVENT}
    return {status: {"description": HTTPStatus(status).phrase, "content": content} for status in statuses or (200,)}


def header(name: str, description: str, **schema: object) -> Schema:
    """Return the parameter of an optional header."""
    return {"name": name, "in": "header", "description": description, "schema": {"type": "string", **schema}}


CALLER_HEADERS = (
    header("X-Project-ID", "the project", pattern="^[A-Za-z0-9_.-]{1,64}$"),
    header("X-User-ID", "the user; read only from a token with the role users"),
    header("X-Tabloop-Opt-Out", "1: the text of this request is not recorded"),
)


@dataclass(frozen=True)
class Post:
    """The documentation of a POST route."""

    body: Schema
    answers: Answers
    headers: tuple[Schema, ...] = ()
    """Headers in addition to those of every caller."""

    def operation(self) -> Schema:
        """Return OpenAPI's operation."""
        content = {"application/json": {"schema": self.body}}
        return {
            "parameters": [*CALLER_HEADERS, *self.headers],
            "requestBody": {"required": True, "content": content},
            "responses": {str(status): answer for status, answer in self.answers.items()},
            **SECURITY,
        }


class DocumentedApp(FastAPI):
    """An app whose /openapi.json includes its POST routes: they are Starlette's, and FastAPI does not see their bodies."""

    def __init__(self, title: str) -> None:
        # A redirect would cost the body or the token in most clients.
        super().__init__(title=title, docs_url=None, redoc_url=None, redirect_slashes=False)
        self.openapi_version = "3.2.0"
        self.posts: dict[str, Post] = {}
        """POST routes by path."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer HEAD, by which some balancers and monitors probe, as GET: uvicorn then sends no body."""
        head = scope["type"] == "http" and scope["method"] == "HEAD"
        await super().__call__({**scope, "method": "GET"} if head else scope, receive, send)

    def openapi(self) -> dict[str, Any]:
        """Return the document. Every route can also answer an error."""
        document = super().openapi()
        document.setdefault("components", {})["securitySchemes"] = SCHEMES
        for path, post in self.posts.items():
            document["paths"].setdefault(path, {})["post"] = post.operation()
        failure = {"description": "an error in OpenAI's shape", "content": {"application/json": {"schema": ERROR}}}
        for operations in document["paths"].values():
            for operation in operations.values():
                operation["responses"]["default"] = failure
        return document
