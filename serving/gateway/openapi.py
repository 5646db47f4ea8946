"""/openapi.json: the words of its schemas, and an app that documents its POST routes.

A test sends what the schemas describe, and what they do not, so that schema and parser cannot part.
"""

from typing import Any

from fastapi import FastAPI

MAX_STOPS = 64
"""Stop strings in one request."""

Schema = dict[str, Any]
TEXT: Schema = {"type": "string"}
NULL: Schema = {"type": "null"}
FLAG: Schema = {"anyOf": [{"type": "boolean"}, NULL]}
STOP: Schema = {"anyOf": [TEXT, {"type": "array", "items": TEXT, "maxItems": MAX_STOPS}, NULL]}
USER: Schema = {"description": "the user's id, if the header X-User-ID does not give it"}


def object_schema(required: tuple[str, ...], **fields: Schema) -> Schema:
    """Return the schema of an object with the fields that the server reads; it may have others."""
    return {"type": "object", "required": list(required), "properties": fields}


def optional(schema: Schema) -> Schema:
    """Return a schema that allows null too."""
    return {"anyOf": [schema, NULL]}


ERROR = object_schema(
    ("error",),
    error=object_schema(("message", "type", "param", "code"), message=TEXT, type=TEXT, param=optional(TEXT), code=NULL),
)


class DocumentedApp(FastAPI):
    """An app whose /openapi.json includes its POST routes: they are Starlette's, and FastAPI does not see their bodies."""

    def __init__(self, title: str) -> None:
        super().__init__(title=title, docs_url=None, redoc_url=None)
        self.bodies: dict[str, Schema] = {}
        """Schema of the body by path."""

    def openapi(self) -> dict[str, Any]:
        document = super().openapi()
        for path, schema in self.bodies.items():
            document["paths"].setdefault(path, {})["post"] = {
                "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}},
                "responses": {"200": {"description": "done"}},
            }
        error = {"description": "an error in OpenAI's shape", "content": {"application/json": {"schema": ERROR}}}
        for operations in document["paths"].values():
            for operation in operations.values():
                operation["responses"]["default"] = error
        return document
