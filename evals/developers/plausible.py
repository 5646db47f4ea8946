"""Texts that a developer without a text in mind takes, and their quality, which neither server nor trainer sees.

Such a developer looks for something that can be right: it parses where it stands, its names exist in scope, and it repeats
nothing that stands there. Its quality is how much it has in common with the text that the file's author wrote.

Python only: in other languages no text is plausible.
"""

import ast
import builtins
import re
from collections.abc import Iterator

from evals.developers.alternatives import parsed
from infra.model.kept_text import TOKEN, common_weight

NAME = re.compile(r"[^\W\d]\w*")
RUN = re.compile(r"\w+|[^\w\s]+")
"""A word, or a run of signs."""
KNOWN = frozenset(dir(builtins)) | {"self", "cls"}
KNOWN_ATTRIBUTES = frozenset(name for kind in (str, bytes, int, float, list, dict, set, tuple) for name in dir(kind))
LINES_ABOVE = 3
"""Lines above the cursor that a plausible text does not repeat."""
LEAST_LINE = 5
"""Characters of a line whose repetition counts: shorter ones (`else:`, `)`) recur."""
MOST_REPEATED = 3
"""Words and runs of signs that stand so many times in a row are a repetition."""


def plausible(prefix: str, suffix: str, text: str) -> bool:
    """Return whether a shown text can be right where it stands."""
    above, _, before = prefix.rpartition("\n")
    tree = parsed(before + text)
    if tree is None or not text.strip() or not (before + text).strip():
        return False
    if _repeats(above, before + text, suffix) or not any(isinstance(node, ast.stmt) for node in ast.walk(tree)):
        return False
    known = KNOWN | set(NAME.findall(prefix + "\n" + suffix)) | set(_bound(tree))
    attributes = known | KNOWN_ATTRIBUTES
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id not in known:
            return False
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and node.attr not in attributes:
            return False
    return True


def quality(text: str, instead: str) -> float:
    """Return how much a text has in common with the one that the author wrote instead: 0 to 1, F1 over tokens by length."""
    ours, theirs = TOKEN.findall(text), TOKEN.findall(instead)
    total = sum(map(len, ours)) + sum(map(len, theirs))
    return 2 * common_weight(ours, theirs) / total if total else 1.0


def _bound(tree: ast.AST) -> Iterator[str]:
    """Yield the names that some lines bind: by assignment, as arguments, imports, functions and classes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.alias):
            yield (node.asname or node.name).split(".")[0]
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.ExceptHandler):
            yield node.name or ""


def _repeats(above: str, written: str, suffix: str) -> bool:
    """Whether a line of the text stands directly above or below already, or a run of tokens is repeated in it."""
    near = [line.strip() for line in above.rsplit("\n", LINES_ABOVE)[-LINES_ABOVE:]]
    near.append(next((line.strip() for line in suffix.split("\n") if line.strip()), ""))
    lines = [line.strip() for line in written.split("\n")]
    long = [line for line in lines if len(line) >= LEAST_LINE]
    if any(line in near for line in long) or len(set(long)) < len(long):
        return True
    tokens = RUN.findall(written)
    return any(
        tokens[at : at + size] * MOST_REPEATED == tokens[at : at + size * MOST_REPEATED]
        for size in range(1, len(tokens) // MOST_REPEATED + 1)
        for at in range(len(tokens) - size * MOST_REPEATED + 1)
    )
