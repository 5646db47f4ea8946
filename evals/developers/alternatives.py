"""Texts that are right without being equal: rewritings of the text that a developer has in mind, which mean the same.

Two statements are alternatives of each other if they are equal after these rewritings: other quotes and spaces, reordered keyword
arguments and imported names, exchanged sides of == and !=, a negation written inside or outside of `in` and `is`, calls and
literals of the same value (dict() and {}, range(0, n) and range(n), open(f, "r") and open(f)), a default that is written out, an
augmented assignment written in full. So are two that bind a new name, if only that name differs.

Python only: other languages have no alternatives here.
"""

import ast
import textwrap
import warnings
from dataclasses import dataclass

OPENERS = {"elif ": "if x:\n  pass\n", "else:": "if x:\n  pass\n", "except": "try:\n  pass\n", "finally:": "try:\n  pass\n"}
"""Beginnings of a line that is no statement of its own, and a statement that may stand before it."""
DEFAULTS = {"open": (1, "'r'"), "get": (1, "None")}
"""Calls with an argument that may be left out where it has its default: its position and the default, as source."""
EMPTY = {"dict": "{}", "list": "[]", "tuple": "()", "str": "''"}
"""Calls without arguments, and the literal of the same value."""


@dataclass(frozen=True)
class Alternative:
    """A shown text that means the same as the beginning of the text in mind."""

    covered: int
    """Characters of the text in mind that it stands for: whole lines, to the end of a line."""
    renamed: tuple[str, str] | None = None
    """The name that the text in mind binds, and the name in its place; what follows must use the latter."""


def alternative(before: str, shown: str, truth: str) -> Alternative | None:
    """Return how a shown text is an alternative of the beginning of the text in mind; None if it is equal, or another text.

    Args:
        before: the cursor's line up to the cursor.
        truth: the text in mind; it ends at the end of a line.
    """
    written = shown.rstrip()
    covered = end_of_lines(truth, written.count("\n") + 1)
    instead = truth[:covered]
    if not written.strip() or written == instead.rstrip() or covered == 0:
        return None
    one, other = parsed(before + written), parsed(before + instead)
    if one is None or other is None:
        return None
    if same(one, other):
        return Alternative(covered)
    names = bound_names(other), bound_names(one)
    if len(names[0]) == len(names[1]) == 1 and names[0] != names[1]:
        (old,), (new,) = names
        if same(_Renamed(new, old).visit(one), other):
            return Alternative(covered, (old, new))
    return None


def end_of_lines(text: str, lines: int) -> int:
    """Return where the `lines`-th line of a text ends, without its newline; the end of the text if it has fewer."""
    end = -1
    for _ in range(lines):
        end = text.find("\n", end + 1)
        if end < 0:
            return len(text)
    return end


def parsed(block: str) -> ast.Module | None:
    """Return the syntax tree of some lines; a header of a block may be the last. None if they are no statements."""
    lines = textwrap.dedent(block).rstrip()
    opener = next((above for begin, above in OPENERS.items() if lines.startswith(begin)), "")
    body = f"{opener}{lines} pass" if lines.endswith(":") else opener + lines
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # syntax warnings of the read code
            return ast.parse(body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def same(one: ast.AST, other: ast.AST) -> bool:
    """Return whether two trees mean the same."""
    return ast.dump(_Canonical().visit(one)) == ast.dump(_Canonical().visit(other))


def bound_names(tree: ast.AST) -> list[str]:
    """Return the names that some lines bind, each once, in order."""
    bound = (node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    return list(dict.fromkeys(bound))


class _Renamed(ast.NodeTransformer):
    def __init__(self, old: str, new: str) -> None:
        self._old, self._new = old, new

    def visit_Name(self, node: ast.Name) -> ast.Name:
        node.id = self._new if node.id == self._old else node.id
        return node


class _Canonical(ast.NodeTransformer):
    """Gives trees that mean the same the same form. String quotes and spaces are not in the tree."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        node.keywords.sort(key=lambda keyword: (keyword.arg is None, keyword.arg or "", ast.dump(keyword.value)))
        name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        if isinstance(node.func, ast.Name) and name in EMPTY and not node.args and not node.keywords:
            return ast.parse(EMPTY[name], mode="eval").body
        at, default = DEFAULTS.get(name, (0, ""))
        if default and len(node.args) == at + 1 and ast.dump(node.args[at]) == ast.dump(ast.parse(default, mode="eval").body):
            del node.args[at]
        if name == "range" and len(node.args) == 2 and isinstance(node.args[0], ast.Constant) and node.args[0].value == 0:
            del node.args[0]
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        if len(node.ops) == 1 and isinstance(node.ops[0], ast.Eq | ast.NotEq):
            sides = sorted((node.left, node.comparators[0]), key=ast.dump)
            node.left, node.comparators = sides[0], [sides[1]]
        return node

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        self.generic_visit(node)
        inner = node.operand
        if isinstance(node.op, ast.Not) and isinstance(inner, ast.Compare) and len(inner.ops) == 1:
            turned = {ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.Eq: ast.NotEq}
            if (opposite := turned.get(type(inner.ops[0]))) is not None:
                return ast.Compare(inner.left, [opposite()], inner.comparators)
        return node

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        self.generic_visit(node)
        if not isinstance(node.target, ast.Name):
            return node
        name = node.target.id
        value = ast.BinOp(ast.Name(name, ast.Load()), node.op, node.value)
        return ast.Assign([ast.Name(name, ast.Store())], value)

    def visit_Import(self, node: ast.Import | ast.ImportFrom) -> ast.AST:
        node.names.sort(key=lambda alias: (alias.name, alias.asname or ""))
        return node

    visit_ImportFrom = visit_Import

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        node.kind = None  # u"..." is "..."
        return node
