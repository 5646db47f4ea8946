"""Properties of the text alone, such as repetition: a model develops such habits if its reward can be gained without correct
code."""

from functools import lru_cache

from pygments.lexer import Lexer
from pygments.lexers import get_lexer_by_name, get_lexer_for_filename
from pygments.token import Comment, String
from pygments.util import ClassNotFound

from tasks.evaluation.heldout.duplicates import TOKEN

RUN = 3
"""Tokens of a run that counts as repeated."""
BEFORE = 400
"""Characters before a completion from which to determine whether it is in a comment."""
NO_CODE = (Comment, String.Doc)
NO_COMMENT = (Comment.Preproc, Comment.PreprocFile, Comment.Hashbang)


def repetition(text: str) -> float:
    """Return the share of a text's runs of three tokens that occur in it before: 0 to 1 (seq-rep-n of Welleck et al. 2020,
    "Neural text generation with unlikelihood training", section 6)."""
    tokens = TOKEN.findall(text)
    runs = [tuple(tokens[i : i + RUN]) for i in range(len(tokens) - RUN + 1)]
    return 1 - len(set(runs)) / len(runs) if runs else 0.0


def comment_share(text: str, prefix: str, language: str) -> float | None:
    """Return the share of a text's characters, without blanks, in comments and documentation strings: 0 to 1.

    None where the text is blank or Pygments does not know the language. A comment that begins more than BEFORE characters
    before the text is not recognised.
    """
    written = sum(not character.isspace() for character in text)
    if lexer_of(language) is None or not written:
        return None
    before = prefix[-BEFORE:].partition("\n")[2] if len(prefix) > BEFORE else prefix
    return _commented(before, text, language) / written


@lru_cache(maxsize=4096)
def _commented(before: str, text: str, language: str) -> int:
    """Return the characters of a text in comments, without blanks. Cached, since models often write the same text."""
    lexer, commented = lexer_of(language), 0
    assert lexer is not None
    # Some lexers recognise a comment only by the newline after it.
    for start, kind, value in lexer.get_tokens_unprocessed(before + text + "\n"):
        if any(kind in one for one in NO_CODE) and not any(kind in one for one in NO_COMMENT):
            commented += sum(not character.isspace() for character in value[max(0, len(before) - start) :])
    return commented


@lru_cache
def lexer_of(language: str) -> Lexer | None:
    """Return Pygments' lexer of a language, given by its extension or name; None if there is none."""
    for find, name in ((get_lexer_for_filename, f"code.{language}"), (get_lexer_by_name, language)):
        try:
            return find(name)
        except ClassNotFound:
            continue
    return None
