"""Fill-in-the-middle prompts: the formats of editors, and the token ids of the served model."""

from infra.model.fim.formats import (
    END,
    FILE,
    FORMATS,
    MIDDLE,
    PAD,
    PREFIX,
    REFUSED,
    REPOSITORY,
    SPECIAL_TOKENS,
    SUFFIX,
    Format,
    Order,
    Refused,
)
from infra.model.fim.prompts import Context, parse_prompt, path_of, read_request, request_context
from infra.model.fim.rendering import FRAME_TOKENS, Renderer
from infra.model.fim.tokens import code_encoder, control_tokens, end_token_ids, is_marker

__all__ = [
    "END",
    "FILE",
    "FORMATS",
    "FRAME_TOKENS",
    "MIDDLE",
    "PAD",
    "PREFIX",
    "REFUSED",
    "REPOSITORY",
    "SPECIAL_TOKENS",
    "SUFFIX",
    "Context",
    "Format",
    "Order",
    "Refused",
    "Renderer",
    "code_encoder",
    "control_tokens",
    "end_token_ids",
    "is_marker",
    "parse_prompt",
    "path_of",
    "read_request",
    "request_context",
]
