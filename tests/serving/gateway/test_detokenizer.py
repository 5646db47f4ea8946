"""Reading tokens back: the text of any cut into tokens, and where a stop string ends it."""

from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from serving.gateway.detokenizer import Detokenizer
from tests.serving import fakes

TOKENIZER: Tokenizer = fakes.tokenizer()
texts = st.text(st.sampled_from("ab\n `/src世é👩🏽"), max_size=40)
stops = st.lists(st.text(st.sampled_from("ab\n `/"), min_size=1, max_size=4), max_size=4)


def slow(text: str, stop: list[str]) -> str:
    """Reads a character at a time: the first stop string that is complete ends it, the longest of those that end together."""
    for end in range(len(text) + 1):
        if found := [s for s in stop if text[:end].endswith(s)]:
            return text[: end - max(map(len, found))]
    return text


@given(texts, stops, st.integers(1, 4), st.booleans())
def test_text_is_cut_at_the_first_stop_string_however_it_arrives(text: str, stop: list[str], step: int, bytewise: bool) -> None:
    # Byte by byte is the worst case: characters and stop strings are spread over tokens.
    alphabet = {chr(c): TOKENIZER.token_to_id(chr(c)) for c in range(0x300) if TOKENIZER.token_to_id(chr(c)) is not None}
    pieces = TOKENIZER.pre_tokenizer.pre_tokenize_str(text) if bytewise else []
    ids = [alphabet[c] for piece, _ in pieces for c in piece] if bytewise else TOKENIZER.encode(text).ids
    reader, given_out = Detokenizer(TOKENIZER, stop), ""
    for start in range(0, len(ids), step):
        given_out += reader.feed(ids[start : start + step])
        assert text.startswith(given_out)
        if reader.stopped:
            break
    given_out += reader.flush()
    assert given_out == reader.text == slow(text, stop)
    assert len(reader.ends) == (len(ids) if not reader.stopped else min(len(ids), start + step))
    assert reader.ends == sorted(reader.ends) and (reader.stopped or not ids or reader.ends[-1] == len(text))


def test_text_is_given_out_as_soon_as_it_is_certain() -> None:
    reader = Detokenizer(TOKENIZER, ["/src/"])
    assert reader.feed(TOKENIZER.encode("a = b").ids) == "a = b"
    assert reader.feed(TOKENIZER.encode("/s").ids) == ""
    assert reader.feed(TOKENIZER.encode("x").ids) == "/sx"


def test_frame_tokens_are_no_text_and_half_a_character_is_none() -> None:
    reader = Detokenizer(TOKENIZER, [])
    ids = [TOKENIZER.token_to_id("a"), 0, TOKENIZER.token_to_id("ð"), TOKENIZER.token_to_id("Ł")]
    assert reader.feed(ids) + reader.flush() == "a"
    assert reader.ends == [1, 1, 1, 1]
