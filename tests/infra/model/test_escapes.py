"""Escaped markers come back as they were, however the stream is cut, and markers that are not escaped end it."""

from hypothesis import given
from hypothesis import strategies as st

from infra.model.fim import SPECIAL_TOKENS
from infra.model.fim.escapes import Escapes, Unescaping

ESCAPES = Escapes([*SPECIAL_TOKENS, "<｜end▁of▁sentence｜>"])
codes = st.lists(
    st.text(max_size=5) | st.sampled_from([*ESCAPES.markers, "\u200b", "<|", "<|\u200bfim_pad|>", "fim_pad|>"]), max_size=8
).map("".join)


def unescaped(text: str, step: int) -> tuple[str, bool]:
    stream = Unescaping(ESCAPES)
    code = "".join(stream.feed(text[start : start + step]) for start in range(0, len(text), step))
    return code + stream.flush(), stream.ended


@given(codes, st.integers(1, 9))
def test_escaped_code_comes_back_as_it_was(code: str, step: int) -> None:
    escaped = ESCAPES.escape(code)
    assert not any(marker in escaped for marker in ESCAPES.markers)
    end = next((cut for cut in range(len(code)) if code[cut:].startswith("<|\u200b")), len(code))
    assert unescaped(escaped, step) == (code, False) or end < len(code), "a cut marker with a space of its own loses one"
    assert unescaped(escaped + ".", step) == (code + ".", False)


@given(codes, st.sampled_from(ESCAPES.markers), codes, st.integers(1, 9))
def test_a_marker_of_the_server_ends_the_text(code: str, marker: str, rest: str, step: int) -> None:
    assert unescaped(ESCAPES.escape(code) + "." + marker + rest, step) == (code + ".", True)


def test_text_is_returned_as_soon_as_it_cannot_begin_a_marker_and_a_cut_one_loses_its_escape() -> None:
    stream = Unescaping(ESCAPES)
    assert [stream.feed(text) for text in ("a <", "|", "b", "<|\u200bfim_", "x")] == ["a ", "", "<|b", "", "<|\u200bfim_x"]
    assert stream.feed("<|\u200bfim_mid") == "" and stream.flush() == "<|fim_mid"
