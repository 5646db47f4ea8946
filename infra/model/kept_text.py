"""Counts the characters of a completion that occur in the settled text.

As Zed counts them: the longest common subsequence of tokens (words and runs of symbols), weighed by their characters. Blanks
count in proportion.
"""

import re
from collections.abc import Sequence

TOKEN = re.compile(r"\w+|[^\w\s]+")
REACH = 2
"""The settled text counts up to this many times the completion's length (to the end of that line): in a long text the tokens of
any completion occur by chance."""


def kept_characters(shown: str, settled: str) -> int:
    """Return how many characters of the shown text occur in the settled text."""
    if shown in settled:
        return len(shown)
    end = settled.find("\n", REACH * len(shown))
    shown_tokens, settled_tokens = TOKEN.findall(shown), TOKEN.findall(settled[:end] if end >= 0 else settled)
    total = sum(map(len, shown_tokens))
    return len(shown) * common_weight(shown_tokens, settled_tokens) // total if total else 0


def common_weight(one: Sequence[str], other: Sequence[str]) -> int:
    """Return the characters of the heaviest common subsequence of two lists of tokens."""
    common = set(one) & set(other)
    if not common:
        return 0
    left, right = [token for token in one if token in common], [token for token in other if token in common]
    start, shortest = 0, min(len(left), len(right))
    while start < shortest and left[start] == right[start]:
        start += 1
    end = 0
    while end < shortest - start and left[-1 - end] == right[-1 - end]:
        end += 1
    weight = sum(map(len, left[:start])) + sum(map(len, left[len(left) - end :]))
    right = right[start : len(right) - end]
    best = [0] * (len(right) + 1)
    for token in left[start : len(left) - end]:
        diagonal, size = 0, len(token)
        for column, there in enumerate(right, 1):
            above = best[column]
            best[column] = diagonal + size if there == token else max(above, best[column - 1])
            diagonal = above
    return weight + best[-1]
