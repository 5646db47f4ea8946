"""Reads the score in the answer of a chat model: JSON, also behind a thought, in a fence, among words or with comments."""

import ast
import json
import re
from collections.abc import Iterator
from typing import Any

from tasks.evaluation.judge.base import HIGHEST, LOWEST, Failed, Judgement, Scored

SHOWN = 200
"""Characters of an answer in the detail of a failure."""
THOUGHT = re.compile(r"\A.*</(think|thinking|thought|reasoning)>", re.DOTALL | re.IGNORECASE)
UNENDED = re.compile(r"\A\s*<(think|thinking|thought|reasoning)>.*", re.DOTALL | re.IGNORECASE)
COMMENT = re.compile(r'("(?:\\.|[^"\\])*")|//[^\n]*|/\*.*?\*/|(?<=\s)#[^\n]*', re.DOTALL)
TRAILING_COMMA = re.compile(r",(?=\s*[}\]])")
NUMBER = re.compile(r"([-+]?[0-9]+(?:\.[0-9]+)?)\s*(?:(?:/|out\s+of)\s*10(?:\.0+)?)?", re.IGNORECASE)


def read_score(body: str) -> Judgement:
    """Return the score in the body of a chat completion, or the failure where it is malformed, cut off or out of range."""
    try:
        choice = json.loads(body.removeprefix("\ufeff"))["choices"][0]
        message, finish = choice["message"], choice.get("finish_reason")
        content = text_of(message.get("content"))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        return Failed("garbage", f"{type(error).__name__} in {body[:SHOWN]!r}")
    scores = list(scores_in(content))
    if scores and all(str(score) == str(scores[0]) for score in scores):
        return judged(scores[0])
    if finish == "content_filter" or message.get("refusal"):
        return Failed("declined", f"the model declines: {str(message.get('refusal') or finish)[:SHOWN]!r}")
    if finish in ("length", "max_tokens"):
        return Failed("cut_off", f"finish_reason {finish!r} after {content[-SHOWN:]!r}")
    found = f"{len(scores)} different scores" if scores else "no score"
    return Failed("garbage", f"{found} in {(content or body)[:SHOWN]!r}")


def text_of(content: Any) -> str:
    """Return the text of a message's content, which may be a list of parts; "" for null."""
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    if isinstance(content, dict):  # some servers parse the JSON
        return json.dumps(content)
    return "" if content is None else str(content)


def scores_in(content: str) -> Iterator[Any]:
    """Yield the value of "score" in each JSON object of a text; the number itself where the text is only that."""
    text = UNENDED.sub("", THOUGHT.sub("", content)).replace("\ufeff", "").strip()
    if NUMBER.fullmatch(text):
        yield text
        return
    yield from (score for value in objects_in(text) for score in named_score(value))


def objects_in(text: str) -> Iterator[dict[str, Any]]:
    """Yield the objects of a text from left to right, as JSON, as JSON with comments, or as a literal of Python."""
    start = text.find("{")
    while start >= 0:
        value, end = object_at(text, start)
        if value is not None:
            yield value
        start = text.find("{", end)


def object_at(text: str, start: int) -> tuple[dict[str, Any] | None, int]:
    """Return the object that begins at an index, and the index behind it; None where none begins."""
    try:
        value, end = json.JSONDecoder().raw_decode(text, start)
        return value, end
    except (ValueError, RecursionError):
        pass
    end = text.find("}", start) + 1
    if not end:
        return None, len(text)
    lenient = TRAILING_COMMA.sub("", COMMENT.sub(lambda found: found[1] or "", text[start:end]))
    for read in (json.loads, ast.literal_eval):
        try:
            value = read(lenient)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
        if isinstance(value, dict):
            return value, end
    return None, start + 1


def named_score(value: dict[str, Any]) -> Iterator[Any]:
    """Yield the values of "score" in an object and in the objects in it."""
    for name, inner in value.items():
        if str(name).strip().lower() == "score":
            yield inner
        elif isinstance(inner, dict):
            yield from named_score(inner)


def judged(score: Any) -> Judgement:
    """Return the judgement of a score: a number, or a text such as "7", "7.5" or "7/10"."""
    number = score
    if isinstance(score, str):
        found = NUMBER.fullmatch(score.strip())
        number = float(found[1]) if found else score
    if isinstance(number, bool) or not isinstance(number, int | float):
        return Failed("garbage", f"score is {score!r:.{SHOWN}}, expected a number from {LOWEST:g} to {HIGHEST:g}")
    if not LOWEST <= number <= HIGHEST:  # not a number is in no range
        return Failed("out_of_range", f"score is {score!r:.{SHOWN}}, expected {LOWEST:g} to {HIGHEST:g}")
    return Scored(float(number))
