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
"""The class of each coloured kind of token."""
STYLE = """
.code{--k:#8a2f7d;--s:#1c6b3a;--c:#5b6675;--m:#9a4a00;--b:#1f5fa8;--f:#1f5fa8}
@media(prefers-color-scheme:dark){.code{--k:#e59adb;--s:#8fd6a5;--c:#a3adba;--m:#f0b37a;--b:#8fc0f5;--f:#8fc0f5}}
.code .k{color:var(--k)}.code .s{color:var(--s)}.code .c{color:var(--c);font-style:italic}.code .m{color:var(--m)}
.code .b{color:var(--b)}.code .f{color:var(--f)}
.code ins{text-decoration:none;background:color-mix(in srgb,var(--mark) 14%,var(--paper));outline:1px solid var(--axis)}
""".strip()


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
