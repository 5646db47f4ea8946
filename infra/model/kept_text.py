"""Counts the characters of a completion that stand in the settled text.

As Zed counts them: the longest common subsequence of tokens (words, numbers, operators, signs), weighed by their characters.
Blanks count in proportion, so a formatter's lines and spaces change nothing. A part of a token is no token: "pass" does not stand
in "bypass", nor "=" in "==".
"""

import re
import unicodedata
from collections.abc import Sequence
from typing import Any

NUMBER = r"0[xXbBoO]\w+|\d\w*(?:\.\d\w*)*(?:(?<=[eE])[+-]\d+)?"
WORD = r"[\w$]+"
QUOTES = r'"""|\'\'\'|```'
OPERATOR = (
    r">>>=|===|!==|<=>|<<=|>>=|\*\*=|//=|&&=|\|\|=|\?\?=|\.\.[.=]|->|=>|<-|:=|::|\?\.|\?\?|&&|\|\||\+\+|--|\*\*|//|/\*|\*/|<<|>>|"
    r"\.\.|=~|[=!<>+\-*/%&|^~@]="
)
"""Operators of more than one sign, in the languages of infra/model/language.py; the longest comes first."""
TOKEN = re.compile(rf"{NUMBER}|{WORD}|{QUOTES}|{OPERATOR}|\S")
IDEOGRAPHS = (("\u3040", "\u309f"), ("\u3400", "\u9fff"), ("\uf900", "\ufaff"), ("\U00020000", "\U0003ffff"))
"""Hiragana and ideographs, which are written without blanks: each is a word (Unicode Standard Annex 29, section 4.1)."""
JOINERS = "\u200c\u200d"
"""Characters that identifiers hold beside letters, digits and marks (Unicode Standard Annex 31, section 2.3)."""
REACH = 2
"""The settled text counts up to this many times the completion's length, blanks left out: in a long text the tokens of any
completion occur by chance. The line in which that is counts too."""
LONG_LINE = 120
"""Characters of that line that count at most."""


def kept_characters(shown: str, settled: str) -> int:
    """Return how many characters of the shown text stand in the settled text at its place; 0 for a blank text."""
    if settled.startswith(shown) and shown.strip() and (len(settled) == len(shown) or settled[len(shown)].isspace()):
        return len(shown)
    wanted = tokens(shown)
    total = sum(map(len, wanted))
    if not total:
        return 0
    if settled.isascii() and not any(token in settled for token in wanted):  # other texts may stand in another form of Unicode
        return 0
    found = tokens(settled, REACH * total)
    if "\n".join(["", *wanted, ""]) in "\n".join(["", *found, ""]):  # no token holds a line end
        return len(shown)
    return len(shown) * common_weight(wanted, found) // total


def kept_of_part(shown: str, part: int, settled: str) -> int:
    """Return how many of the first `part` characters of the shown text stand in the settled text at its place.

    A token in which the part ends counts as a whole: the developer may have typed the rest of it.
    """
    if part >= len(shown):
        return kept_characters(shown, settled)
    end = next((match.end() for match in TOKEN.finditer(shown) if match.start() < part < match.end()), part)
    return min(part, kept_characters(shown[:end], settled))


def tokens(text: str, reach: int | None = None) -> list[str]:
    """Return the tokens of a text; with `reach`, up to the end of the line in which so many of their characters are."""
    text, letters = _letters(text)
    if letters is text and (reach is None or len(text) < reach):
        return TOKEN.findall(text)
    found: list[str] = []
    size, stop = 0, len(text)
    for match in TOKEN.finditer(letters):
        if match.end() > stop:
            break
        found.append(text[match.start() : match.end()])
        size += match.end() - match.start()
        if reach is not None and size >= reach:
            last = match.end() - (size - reach) + LONG_LINE
            end = text.find("\n", match.end(), last)
            stop, reach = end if end >= 0 else last, None
    return found


def _letters(text: str) -> tuple[str, str]:
    """Return a text in the composed form of Unicode (NFC), and the same with a letter for each mark that belongs to a word, and a
    sign for each character that is a word."""
    if text.isascii():
        return text, text
    text = unicodedata.normalize("NFC", text)
    return text, "".join(map(_letter, text))


def _letter(character: str) -> str:
    if unicodedata.category(character)[0] == "M" or character in JOINERS:
        return "x"
    return "\u00b7" if any(first <= character <= last for first, last in IDEOGRAPHS) else character


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


def common_start(one: Sequence[Any], other: Sequence[Any]) -> int:
    """Return how many elements, of texts characters, two sequences begin with in common."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
