"""Control tokens of a tokenizer: those that end a completion, and that code never becomes, whatever text it holds."""

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from infra.model.fim.formats import MARKERS, SPECIAL_TOKENS

SHAPE = re.compile(r"<[|｜\[][^<>\s]+[|｜\]]>")
"""The shape of a control token: <|name|>, <｜name｜>, <[name]>. Qwen2.5-Coder's FIM tokens have it, and are not "special"."""
END_NAME = re.compile(r"end|eot|eos|eom|turn|</s>", re.IGNORECASE)
DECLARATIONS = ("generation_config.json", "config.json", "tokenizer_config.json")


def control_tokens(tokenizer: Tokenizer) -> dict[str, int]:
    """Return the control tokens of a tokenizer and their ids: its special tokens, and other added tokens that are markers by
    shape or by the table of formats."""
    added = {token.content: (number, token.special) for number, token in tokenizer.get_added_tokens_decoder().items()}
    found = {name: number for name, (number, special) in added.items() if (special and name.strip()) or is_marker(name)}
    named = {name: number for name in SPECIAL_TOKENS if (number := tokenizer.token_to_id(name)) is not None}
    return found | named


def is_marker(text: str) -> bool:
    """Return whether a token's text is a marker."""
    return text in MARKERS or bool(SHAPE.fullmatch(text))


def code_encoder(tokenizer: Tokenizer) -> Tokenizer:
    """Return a copy of a tokenizer that reads control tokens in a text as plain text; the ids of all tokens stay."""
    return _reading_plain_text(tokenizer.to_str())


@lru_cache(4)
def _reading_plain_text(text: str) -> Tokenizer:
    described, controls = json.loads(text), control_tokens(Tokenizer.from_str(text))
    for token in described["added_tokens"]:
        token["special"] = token["content"] in controls
    copy = Tokenizer.from_str(json.dumps(described))
    copy.encode_special_tokens = True
    return copy


def end_token_ids(tokenizer: Tokenizer, checkpoint: Path | None = None) -> list[int]:
    """Return the tokens that end a completion, sorted: the control tokens, none of which belongs in code, and those that the
    checkpoint declares in its generation_config.json, config.json, tokenizer_config.json or chat template."""
    found = set(control_tokens(tokenizer).values())
    if checkpoint is not None:
        found |= _declared(tokenizer, checkpoint)
    return sorted(found)


def _declared(tokenizer: Tokenizer, checkpoint: Path) -> set[int]:
    found = set[int]()
    templates = [file.read_text() for file in [checkpoint / "chat_template.jinja"] if file.exists()]
    for name in DECLARATIONS:
        file = checkpoint / name
        fields = json.loads(file.read_text()) if file.exists() else {}
        if not isinstance(fields, dict):
            raise ValueError(f"{file}: expected a JSON object, got {type(fields).__name__}")
        declared = fields.get("eos_token_id")
        found.update(each for each in (declared if isinstance(declared, list) else [declared]) if isinstance(each, int))
        if isinstance(end := _content(fields.get("eos_token")), str) and (number := tokenizer.token_to_id(end)) is not None:
            found.add(number)
        templates += _templates(fields.get("chat_template"))
    for number, token in tokenizer.get_added_tokens_decoder().items():
        if END_NAME.search(token.content) and any(token.content in template for template in templates):
            found.add(number)
    return found


def _content(token: Any) -> Any:
    """Return the text of a token, which tokenizer_config.json names by its text or describes by an object."""
    return token.get("content") if isinstance(token, Mapping) else token


def _templates(declared: Any) -> list[str]:
    """Return the chat templates: one text, or a list of named ones."""
    if isinstance(declared, list):
        return [each["template"] for each in declared if isinstance(each, Mapping) and isinstance(each.get("template"), str)]
    return [declared] if isinstance(declared, str) else []
