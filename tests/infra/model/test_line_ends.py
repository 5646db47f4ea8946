"""Line ends: the normal form, a document's own, and lines that other characters do not end."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.model.fim import Renderer
from infra.model.line_ends import LineEnd, first_line, line_end_of, normal, normal_context
from tests.infra.model.test_fim import TOKENIZER

TEXTS = st.text(st.sampled_from("ab \r\n\u2028\u2029\u0085\x0b\x0c\x00\ufeffe\u0301"), max_size=30)


@given(TEXTS, st.integers(0, 30), st.sampled_from(["\n", "\r\n", "\r"]))
def test_any_cut_of_a_document_has_its_normal_form_and_its_line_end(text: str, cut: int, end: LineEnd) -> None:
    document = normal(text).replace("\n", end)
    prefix, suffix = document[:cut], document[cut:]
    before, after = normal_context(prefix, suffix)
    assert before + after == normal(text)
    assert line_end_of(prefix, suffix) == (end if "\n" in normal(text) else "\n")
    within = prefix.endswith("\r") and suffix.startswith("\n")
    assert len(before) == len(prefix[: len(prefix) - within].replace("\r\n", "\n"))


@given(TEXTS)
def test_a_line_ends_where_an_editor_ends_it(text: str) -> None:
    assert first_line(text) == normal(text).split("\n")[0]


@pytest.mark.parametrize(
    ("prefix", "suffix", "end"),
    [
        ("", "", "\n"),
        ("a\r\nb\r\n", "c\n", "\r\n"),
        ("a\nb\nprogress = '\r'", "\n", "\n"),
        ("a\rb", "", "\r"),
        ("a\n", "\r\nb\r\n", "\r\n"),
        ("a\nb", "\r\n", "\n"),
        ("a\r", "\nb", "\r\n"),
    ],
)
def test_the_most_frequent_line_end_is_the_documents(prefix: str, suffix: str, end: str) -> None:
    assert line_end_of(prefix, suffix) == end


@pytest.mark.parametrize("end", ["\r\n", "\r"])
@pytest.mark.parametrize("order", ["psm", "spm"])
def test_a_prompt_has_the_lines_that_the_model_knows(order: str, end: str) -> None:
    renderer = Renderer(TOKENIZER, order, 100, 100)  # type: ignore[arg-type]  # one of two literals
    expected = renderer.render("a = 1\nb = ", "\n\nc\n")
    assert renderer.render(f"a = 1{end}b = ", f"{end}{end}c{end}") == expected
    assert renderer.encode(f"1{end}") == renderer.encode("1\n")
    assert Renderer(TOKENIZER, "psm", 100, 100).render("b\r", "\n") == Renderer(TOKENIZER, "psm", 100, 100).render("b", "\n")
