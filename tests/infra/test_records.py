"""Records: frozen, exact, unchanged by a round trip through JSON and Parquet."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from infra import records
from infra.records import Completion, Feedback, Record
from infra.storage.store import from_parquet, to_parquet

text = st.text(max_size=30).filter(lambda value: not any(0xD800 <= ord(c) < 0xE000 for c in value))
number = st.floats(allow_nan=False, allow_infinity=False)


@st.composite
def completions(draw: st.DrawFn) -> Completion:
    length = draw(st.integers(0, 6))
    return Completion(
        id=draw(text),
        time=draw(number),
        project="p",
        user="u",
        client="c",
        prefix=draw(text),
        suffix=draw(text),
        prompt_token_ids=tuple(draw(st.lists(st.integers(0, 2**31), max_size=6))),
        token_ids=tuple(draw(st.lists(st.integers(0, 2**31), min_size=length, max_size=length))),
        logprobs=tuple(draw(st.lists(st.floats(-100, 0), min_size=length, max_size=length))),
        token_ends=tuple(draw(st.lists(st.integers(0, 999), min_size=length, max_size=length))),
        text=draw(text),
        finish_reason=draw(st.sampled_from(["stop", "length", "disconnected", "error"])),
        policy_version=draw(text),
        arm=draw(st.sampled_from(["champion", "challenger"])),
        temperature=1.0,
        top_p=1.0,
        max_tokens=8,
        ttft_ms=draw(st.none() | number),
        total_ms=1.0,
    )


feedback = st.builds(Feedback, id=text, time=number, made_at=st.none() | number, shown=text, prefix=text, suffix=text)


@settings(max_examples=60)
@given(st.lists(completions(), min_size=1, max_size=4))
def test_completions_are_unchanged_by_parquet_and_json(rows: list[Completion]) -> None:
    assert from_parquet(to_parquet(rows), Completion) == rows
    assert [Completion.model_validate_json(row.model_dump_json()) for row in rows] == rows


@settings(max_examples=40)
@given(st.lists(feedback, min_size=1, max_size=4))
def test_feedback_is_unchanged_by_parquet(rows: list[Feedback]) -> None:
    assert from_parquet(to_parquet(rows), Feedback) == rows


@given(completions(), st.sampled_from(["token_ids", "logprobs", "token_ends"]))
@settings(max_examples=20)
def test_tokens_logprobs_and_ends_must_have_the_same_length(row: Completion, field: str) -> None:
    fields = {**row.model_dump(), field: (*getattr(row, field), 0)}
    with pytest.raises(ValidationError, match="must have the same length"):
        Completion.model_validate(fields)


RECORD_TYPES = [
    record_type
    for record_type in vars(records).values()
    if isinstance(record_type, type) and issubclass(record_type, Record) and record_type is not Record
]


@pytest.mark.parametrize("record_type", RECORD_TYPES)
def test_every_field_of_every_record_has_a_description(record_type: type[Record]) -> None:
    assert record_type.model_config.get("frozen") and record_type.model_config.get("extra") == "forbid"
    assert [name for name, field in record_type.model_fields.items() if not field.description] == []
