"""The search for secrets takes time in proportion to the text's length, whatever the text: no pattern can backtrack."""

import ast
import re._parser as parser
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import re2
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from infra.redaction import classify, contexts, file_kind, named_values, patterns, personal, private_keys, randomness
from infra.redaction.patterns import SHAPES, compile_bytes
from infra.redaction.redactor import CACHED_TEXTS, MAX_CACHED, Redactor
from infra.redaction.texts import Texts

LENGTH = 40_000
MICROSECONDS = 12.0
"""Most CPU time per character. A search that is quadratic takes some hundred at LENGTH, one that backtracks never ends."""
NO_SHRINKING = (Phase.explicit, Phase.generate)
"""A slow text would be tried again and again."""
ROOT = Path(__file__).parents[3]
MODULES = (file_kind, classify, named_values, personal, contexts, private_keys, randomness, patterns)
PATTERNS = {
    **{f"{m.__name__}.{k}": v for m in MODULES for k, v in vars(m).items() if isinstance(v, re2._Regexp)},
    **{f"shape of {shape.kind}": compile_bytes(shape.pattern) for shape in SHAPES},
}
ANCHORS = sorted({anchor for shape in SHAPES for anchor in shape.anchors.split()})


def pieces(pattern: str) -> list[str]:
    """Return the literals of a pattern, and a character of each of its classes: what runs of its repeats consist of."""
    found = {"".join(run) for run in _runs(parser.parse(pattern))}
    return [*sorted(piece for piece in found if piece), " ", "\n", '"', "a", "0"]


def _runs(tree: Any) -> Iterator[list[str]]:
    literal: list[str] = []
    for operation, argument in tree:
        if operation is parser.LITERAL:
            literal.append(chr(argument))
            continue
        yield literal
        literal = []
        if operation is parser.IN:
            yield [chr(value) if kind is parser.LITERAL else chr(value[0]) for kind, value in argument if kind in KINDS][:1]
        elif operation in (parser.MAX_REPEAT, parser.MIN_REPEAT):
            yield from _runs(argument[2])
        elif operation is parser.SUBPATTERN:
            yield from _runs(argument[3])
        elif operation is parser.BRANCH:
            for branch in argument[1]:
                yield from _runs(branch)
    yield literal


KINDS = (parser.LITERAL, parser.RANGE)


def hostile(data: st.DataObject, of: list[str]) -> str:
    """Return a text of runs of these pieces, in turn, until it is long enough."""
    counts = st.sampled_from([1, 2, 16, 64, 600, 2_000, LENGTH])
    runs = data.draw(st.lists(st.tuples(st.sampled_from(of), counts), min_size=1, max_size=6))
    once = "".join(piece * min(count, LENGTH // len(piece) + 1) for piece, count in runs)
    return (once * (LENGTH // len(once) + 1))[:LENGTH]


def microseconds(work: Any) -> float:
    """Return the CPU time of work per character of LENGTH."""
    began = time.process_time()
    work()
    return (time.process_time() - began) * 1e6 / LENGTH


@pytest.mark.parametrize("name", PATTERNS)
@given(data=st.data())
@settings(max_examples=4, deadline=None, phases=NO_SHRINKING)
@pytest.mark.timing(reason="bounds CPU time")
def test_no_pattern_takes_longer_on_the_runs_it_could_backtrack_on(name: str, data: st.DataObject) -> None:
    pattern = PATTERNS[name]
    text = hostile(data, pieces(pattern.pattern.decode("latin-1"))).encode()
    assert microseconds(lambda: sum(1 for _ in pattern.finditer(text))) < MICROSECONDS, text[:200]


@given(data=st.data())
@settings(max_examples=15, deadline=None, phases=NO_SHRINKING)
@pytest.mark.timing(reason="bounds CPU time")
def test_the_whole_search_is_linear_on_them_too(data: st.DataObject) -> None:
    names_of_values = ["password", "token", "api_key", "secret", "=", ": ", '="', "='", "\\", "value:", "login a password "]
    text = hostile(data, ANCHORS + names_of_values + pieces(data.draw(st.sampled_from(SHAPES)).pattern))
    redactor = Redactor()
    assert microseconds(lambda: redactor.text(text)) < MICROSECONDS, text[:200]
    halves = Texts(text[: LENGTH // 2], ("x", ""), text[LENGTH // 2 :])
    assert microseconds(lambda: redactor.redact(halves)) < 3 * MICROSECONDS, text[:200]


@pytest.mark.parametrize(
    "line", ["password" + " " * 600 + "=", "password" + " " * 100_000 + "=", "  x   =   1  # secret  " * 4_000]
)
@pytest.mark.timing(reason="bounds CPU time")
def test_aligned_code_is_searched_at_once(line: str) -> None:
    began = time.process_time()
    Redactor().text(line)
    assert time.process_time() - began < 0.3


def test_no_module_of_the_search_knows_an_engine_that_backtracks() -> None:
    for path in [*(ROOT / "infra/redaction").glob("*.py"), *(ROOT / "serving/recording").glob("*.py")]:
        imported = {
            name.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Import) for name in node.names
        }
        assert not imported & {"re", "regex"}, path


def test_what_is_remembered_of_texts_is_bounded() -> None:
    redactor = Redactor()
    for number in range(400):
        redactor.text("x " * 1_500 + str(number))
        redactor.text("x " * 3_000 + str(number))
    info = redactor._remembered.cache_info()
    assert info.currsize <= CACHED_TEXTS and CACHED_TEXTS * MAX_CACHED * 4 < 3 << 20
