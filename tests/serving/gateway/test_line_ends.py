"""A completion has the line ends of its document: as shown, and as recorded."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from infra.model.line_ends import LineEnd, normal
from serving.gateway.detokenizer import Detokenizer
from tests.serving import fakes
from tests.serving.fakes import House
from tests.serving.gateway.test_detokenizer import reference_text
from tests.serving.helpers import events

TOKENIZER: Tokenizer = fakes.tokenizer()
CODE, BEHIND = "import os\n\n\ndef f(x):\n    ", "\n\nprint(1)\n"
SAMPLED = "a = 1\r\n    return a\n    # b\rc"
LINES = "a = 1\n    return a\n    # b\nc"
ENDS: list[LineEnd] = ["\n", "\r\n", "\r"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("end", ENDS)
async def test_what_is_shown_and_recorded_has_the_documents_line_ends(house: House, end: str, stream: bool) -> None:
    engine = house.engines[0]
    engine.reply = TOKENIZER.encode(SAMPLED).ids
    prefix, suffix = CODE.replace("\n", end), BEHIND.replace("\n", end)
    response = await house.complete(prompt=prefix, suffix=suffix, stream=stream, max_tokens=len(engine.reply))
    if stream:
        shown = "".join(json.loads(event)["choices"][0]["text"] for event in events(response.text)[:-1])
    else:
        shown = response.json()["choices"][0]["text"]
    (row,) = house.rows("completions")
    assert shown == row.text == LINES.replace("\n", end)[: len(shown)] and len(shown) > 10
    assert row.token_ids == tuple(engine.reply[: len(row.token_ids)]), "the tokens are those that the model sampled"
    assert row.token_ends[-1] == len(row.text)
    assert (row.prefix, row.suffix) == (prefix, suffix)
    assert "\r" not in house.tokenizer.decode(engine.requests[-1].prompt_token_ids)


@pytest.mark.parametrize("stop", ["\n", "\r\n"])
@pytest.mark.parametrize("end", ENDS)
async def test_a_stop_string_of_lines_ends_a_completion_in_any_document(house: House, end: str, stop: str) -> None:
    house.engines[0].reply = TOKENIZER.encode(LINES).ids
    response = await house.complete(prompt=CODE.replace("\n", end), suffix=BEHIND.replace("\n", end), stop=[stop])
    assert response.json()["choices"][0]["text"] == "a = 1"
    (row,) = house.rows("completions")
    assert (row.text, row.finish_reason) == ("a = 1", "stop")


@given(
    st.text(st.sampled_from("ab \n\r\u2028\x0cé"), max_size=30),
    st.lists(st.text(st.sampled_from("ab\n\r"), min_size=1, max_size=3), max_size=3),
    st.sampled_from(ENDS),
    st.integers(1, 4),
)
def test_any_sampled_text_is_shown_in_whole_line_ends(sampled: str, stop: list[str], end: LineEnd, step: int) -> None:
    alphabet = {chr(c): i for c in range(0x300) if (i := TOKENIZER.token_to_id(chr(c))) is not None}
    ids = [alphabet[c] for piece, _ in TOKENIZER.pre_tokenizer.pre_tokenize_str(sampled) for c in piece]
    detokenizer, shown = Detokenizer(TOKENIZER, stop, line_end=end), ""
    for start in range(0, len(ids), step):
        shown += detokenizer.feed(ids[start : start + step])
        assert not shown.replace(end, "\n").count("\r"), "no part of a line end is shown"
        if detokenizer.stopped:
            break
    shown += detokenizer.flush()
    own = [normal(one).replace("\n", end) for one in stop]
    assert shown == detokenizer.text == reference_text(normal(sampled).replace("\n", end), own)
    if not detokenizer.stopped:
        assert len(detokenizer.ends) == len(ids) and detokenizer.ends[-1:] in ([], [len(shown)])


def test_the_text_of_a_server_without_tokens_has_them_too() -> None:
    detokenizer = Detokenizer(TOKENIZER, [], line_end="\r\n")
    assert [detokenizer.feed_text(piece) for piece in ("a\r", "\nb\n", "\r", "c")] == ["a\r\n", "b\r\n", "\r\n", "c"]
