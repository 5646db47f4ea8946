"""ProxyAI (CodeGPT) of JetBrains' IDEs. Its requests are OpenAI's, but two of its FIM templates put blanks around the code."""

from dataclasses import replace
from typing import Any

from serving.gateway.dialects.base import Dialect, Fields, ParsedCompletion, ServedModel
from serving.gateway.dialects.openai import OPENAI
from serving.gateway.dialects.openai import parse as read

HEADER, TAGS = "x-llm-application-tag", ("proxyai", "codegpt")
"""The header of its templates of a custom service."""
PADDED = (
    ("<|fim_prefix|> ", " <|fim_suffix|>", " <|fim_middle|>"),
    ("<fim_prefix>", " <fim_suffix> ", "<fim_middle>"),
)
"""The markers of its templates CodeQwen2.5 and StarCoder2 with their blanks (codecompletions/InfillPromptTemplate.kt)."""


def parse(body: Fields, model: ServedModel) -> ParsedCompletion:
    """Read a body of /v1/completions without the blanks of a template: the cursor stands before them. Raises BadRequest."""
    return read({**body, "prompt": _plain(body.get("prompt"))}, model)


def _plain(prompt: Any) -> Any:
    for begin, between, end in PADDED:
        if isinstance(prompt, str) and prompt.endswith(end) and begin in prompt and between in prompt:
            for marker in (begin, between, end):
                prompt = prompt.replace(marker, marker.strip())
    return prompt


(FORMAT,) = OPENAI.completions
PROXYAI = Dialect(
    name="proxyai",
    recognizes=lambda body, headers: headers.get(HEADER, "").lower() in TAGS,
    completions=(replace(FORMAT, parse=parse),),
)
