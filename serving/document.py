"""What routes take, as /openapi.json tells it: of feedback the models that check it, of completions what dialects.py checks.

A test sends what is described here, and what is not, so that the two cannot part.
"""

from typing import Any

from fastapi import FastAPI

from serving.dialects import MOST_STOPS, REFUSED

Schema = dict[str, Any]
TEXT: Schema = {"type": "string"}
NONE: Schema = {"type": "null"}
FLAG: Schema = {"anyOf": [{"type": "boolean"}, NONE]}
STOP: Schema = {"anyOf": [TEXT, {"type": "array", "items": TEXT, "maxItems": MOST_STOPS}, NONE]}
USER: Schema = {"description": "whose completion it is, where X-User-ID does not say it"}


def _object(needed: tuple[str, ...], **fields: Schema) -> Schema:
    """Of a client's body what is used; others may stand there."""
    return {"type": "object", "required": list(needed), "properties": fields}


def _perhaps(schema: Schema) -> Schema:
    return {"anyOf": [schema, NONE]}


OPENAI = _object(
    ("prompt",),
    prompt={"anyOf": [TEXT, {"type": "array", "items": TEXT, "minItems": 1, "maxItems": 1}]},
    suffix=_perhaps(TEXT),
    max_tokens=_perhaps({"type": "integer", "minimum": 1}),
    stop=STOP,
    stream=FLAG,
    stream_options=_perhaps(_object((), include_usage=FLAG)),
    **{name: {"enum": [*fine, None], "description": why} for name, (fine, why) in REFUSED.items()},
    user=USER,
)
TABBY_SEGMENTS = _object(("prefix",), prefix=TEXT, suffix=_perhaps(TEXT), filepath=_perhaps(TEXT))
TABBY = _object(("segments",), segments=TABBY_SEGMENTS, language=_perhaps(TEXT), user=USER)
INFILL = _object(
    ("input_prefix", "input_suffix"),
    input_prefix=TEXT,
    input_suffix=TEXT,
    prompt=_perhaps(TEXT),
    n_predict=_perhaps({"type": "integer", "minimum": -1}),
    t_max_predict_ms=_perhaps({"type": "number"}),
    stop=STOP,
    stream=FLAG,
    response_fields=_perhaps({"type": "array", "items": TEXT}),
    user=USER,
)
COMPLETIONS: dict[str, Schema] = {"/v1/completions": {"anyOf": [OPENAI, TABBY]}, "/infill": INFILL}


class Documented(FastAPI):
    """An app that tells of its POST routes too, which are Starlette's: FastAPI knows nothing of what they take."""

    def __init__(self, title: str) -> None:
        super().__init__(title=title, docs_url=None, redoc_url=None)
        self.bodies: dict[str, Schema] = {}
        """What they take, by path."""

    def openapi(self) -> dict[str, Any]:
        found = super().openapi()
        for path, schema in self.bodies.items():
            found["paths"].setdefault(path, {})["post"] = {
                "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}},
                "responses": {"200": {"description": "done"}, "default": {"description": "an error in OpenAI's shape"}},
            }
        return found
