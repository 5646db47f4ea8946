"""CrossCodeEval's identifier match: whether a completion uses the right names (Ding et al. 2023, section 3.2)."""

import re
from collections import Counter

from pygments.token import Keyword, Name

from tasks.evaluation.metrics.habits import lexer_of

WORD = re.compile(r"[^\W\d]\w*")


def agreement(completion: str, truth: str, language: str) -> float | None:
    """Return the F1 of a completion's names against those of the true text, 0 to 1; a name counts as often as it occurs.

    None where the true text has no name. Without a lexer of the language, every word is a name.
    """
    wanted = names(truth, language)
    if not wanted:
        return None
    found = names(completion, language)
    return 2 * (found & wanted).total() / (found.total() + wanted.total())


def names(text: str, language: str) -> Counter[str]:
    """Return the names in a text with their counts, without keywords, string literals and comments."""
    lexer = lexer_of(language)
    if lexer is None:
        return Counter(WORD.findall(text))
    tokens = lexer.get_tokens_unprocessed(text)
    return Counter(value for _, kind, value in tokens if kind in Name and kind not in Keyword and WORD.fullmatch(value))
