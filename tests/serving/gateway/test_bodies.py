"""Bodies whose characters or headers are unusual: right on every route, in record and Parquet file, or refused by name."""

import gzip
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.gateway.requests import _read_leniently
from tests.serving.fakes import HEADERS, TEXT, House
from tests.serving.gateway.test_feedback import continue_event
from tests.tasks.rows import join

JSON = {"Content-Type": "application/json"}
CHARACTERS: dict[str, tuple[str | bytes, str]] = {
    "high_alone": (r"\ud83d", "\ufffd"),
    "low_alone": (r"\udc4d", "\ufffd"),
    "turned_round": (r"\udc4d\ud83d", "\ufffd\ufffd"),
    "pair": (r"\ud83d\udc4d", "👍"),
    "half_before_a_pair": (r"\ud83d\ud83d\udc4d", "\ufffd👍"),
    "upper_case": (r"\uDC4D", "\ufffd"),
    "wtf8": (b"\xed\xb1\x8d", "\ufffd"),
    "cesu8_pair": (b"\xed\xa0\xbd\xed\xb1\x8d", "👍"),
    "latin1": (b"\xe9", "\ufffd"),
    "cut_utf8": (b"\xf0\x9f\x91", "\ufffd"),
    "overlong": (b"\xc0\xaf", "\ufffd\ufffd"),
    "line_separator": ("\u2028", "\u2028"),
    "paragraph_separator": (r"\u2029", "\u2029"),
    "next_line": ("\x85", "\x85"),
    "nul": (r"\u0000", "\0"),
    "raw_nul": (b"\0", "\0"),
    "raw_newline": (b"\n", "\n"),
    "mark_inside": ("\ufeff", "\ufeff"),
    "combining": ("e\u0301", "e\u0301"),
    "noncharacter": ("\uffff", "\uffff"),
    "last": ("\U0010ffff", "\U0010ffff"),
    "replacement": ("\ufffd", "\ufffd"),
    "joined_emoji": ("👩\u200d💻", "👩\u200d💻"),
}


def body_of(value: dict[str, Any], character: str | bytes) -> bytes:
    """Return JSON with the character, as it is sent, in place of each @."""
    sent = character if isinstance(character, bytes) else character.encode()
    return json.dumps(value).encode().replace(b"@", sent)


@pytest.mark.parametrize("port", [0, 1], ids=["completions", "feedback"])
@pytest.mark.parametrize("kind", CHARACTERS)
async def test_a_character_costs_no_completion_and_no_label(house: House, kind: str, port: int) -> None:
    sent, expected = CHARACTERS[kind]
    prompt = "<|fim_prefix|>s = '@'\nx = <|fim_suffix|>\n# @\n<|fim_middle|>"
    asked: tuple[tuple[str, dict[str, Any]], ...] = (
        ("/v1/completions", {"prompt": prompt}),
        ("/v1/completions", {"prompt": "s = '@'\nx = ", "suffix": "\n# @\n", "stream": True}),
        ("/v1/completions", {"segments": {"prefix": "s = '@'\nx = ", "suffix": "\n# @\n", "filepath": "@.py"}}),
        ("/infill", {"input_prefix": "s = '@'\n", "prompt": "x = ", "input_suffix": "\n# @\n"}),
    )
    for url, value in asked:
        answer = await house.client.post(house.urls[0] + url, content=body_of(value, sent), headers=JSON)
        assert answer.status_code == 200, (kind, url, answer.text)
    rows = house.rows("completions")
    assert {(row.prefix, row.suffix) for row in rows} == {(f"s = '{expected}'\nx = ", f"\n# {expected}\n")}
    data = {"completionId": "c@", "accepted": True, "prompt": prompt, "completion": TEXT, "filepath": "@"}
    events: tuple[tuple[str, dict[str, Any]], ...] = (
        ("/v1/continue/events", continue_event(data)),
        ("/api/training/submit", data),
        ("/v1/feedback", {"completion_id": rows[0].id, "outcome": "retained", "retained": TEXT + " @", "language": "@"}),
        ("/v1/events", {"type": "select", "completion_id": rows[2].id, "view_id": "@"}),
    )
    for url, value in events:
        answer = await house.client.post(house.urls[port] + url, content=body_of(value, sent), headers=JSON)
        assert answer.status_code == 200, (kind, url, answer.text)
    assert house.rows("feedback")[2].retained == f"{TEXT} {expected}"
    assert await house.ship()
    completions, feedback = house.store.shipped("completions"), house.store.shipped("feedback")
    assert sorted(completions, key=lambda row: row.id) == sorted(rows, key=lambda row: row.id)
    assert len(feedback) == 4 and {row.client_id for row in feedback} >= {f"c{expected}"}
    labels = [row.label.outcome for row in join(completions, feedback, join_seconds=60).joined if row.label]
    assert labels.count("accepted") == 3, "by position, and by the ids of two"


async def test_a_byte_order_mark_before_the_body_is_left_out(house: House) -> None:
    body = b"\xef\xbb\xbf" + json.dumps({"prompt": "x = "}).encode()
    assert (await house.client.post(house.urls[0] + "/v1/completions", content=body, headers=JSON)).status_code == 200
    body = b"\xef\xbb\xbf" + json.dumps({"completion_id": "c", "outcome": "accepted"}).encode()
    assert (await house.client.post(house.urls[1] + "/v1/feedback", content=body, headers=JSON)).status_code == 200


