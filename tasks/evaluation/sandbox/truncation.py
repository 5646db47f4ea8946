"""SAFIM's syntax-aware truncation: a completion that continues too far is scored by its well-formed beginning.

Gong et al. 2024, "Evaluation of LLMs on Syntax-Aware Code Fill-in-the-Middle Tasks", section 3.3: the completion is cut to the
longest prefix with which the program is well formed, here by tree-sitter's errors, at ends of lines and then of tokens.
"""

import re
from collections.abc import Iterator

from tasks.evaluation.metrics import syntax

TOKEN_END = re.compile(r"\w+|[^\w\s]")
MOST_CUTS = 64
"""Most prefixes that are tried, so that a long completion costs a bounded time."""


def truncated(completion: str, truth: str, before: str, after: str, language: str) -> str:
    """Return the longest prefix with which the program has no more syntax errors than with the true text.

    The whole completion if there is no such prefix, or no grammar of the language.
    """
    if language not in syntax.BY_LANGUAGE:
        return completion
    least = syntax.errors(before + truth + after, language)
    for number, beginning in enumerate(beginnings(completion)):
        if number == MOST_CUTS:
            break
        if syntax.errors(before + beginning + after, language) <= least:
            return beginning
    return completion


def beginnings(text: str) -> Iterator[str]:
    """Yield a text, then what is left without its last lines, then what is left of the first line without its last tokens."""
    yield text
    lines = text.split("\n")
    for count in range(len(lines) - 1, 0, -1):
        yield "\n".join(lines[:count])
    for token in reversed(list(TOKEN_END.finditer(lines[0]))):
        if token.end() < len(lines[0]):
            yield lines[0][: token.end()]
