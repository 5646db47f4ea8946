"""Checks of tables by column, which agree with the record's validator on each row."""

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from infra.records import Completion, Feedback, Record
from infra.storage.events.tables import checked, schema
from tests.tasks.made import completion, feedback

VALID_ROWS: dict[type[Record], dict[str, Any]] = {
    Completion: completion().model_dump(mode="json"),
    Feedback: feedback().model_dump(mode="json"),
}
UNUSUAL_VALUES = [
    None,
    "",
    "word",
    "accepted",
    1,
    0,
    -1.5,
    True,
    float("nan"),
    float("inf"),
    [],
    [1],
    [0.5, None],
    ["a"],
    [1, 2, 3],
]


def validate_rows(table: pa.Table, record: type[Record]) -> tuple[list[Any], list[dict[str, Any]]]:
    """Return valid records and invalid rows, validated row by row as the reference."""
    valid, invalid = [], []
    for row in table.to_pylist():
        try:
            valid.append(record.model_validate(row))
        except ValidationError:
            invalid.append(row)
    return valid, invalid


def sorted_text(rows: list[Any]) -> list[str]:
    """Return the rows as sorted text, in which NaN is equal to NaN."""
    return sorted(map(repr, rows))


@settings(max_examples=150)
@given(st.data(), st.sampled_from(list(VALID_ROWS)))
def test_the_column_check_agrees_with_the_validator_on_each_row(data: st.DataObject, record: type[Record]) -> None:
    rows = [dict(VALID_ROWS[record]) for _ in range(data.draw(st.integers(1, 4)))]
    for name in data.draw(st.lists(st.sampled_from(list(VALID_ROWS[record])), max_size=3)):
        for row in rows:
            if data.draw(st.booleans()):
                row[name] = data.draw(st.sampled_from(UNUSUAL_VALUES))
    missing = data.draw(st.lists(st.sampled_from(list(VALID_ROWS[record])), max_size=1))
    rows = [{name: value for name, value in row.items() if name not in missing} for row in rows]
    if data.draw(st.integers(0, 9)) == 0:
        rows[0]["unknown"] = 1
    try:
        table = pa.Table.from_pylist(rows)
    except pa.ArrowException:
        return  # no Parquet file can hold these rows
    frame, invalid = checked(table, record)
    valid, expected_invalid = validate_rows(table, record)
    assert sorted_text([record.model_validate(row) for row in frame.to_dicts()]) == sorted_text(valid)
    assert sorted_text(invalid) == sorted_text(expected_invalid)
    assert dict(frame.schema) == schema(record)


@pytest.mark.parametrize("record", list(VALID_ROWS))
def test_valid_rows_pass_without_the_validator(record: type[Record], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "model_validate", None)
    frame, invalid = checked(pa.Table.from_pylist([VALID_ROWS[record]] * 3), record)
    assert (frame.height, invalid) == (3, [])
