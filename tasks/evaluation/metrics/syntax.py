"""Whether a completion breaks the file: errors of tree-sitter's parser after the insertion, against the file with its true text.

A tree-sitter parser recovers from errors, so they can be counted: each part that it could not read, and each token that it had to
assume (Wagner 1998, "Practical algorithms for incremental software development environments", chapter 8). Only the block around a
place is parsed, from a line after a blank one to the next such line with the least indentation. The rest of the file is the same
in both texts. A parse takes about a millisecond; at most WINDOW characters on each side are read.
"""

import importlib
import re
from dataclasses import dataclass
from functools import lru_cache

from tree_sitter import Language, Parser, Query, QueryCursor

WINDOW = 4_000
"""Characters of code read on each side of a place."""
GRAMMARS = {
    "tree_sitter_python.language": ("py", "pyi", "python"),
    "tree_sitter_go.language": ("go",),
    "tree_sitter_typescript.language_typescript": ("ts", "mts", "cts", "typescript"),
    "tree_sitter_typescript.language_tsx": ("tsx", "typescriptreact"),
    "tree_sitter_javascript.language": ("js", "jsx", "mjs", "cjs", "javascript", "javascriptreact"),
    "tree_sitter_java.language": ("java",),
    "tree_sitter_rust.language": ("rs", "rust"),
    "tree_sitter_c.language": ("c",),
    "tree_sitter_cpp.language": ("cc", "cpp", "cxx", "c++", "h", "hh", "hpp", "hxx"),
    "tree_sitter_c_sharp.language": ("cs", "csharp", "c#"),
}
"""Grammars by module and function, with the extensions and names of their languages."""
BY_LANGUAGE = {name: grammar for grammar, names in GRAMMARS.items() for name in names}
INDENTED = re.compile(r"[ \t]*")
CLOSERS = tuple(")}]")


class _Grammar:
    """A parser, and the query that finds its errors."""

    def __init__(self, name: str) -> None:
        module, _, function = name.partition(".")
        language = Language(getattr(importlib.import_module(module), function)())
        self._parser, self._errors = Parser(language), Query(language, "(ERROR) @error (MISSING) @missing")

    def errors(self, text: str) -> int:
        """Return the number of syntax errors of a text."""
        root = self._parser.parse(text.encode(errors="replace")).root_node
        if not root.has_error:
            return 0
        return sum(len(found) for found in QueryCursor(self._errors).captures(root).values())


def breaks(completion: str, truth: str, prefix: str, suffix: str, language: str) -> bool | None:
    """Return whether a file has more syntax errors with the completion than with its true text.

    None if there is no grammar of the language (its extension or name). A blank completion breaks nothing.
    """
    if language not in BY_LANGUAGE:
        return None
    if not completion.strip() or completion == truth:
        return False
    block = block_around(prefix, suffix)
    return _errors_with(block, completion, language) > _errors_with(block, truth, language)


def errors(text: str, language: str) -> int:
    """Return the number of syntax errors of a text. Raises KeyError: there is no grammar of the language."""
    return _grammar(BY_LANGUAGE[language]).errors(text)


@dataclass(frozen=True)
class Block:
    """The code around a place."""

    before: str
    after: str
    indentation: int
    """Indentation, in columns, common to all of its lines."""

    def text(self, written: str) -> str:
        """Return the block with a text at the place, without its indentation."""
        lines = f"{self.before}{written}{self.after}".split("\n")
        return "\n".join(line[min(self.indentation, _indentation(line)) :] for line in lines)


def block_around(prefix: str, suffix: str) -> Block:
    """Return the block around a place.

    It begins at the prefix's last line that has the least indentation and follows a blank line (else at the first with the least
    indentation), and ends before the suffix's next such line or a line with less indentation.
    """
    lines = prefix[-WINDOW:].split("\n")
    if len(lines) > 1 and len(prefix) >= WINDOW:
        lines = lines[1:]  # the first line may be cut
    # The last line is the place's own: its indentation is complete only if text precedes the place.
    known = [number for number, line in enumerate(lines) if line.strip() and not line.lstrip().startswith(CLOSERS)]
    least = min((_indentation(lines[number]) for number in known), default=0)
    starts = [number for number in known if _indentation(lines[number]) == least]
    fresh = [number for number in starts if number == 0 or not lines[number - 1].strip()]
    first = (fresh[-1:] or starts[:1] or [0])[0]
    return Block("\n".join(lines[first:]), _rest(suffix[:WINDOW], len(suffix) >= WINDOW, least), least)


def _rest(suffix: str, cut: bool, least: int) -> str:
    """Return a suffix up to the end of the block; `cut`: its last line may be cut."""
    lines = suffix.split("\n")
    last = len(lines) - (cut and len(lines) > 1)
    stop = last
    for number, line in enumerate(lines[1:last], 1):
        if line.strip() and (
            _indentation(line) < least
            or (_indentation(line) == least and not lines[number - 1].strip() and not line.lstrip().startswith(CLOSERS))
        ):
            stop = number
            break
    else:
        if cut:  # the block continues beyond the known text: end it at its last line with the least indentation
            outer = [n for n in range(1, last) if lines[n].strip() and _indentation(lines[n]) == least]
            stop = outer[-1] if outer else last
    return "\n".join(lines[:stop])


def _indentation(line: str) -> int:
    found = INDENTED.match(line)
    return found.end() if found else 0


@lru_cache(maxsize=4096)
def _errors_with(block: Block, written: str, language: str) -> int:
    """Return the errors with a text at the place. Cached: every model needs the true text's, and models often write the same."""
    return errors(block.text(written), language)


@lru_cache(maxsize=len(GRAMMARS))
def _grammar(name: str) -> _Grammar:
    return _Grammar(name)
