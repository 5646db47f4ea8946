"""Labels of documents whose lines end in CRLF or CR: from the stream of requests to the trained row."""

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.model.fim import Renderer
from infra.model.line_ends import LineEnd, normal
from infra.records import Completion, Feedback, HeldOutPlace
from infra.settings.schema import Hindsight
from tasks.evaluation.heldout.sets import position_of
from tasks.evaluation.models.base import Text
from tasks.evaluation.team_set import truth_of
from tasks.labels import context_lines, hindsight, samples
from tasks.labels.samples import SettledTokens
from tests.infra.model.test_fim import TOKENIZER
from tests.tasks import rows
from tests.tasks.labels.test_accounting import LINEAGE
from tests.tasks.labels.test_hindsight import BEGIN, END, LIMITS, TEXT, asked, behind
from tests.tasks.made import NOW, MemoryStore, completion, feedback

RENDERER = Renderer(TOKENIZER, "psm", 10_000, 10_000)
ENDS: list[LineEnd] = ["\n", "\r\n", "\r"]


def with_ends(request: Completion, end: str) -> Completion:
    texts = {name: getattr(request, name).replace("\n", end) for name in ("prefix", "suffix")}
    return request.model_copy(update=texts)


def trained(requests: list[Completion], sent: list[Feedback] | None = None, lines: int = 1) -> list[tuple[str, str, str]]:
    """The rows of a cycle's batch, in order: outcome, prompt and the text that is trained on, as text."""
    store = MemoryStore()
    rows.put(store, requests, sent or [])
    plan = rows.plan_store(store, hindsight=LIMITS.hindsight)
    accounting = rows.account(requests, sent or [], limits=LIMITS, lineage=LINEAGE, until=NOW + 1000)
    tokens = SettledTokens(RENDERER, 1_000, lines)
    chosen = context_lines.with_context_lines(store, plan.partitions, accounting.samples, 3)
    read = samples.read_tokens(store, plan.partitions, chosen, tokens)
    chosen = samples.with_settled_tokens(chosen.with_columns(reward=0.0, advantage=0.0), tokens, read)
    found = [row for table in samples.tables(read, chosen) for row in table.to_pylist()]
    return [(row["outcome"], text_of(row["prompt_token_ids"]), text_of(row["settled_token_ids"])) for row in found]


def text_of(tokens: list[int]) -> str:
    return TOKENIZER.decode(tokens, skip_special_tokens=False)


@pytest.mark.parametrize("end", ENDS)
def test_what_is_trained_on_does_not_depend_on_the_line_ends(end: str) -> None:
    """No CR is learnt: not at the end of a settled line, nor in a context line, nor in a prompt that training renders."""
    stream = [asked(), behind(text="foo(1)\n    other = 2")]
    expected = trained(stream)
    found = trained([with_ends(request, end) for request in stream])
    assert found == expected
    assert [text for outcome, _, text in expected if outcome != "standing"] == ["foo(1)<|endoftext|>"]
    assert len(expected) > 1 and "\r" not in "".join(text for row in found for text in row)


@pytest.mark.parametrize("end", ENDS)
def test_the_settled_text_and_the_truth_of_a_held_out_place_end_in_whole_lines(end: str) -> None:
    later = asked("d", 20, "foo(1)\n    other = 2\n    mo")
    frame = rows.frame([with_ends(asked(), end), with_ends(later, end)], Completion)
    (found,) = hindsight.settle(frame, pl.Series(["c"]), Hindsight()).to_dicts()
    assert (found["settled"], found["settled_whole"]) == ("foo(1)\n    other = 2\n", False)
    assert truth_of(found["settled"], False, 1) == "foo(1)"


