"""Tables checked by columns: what the record's own validator says of each row."""

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from infra.events.tables import checked, schema
from infra.records import Completion, Feedback, Record
from tests.tasks.made import completion, feedback

GOOD: dict[type[Record], dict[str, Any]] = {
    Completion: completion().model_dump(mode="json"),
    Feedback: feedback().model_dump(mode="json"),
}
ODD = [None, "", "word", "accepted", 1, 0, -1.5, True, float("nan"), float("inf"), [], [1], [0.5, None], ["a"], [1, 2, 3]]


def one_by_one(table: pa.Table, record: type[Record]) -> tuple[list[Any], list[dict[str, Any]]]:
    """The slow and obvious way."""
    fine, broken = [], []
    for row in table.to_pylist():
        try:
            fine.append(record.model_validate(row))
        except ValidationError:
            broken.append(row)
    return fine, broken


def as_text(rows: list[Any]) -> list[str]:
    """NaN is equal to NaN."""
    return sorted(map(repr, rows))


@settings(max_examples=150)
@given(st.data(), st.sampled_from(list(GOOD)))
def test_agrees_with_the_validator_row_by_row(data: st.DataObject, record: type[Record]) -> None:
    rows = [dict(GOOD[record]) for _ in range(data.draw(st.integers(1, 4)))]
    for name in data.draw(st.lists(st.sampled_from(list(GOOD[record])), max_size=3)):
        for row in rows:
            if data.draw(st.booleans()):
                row[name] = data.draw(st.sampled_from(ODD))
    missing = data.draw(st.lists(st.sampled_from(list(GOOD[record])), max_size=1))
    rows = [{name: value for name, value in row.items() if name not in missing} for row in rows]
    if data.draw(st.integers(0, 9)) == 0:
        rows[0]["unknown"] = 1
    try:
        table = pa.Table.from_pylist(rows)
    except pa.ArrowException:
        return  # no object can hold them
    frame, broken = checked(table, record)
    fine, wrong = one_by_one(table, record)
    assert as_text([record.model_validate(row) for row in frame.to_dicts()]) == as_text(fine)
    assert as_text(broken) == as_text(wrong)
    assert dict(frame.schema) == schema(record)


@pytest.mark.parametrize("record", list(GOOD))
def test_what_serving_writes_needs_no_validator(record: type[Record], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "model_validate", None)
    frame, broken = checked(pa.Table.from_pylist([GOOD[record]] * 3), record)
    assert (frame.height, broken) == (3, [])