async def test_the_last_of_two_equal_names_counts(house: House) -> None:
    body = b'{"prompt": "x = ", "prompt": "y = "}'
    assert (await house.client.post(house.urls[0] + "/v1/completions", content=body, headers=JSON)).status_code == 200
    assert house.rows("completions")[0].prefix == "y = "


@pytest.mark.parametrize("number", ["1" + "0" * 400, "1e999", "-1e999", "NaN", "Infinity", "123456789012345678901234567890"])
async def test_a_large_number_in_an_ignored_field_costs_nothing(house: House, number: str) -> None:
    body = f'{{"prompt": "x = ", "temperature": {number}, "top_k": {number}}}'
    answer = await house.client.post(house.urls[0] + "/v1/completions", content=body, headers=JSON)
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "body: not JSON"),
        (b"prompt=x", "it begins with 'prompt=x'"),
        ('{"prompt": "x"}'.encode("utf-16"), "expected UTF-8, got UTF-16"),
        (b'{"prompt": "x"', "body: not JSON"),
        (b"{'prompt': 'x'}", "body: not JSON"),
        (b'{"prompt": "x",}', "body: not JSON"),
        (b'{"prompt": "\\ud83d', "body: not JSON"),
        (b'{"prompt": "\\udc4d", "a": ' + b"[" * 5_000, "body: not JSON"),
        (b'["\\udc4d"]', "body: expected a JSON object, got list"),
    ],
)
async def test_what_is_no_json_is_refused_with_its_beginning(house: House, body: bytes, words: str) -> None:
    for port, url in ((0, "/v1/completions"), (1, "/v1/feedback")):
        answer = await house.client.post(house.urls[port] + url, content=body, headers=JSON)
        assert answer.status_code == 400 and words in answer.json()["error"]["message"], answer.text


@pytest.mark.parametrize(
    ("headers", "words"),
    [
        ({"Content-Type": "application/json"}, ""),
        ({"Content-Type": "Application/JSON; charset=UTF-8"}, ""),
        ({"Content-Type": 'application/json;charset="utf-8"'}, ""),
        ({"Content-Type": "application/json; odata.metadata=minimal"}, ""),
        ({"Content-Type": "application/json, application/json; charset=utf-8"}, ""),
        ({"Content-Type": "application/json, text/plain"}, "Content-Type: expected application/json, got"),
        ({"Content-Type": "application/json", "Content-Encoding": "identity"}, ""),
        ({"Content-Type": "application/json; charset=utf-16"}, "Content-Type: expected charset=utf-8 or none, got"),
        ({"Content-Type": "application/json; charset=ISO-8859-1"}, "Content-Type: expected charset=utf-8 or none, got"),
        ({"Content-Type": "text/plain"}, "Content-Type: expected application/json, got 'text/plain'"),
        ({"Content-Type": "application/json", "Content-Encoding": "gzip"}, "Content-Encoding: expected none, got 'gzip'"),
        ({"Content-Type": "application/json", "Content-Encoding": "br"}, "Content-Encoding: expected none, got 'br'"),
    ],
)
async def test_a_declared_form_is_right_or_refused_by_its_header(house: House, headers: dict[str, str], words: str) -> None:
    for port, url, value in (
        (0, "/v1/completions", {"prompt": "x = "}),
        (0, "/infill", {"input_prefix": "x", "input_suffix": ""}),
        (1, "/v1/feedback", {"completion_id": "c", "outcome": "accepted"}),
    ):
        body = json.dumps(value).encode()
        body = gzip.compress(body) if headers.get("Content-Encoding") == "gzip" else body
        answer = await house.client.post(house.urls[port] + url, content=body, headers={**HEADERS, **headers})
        assert answer.status_code == (415 if words else 200), answer.text
        assert not words or answer.json()["error"]["message"].startswith(words)


async def test_a_body_in_chunks_is_read_whole(house: House) -> None:
    async def chunks() -> Any:
        for byte in '{"prompt": "s = \'é👍\'\\n"}'.encode():
            yield bytes([byte])

    answer = await house.client.post(house.urls[0] + "/v1/completions", content=chunks(), headers=JSON)
    assert answer.status_code == 200 and house.rows("completions")[0].prefix == "s = 'é👍'\n"


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda v: st.lists(v) | st.dictionaries(st.text(), v),
        max_leaves=8,
    )
)
def test_the_lenient_reader_reads_what_the_strict_one_does(value: Any) -> None:
    for ascii_only in (True, False):
        assert _read_leniently(json.dumps(value, ensure_ascii=ascii_only).encode(), ValueError()) == value


@given(st.binary(max_size=80))
def test_any_bytes_in_a_text_are_read_as_unicode(text: bytes) -> None:
    sent = text.replace(b"\\", b"").replace(b'"', b"")
    read = _read_leniently(b'{"prompt": "' + sent + b'"}', ValueError())["prompt"]
    read.encode()  # no half character is left
    assert sent.decode("utf-8", "replace") == read or b"\xed" in sent
