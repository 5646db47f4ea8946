"""Serving keeps only the text near the cursor; the join finds the same completions as with all of it."""

from typing import TypeVar

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.records import Completion, Feedback
from infra.redaction.events import texts_of, with_texts
from infra.redaction.redactor import Redactor
from infra.redaction.texts import CUT_STEP, KEPT_CHARACTERS, Kept
from tasks.labels.attribution import attribute, from_start_of, label
from tests.tasks.made import completion, feedback

FILE = "".join(f"value_{number} = compute({number * 7919 % 1000})\n" for number in range(3_000))
BLANKS = "\n" * len(FILE)
TEXT = "return total / count_of_all(values)"
EDGE = KEPT_CHARACTERS + CUT_STEP
"""Length of a prefix at which one more step is cut."""


def labels(rows: list[Completion], events: list[Feedback]) -> pl.DataFrame:
    requests, feedbacks = (
        pl.DataFrame([row.model_dump() for row in of_kind], infer_schema_length=None) for of_kind in (rows, events)
    )
    served, matches, orphans = attribute(requests, feedbacks, 600.0)
    joined = label(served, matches)
    return joined.select("id", "outcome", "extent", "shown_characters", "accepted_characters", orphans=pl.lit(orphans))


Event = TypeVar("Event", Completion, Feedback)


def kept(row: Event, redactor: Redactor | None = None) -> Event:
    """Return the event as serving writes it."""
    texts = Kept().cut(texts_of(row))
    return with_texts(row, texts.within_margins(), redactor.redact(texts) if redactor else texts.within_margins())


@given(
    code=st.sampled_from([FILE, BLANKS, "é" * len(FILE)]),
    requests=st.lists(st.tuples(st.integers(EDGE - 40, EDGE + 40), st.integers(0, 12)), min_size=1, max_size=5),
    far=st.integers(0, 12),
    named=st.booleans(),
    typed_over=st.booleans(),
)
@settings(max_examples=15, deadline=None)
def test_the_join_is_the_same_as_with_all_text(
    code: str, requests: list[tuple[int, int]], far: int, named: bool, typed_over: bool
) -> None:
    """Requests and events around the place where the cut moves, some reused after characters were typed."""
    rows, events = [], []
    for number, (length, typed) in enumerate(requests):
        length += far * CUT_STEP // 6
        prefix, suffix, start = code[-length:], code[: 9_000 + number], 1_800_000_000.0 + 20 * number
        rows.append(completion(f"c{number}", time=start, prefix=prefix, suffix=suffix, text=TEXT))
        prefix += TEXT[:typed] if typed_over else "#" * typed
        events.append(feedback(f"f{number}", time=start + 1, prefix=prefix, suffix=suffix, shown=TEXT[typed:]))
        if named:
            events[-1] = events[-1].model_copy(update={"completion_id": f"c{number}"})
    assert labels([kept(row) for row in rows], [kept(event) for event in events]).equals(labels(rows, events))


@pytest.mark.parametrize("at", [0, 60, CUT_STEP - 20, CUT_STEP, CUT_STEP + 400])
def test_a_secret_at_the_edge_of_what_is_kept_does_not_part_request_and_event(at: int) -> None:
    code = FILE[-EDGE + 4 :]
    code = code[:at] + '\npassword = "correct-horse-battery"\n' + code[at:]
    redactor = Redactor()
    for length in (EDGE - 4, EDGE + 20):
        prefix = code[-length:]
        row = kept(completion("c", prefix=prefix, text=TEXT), redactor)
        event = kept(feedback("f", prefix=prefix + TEXT[:8], shown=TEXT[8:]), redactor)
        assert labels([row], [event])["outcome"].to_list() == ["accepted"]


def test_of_another_file_no_common_start_is_found() -> None:
    assert from_start_of(FILE[:9_000], "x" * 9_000) == "x" * 9_000
    assert from_start_of(FILE[CUT_STEP:12_000], FILE[:11_990]) == FILE[CUT_STEP:11_990]
    assert from_start_of(FILE[: CUT_STEP - 1], FILE[:9_000]) == FILE[:9_000], "too short to tell"
