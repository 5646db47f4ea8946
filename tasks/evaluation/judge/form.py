"""The form of a request to a chat endpoint, and the form to try after an endpoint has refused one.

OpenAI-compatible endpoints differ in the fields that they take: DeepSeek refuses json_schema, others every response_format;
OpenAI's reasoning models want max_completion_tokens and no temperature, and think before they answer.
"""

import json
import re
from dataclasses import dataclass, replace
from typing import Any, Literal

from tasks.evaluation.judge.base import HIGHEST, LOWEST

SCHEMA = {
    "type": "object",
    "properties": {"score": {"type": "integer", "minimum": int(LOWEST), "maximum": int(HIGHEST)}},
    "required": ["score"],
    "additionalProperties": False,
}
ONLY_JSON = f'Answer with JSON only: {{"score": number from {LOWEST:g} to {HIGHEST:g}}}.'
"""Added to instructions without the word JSON where no schema is sent; endpoints require the word for json_object."""
FEW, MANY = 64, 2048
"""Tokens of an answer: of a score, and of a score after a thought."""
FINAL = frozenset({401, 402, 403, 407, 429})
"""HTTP statuses that are about the caller and not about a field."""
FORMAT = re.compile(
    r"response.?format|json.?(schema|object|mode|output)|structured|guided|grammar|'json'|requested parameters", re.IGNORECASE
)
TOKENS = re.compile(r"max_tokens", re.IGNORECASE)
SYSTEM = re.compile(r"system.{0,20}(role|message|prompt)|role.{0,60}system|roles must alternate", re.IGNORECASE)
TEMPERATURE = re.compile(r"temperature", re.IGNORECASE)
CONTEXT = re.compile(r"context.?(length|window|size)|too long|too many tokens|input.{0,20}tokens|maximum context", re.IGNORECASE)
FILTER = re.compile(
    r"content.?(filter|policy|management|moderation)|content exists risk|inspection|safety|responsible.?ai|inappropriate|flagged"
    r"|prohibited",
    re.IGNORECASE,
)
"""Words of a refusal for the text of one item (OpenAI, Azure, DeepSeek, DashScope)."""


@dataclass(frozen=True)
class Form:
    """The optional fields of a request."""

    response_format: Literal["json_schema", "json_object", "none"] = "json_schema"
    tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    tokens: int = FEW
    temperature: bool = True
    system: bool = True
    """Whether the instructions are a message of their own, which some chat templates refuse."""

    def body(self, model: str, instructions: str, material: dict[str, str]) -> dict[str, Any]:
        wanted = self.response_format
        if wanted != "json_schema" and "json" not in instructions.lower():
            instructions = f"{instructions}\n{ONLY_JSON}"
        content = json.dumps(material)
        messages = [{"role": "system", "content": instructions}, {"role": "user", "content": content}]
        if not self.system:
            messages = [{"role": "user", "content": f"{instructions}\n\n{content}"}]
        body: dict[str, Any] = {"model": model, self.tokens_field: self.tokens, "messages": messages}
        if self.temperature:
            body["temperature"] = 0
        if wanted == "json_schema":
            body["response_format"] = {"type": wanted, "json_schema": {"name": "score", "strict": True, "schema": SCHEMA}}
        elif wanted == "json_object":
            body["response_format"] = {"type": wanted}
        return body

    def lower(self) -> "Form | None":
        """Return the form that asks for less structure; None if this one asks for none."""
        if self.response_format == "none":
            return None
        return replace(self, response_format="json_object" if self.response_format == "json_schema" else "none")

    def longer(self) -> "Form | None":
        """Return the form for an answer that was cut off; None if it was already long."""
        return replace(self, tokens=MANY) if self.tokens < MANY else None

    def after(self, status: int, words: str, proven: bool) -> "Form | None":
        """Return the form to try after an answer with an error; None if its form is not the reason.

        Args:
            status: HTTP status.
            words: the server's message.
            proven: whether the endpoint has accepted a request of this form.
        """
        if status in FINAL or CONTEXT.search(words):
            return None
        if self.temperature and TEMPERATURE.search(words):
            return replace(self, temperature=False)
        if self.tokens_field == "max_tokens" and TOKENS.search(words):
            return replace(self, tokens_field="max_completion_tokens")
        if FORMAT.search(words):
            return self.lower()
        if self.system and SYSTEM.search(words):
            return replace(self, system=False)
        # A gateway may give no reason.
        return self.lower() if status in (400, 415, 422, 501) and not words and not proven else None
