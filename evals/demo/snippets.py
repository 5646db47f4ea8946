"""Code with syntax colour as HTML, in light and dark, without a script or inline style."""

from html import escape

from pygments.lexer import Lexer
from pygments.lexers import get_lexer_for_filename
from pygments.lexers.special import TextLexer
from pygments.token import Comment, Keyword, Literal, Name, Number, Operator, String, _TokenType
from pygments.util import ClassNotFound

CLASSES: tuple[tuple[_TokenType, str], ...] = (
    (Comment, "c"),
    (String, "s"),
    (Number, "m"),
    (Literal, "s"),
    (Keyword, "k"),
    (Operator.Word, "k"),
    (Name.Builtin, "b"),
    (Name.Decorator, "b"),
    (Name.Function, "f"),
    (Name.Class, "f"),
)
"""The class of each coloured kind of token; report.css has its colours."""


def completed(file: str, before: str, text: str) -> str:
    """Return code up to the cursor with the text after it marked, both coloured as one piece of the file's language."""
    parts: tuple[list[str], list[str]] = ([], [])
    place, cursor = 0, len(before)
    for kind, value in _lexer(file).get_tokens(before + text):
        for part, piece in enumerate((value[: max(0, cursor - place)], value[max(0, cursor - place) :])):
            parts[part].append(_coloured(kind, piece))
        place += len(value)
    head, tail = ("".join(pieces) for pieces in parts)
    return f"{head}<ins>{tail}</ins>" if text.strip() else f"{head}<ins>▮</ins>"


def _lexer(file: str) -> Lexer:
    try:
        lexer = get_lexer_for_filename(file)
    except ClassNotFound:
        lexer = TextLexer()
    lexer.stripnl = lexer.ensurenl = False  # the text stays as it is, so that the cursor keeps its place
    return lexer


def _coloured(kind: _TokenType, text: str) -> str:
    if not text:
        return ""
    name = next((name for of, name in CLASSES if kind in of), "")
    return f'<span class="{name}">{escape(text)}</span>' if name and text.strip() else escape(text)