@pytest.mark.parametrize("end", ["\r\n", "\r"])
@pytest.mark.parametrize("named", [True, False])
def test_an_event_with_other_line_ends_than_the_completion_is_its(named: bool, end: str) -> None:
    """Continue splits what it shows at CRLF and joins the lines by LF, while its prefix is the document's."""
    text = "foo(1)\n    other = 2\n"
    ends = tuple(range(1, len(text.replace("\n", end)) + 1))
    served = with_ends(asked(), end).model_copy(
        update={
            "text": text.replace("\n", end),
            "token_ids": ends,
            "logprobs": (-0.5,) * len(ends),
            "token_ends": ends,
            "finish_reason": "length",
        }
    )
    event = feedback(prefix=served.prefix, suffix=served.suffix, shown="foo(1)\n    other", completion_id="c" if named else "")
    accounting = rows.account([served], [event], limits=LIMITS, lineage=LINEAGE, until=NOW + 1000)
    (row,) = accounting.classified.to_dicts()
    shown = "foo(1)\n    other"
    assert (row["outcome"], row["shown_characters"], row["extent"]) == ("accepted", len(shown), len(shown))
    assert row["tokens"] == len(shown.replace("\n", end))


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("viewed", [True, False])
@pytest.mark.parametrize("named_alone", [True, False])
def test_accepted_characters_are_counted_in_normal_form(named_alone: bool, viewed: bool, end: str) -> None:
    text = end.join(["foo(1)", "bar", "baz"])
    served = with_ends(asked(), end)
    served = completion("c", **{name: getattr(served, name) for name in ("prefix", "suffix")}, text=text)
    place = {"prefix": "", "suffix": "", "completion_id": "c", "shown": "" if named_alone else text}
    sent = feedback(**place, client_id="k", outcome="partially_accepted", accepted_characters=text.index("baz"))
    view = sent.model_copy(update={"id": "v", "outcome": "shown", "shown": text, "accepted_characters": None})
    accounting = rows.account([served], [sent, view][: 1 + viewed], limits=LIMITS, lineage=LINEAGE, until=NOW + 1000)
    (row,) = accounting.classified.to_dicts()
    assert (row["shown_characters"], row["accepted_characters"]) == (len("foo(1)\nbar\nbaz"), len("foo(1)\nbar\n"))


@pytest.mark.parametrize("end", ENDS)
def test_a_report_in_the_documents_line_ends_is_read_in_normal_form(end: str) -> None:
    sent = feedback(prefix="", suffix="", shown="", completion_id="c", settled=f"foo(2){end}bar{end}")
    accounting = rows.account([with_ends(asked(), end)], [sent], limits=LIMITS, lineage=LINEAGE, until=NOW + 1000)
    (row,) = accounting.classified.to_dicts()
    assert (row["settled"], row["settled_by"]) == ("foo(2)\nbar\n", "feedback")


def test_a_cursor_between_cr_and_lf_stands_at_the_end_of_its_line() -> None:
    first, later = with_ends(asked(), "\r\n"), with_ends(behind(), "\r\n")
    first = first.model_copy(update={"prefix": first.prefix + "\r", "suffix": first.suffix.removeprefix("\r")})
    assert [text for outcome, _, text in trained([first, later]) if outcome != "standing"] == [f"{TEXT}<|endoftext|>"]


LINE = st.text(st.sampled_from("ab =\u2028\u2029\u0085\x0b\x0c\x00\ufeffe\u0301\U0001f44d"), max_size=12)


@settings(max_examples=200, deadline=None)
@given(st.lists(LINE, min_size=1, max_size=4), st.integers(0, 40), st.sampled_from(ENDS), st.booleans(), st.integers(0, 3))
def test_what_is_trained_on_inserts_into_any_document(
    written: list[str], cut: int, end: LineEnd, whole: bool, lines: int
) -> None:
    """Serving turns the normal form back into the document's: the settled text is then a beginning of what was written."""
    document = (BEGIN + "\n".join(written) + END).replace("\n", end)
    begin = len(BEGIN.replace("\n", end))
    first = completion("c", time=NOW, user="u", prefix=document[:begin], suffix=END.replace("\n", end))
    seen = len(document) - 5 if whole else begin + cut
    later = completion("d", time=NOW + 20, user="u", prefix=document[:seen], suffix=document[seen:])
    frame = rows.frame([first, later], Completion)
    (found,) = hindsight.settle(frame, pl.Series(["c"]), Hindsight()).to_dicts()
    if found["settled"] is None:
        return
    ids = SettledTokens(RENDERER, 1_000, lines).ids(found["settled"], found["settled_whole"])
    text = TOKENIZER.decode([one for one in ids if one != RENDERER.end])
    assert document.startswith(text.replace("\n", end), begin)
    assert "\r" not in text and (not lines or text.count("\n") < lines)
    assert normal(document[begin:]).startswith(found["settled"])


def test_a_place_of_a_held_out_set_is_completed_in_normal_form() -> None:
    place = HeldOutPlace(id="a", file="a", prefix="a = 1\r\nb = ", suffix="\r\nc\r\n", truth="2\r\nd")
    position = position_of(place)
    assert (position.prefix, position.suffix, position.truth) == ("a = 1\nb = ", "\nc\n", "2\nd")
    text = Text(TOKENIZER, RENDERER, ()).served(TOKENIZER.encode("2\r\nd\re").ids, ("\r\n",))
    assert text == "2", "a stop string of CRLF ends it there"
    assert Text(TOKENIZER, RENDERER, ()).served(TOKENIZER.encode("2\r\nd\re").ids, ()) == "2\nd\ne"
