"""Any split of a text into tokens gives the same text, up to the first stop string."""

import time

from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from serving.gateway.detokenizer import Detokenizer
from serving.gateway.openapi import MAX_STOPS
from tests.serving import fakes

TOKENIZER: Tokenizer = fakes.tokenizer()
texts = st.text(st.sampled_from("ab\n `/src世é👩🏽"), max_size=40)
stops = st.lists(st.text(st.sampled_from("ab\n `/"), min_size=1, max_size=4), max_size=4)


def reference_text(text: str, stop: list[str]) -> str:
    """Return the text before the stop string that ends first; of those that end together, the longest."""
    for end in range(len(text) + 1):
        if stops_here := [s for s in stop if text[:end].endswith(s)]:
            return text[: end - max(map(len, stops_here))]
    return text


@given(texts, stops, st.integers(1, 4), st.booleans())
def test_text_is_cut_at_the_first_stop_string_for_any_tokens(text: str, stop: list[str], step: int, bytewise: bool) -> None:
    # Byte by byte is the worst case: characters and stop strings are spread over tokens.
    alphabet = {chr(c): i for c in range(0x300) if (i := TOKENIZER.token_to_id(chr(c))) is not None}
    pieces = TOKENIZER.pre_tokenizer.pre_tokenize_str(text) if bytewise else []
    ids = [alphabet[c] for piece, _ in pieces for c in piece] if bytewise else TOKENIZER.encode(text).ids
    detokenizer, shown = Detokenizer(TOKENIZER, stop), ""
    for start in range(0, len(ids), step):
        shown += detokenizer.feed(ids[start : start + step])
        assert text.startswith(shown)
        if detokenizer.stopped:
            break
    shown += detokenizer.flush()
    assert shown == detokenizer.text == reference_text(text, stop)
    assert len(detokenizer.ends) == (len(ids) if not detokenizer.stopped else min(len(ids), start + step))
    assert detokenizer.ends == sorted(detokenizer.ends) and (detokenizer.stopped or not ids or detokenizer.ends[-1] == len(text))


def test_text_is_returned_as_soon_as_it_cannot_begin_a_stop_string() -> None:
    detokenizer = Detokenizer(TOKENIZER, ["/src/"])
    assert detokenizer.feed(TOKENIZER.encode("a = b").ids) == "a = b"
    assert detokenizer.feed(TOKENIZER.encode("/s").ids) == ""
    assert detokenizer.feed(TOKENIZER.encode("x").ids) == "/sx"


def test_half_a_character_gives_no_text_and_an_end_token_ends_it() -> None:
    detokenizer = Detokenizer(TOKENIZER, ["ab"])
    letter, first, second = map(TOKENIZER.token_to_id, ("a", "ð", "Ł"))
    assert letter is not None and first is not None and second is not None
    assert detokenizer.feed([letter, first, second]) == ""
    assert detokenizer.feed([0, letter]) + detokenizer.flush() == "a"
    assert detokenizer.ended and detokenizer.ends == [1, 1, 1, 1], "tokens behind the end count for nothing"


def test_long_stop_strings_cost_little_for_each_token() -> None:
    stop = [f"{'x' * 400}{number}" for number in range(MAX_STOPS)]
    detokenizer, ids = Detokenizer(TOKENIZER, stop), TOKENIZER.encode("return alpha + beta\n" * 30).ids
    began = time.process_time()
    for token in ids:
        detokenizer.feed([token])
    assert detokenizer.text == "return alpha + beta\n" * 30
    assert (time.process_time() - began) / len(ids) < 5e-4, "the event loop runs no other request meanwhile"
