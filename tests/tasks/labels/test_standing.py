"""Standing lines: which lines of a prefix become places of their own, in the batch and in the caps."""

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from infra.fim import Renderer
from infra.records import Sample
from infra.settings import ROOT
from infra.settings.schema import Collect
from infra.store import from_parquet
from tasks.labels import samples, standing
from tasks.labels.samples import SettledTokens
from tasks.rewards.weights import cap_weights
from tests.tasks import rows
from tests.tasks.labels.test_accounting import account_with_samples
from tests.tasks.made import NOW, MemoryStore, completion, feedback, sample
from tests.tasks.rows import sample_frame

CODE = "import os\n\n\ndef size(path):\n    status = os.stat(path)\n    return status.st_size\n\n\ndef main():\n    pri"
TEXTS = st.lists(st.sampled_from(["", "a = 1", "    b(2)", "  ", "return x", "é"]), max_size=12).map("\n".join)


@given(TEXTS, st.integers(0, 5))
def test_a_place_is_inside_a_line_that_ends_and_holds_something(prefix: str, most: int) -> None:
    cursors = standing.pick(prefix, most, set())
    assert len(cursors) <= most
    for before, rest, after in standing.places(prefix, "tail", cursors):
        assert before + rest + after == prefix + "tail"
        assert rest.strip() and "\n" not in rest and after.startswith("\n")
        assert not rest[0].isspace() or before.rpartition("\n")[2].strip(), "not inside the indentation"


@given(TEXTS, st.text("ab\n", max_size=6))
def test_a_line_is_taken_once_however_the_file_grows(prefix: str, more: str) -> None:
    seen: set[bytes] = set()
    first = standing.pick(prefix, 99, seen)
    assert standing.pick(prefix, 99, seen) == []
    again = standing.pick(prefix + "\n" + more, 99, seen)
    changed = prefix.rfind("\n", 0, max(prefix.rfind("\n"), 0)) + 1
    assert all(cursor >= changed for cursor in again), "only below the last line are lines new"
    assert first == standing.pick(prefix, 99, set()), "the choice depends on the text alone"


def test_the_first_line_and_the_one_being_typed_are_no_places() -> None:
    """The first may begin in the middle, where the record cuts the prefix."""
    rests = {rest for _, rest, _ in standing.places(CODE, "", standing.pick(CODE, 99, set()))}
    assert len(rests) == 4
    assert all(any(line.endswith(rest) for line in CODE.split("\n")[1:-1]) for rest in rests)


def test_standing_lines_are_rows_of_their_sample_with_its_weight() -> None:
    tokenizer = Tokenizer.from_file(str(ROOT / "infra" / "base_model" / "tokenizer.json"))
    made = SettledTokens(Renderer(tokenizer, "spm", 96, 24), 24, 1)
    store = MemoryStore()
    served = [completion("c", prefix=CODE, suffix="()\n"), completion("d", prefix=CODE, suffix="()\n", time=NOW + 2, user="v")]
    rows.put(store, served, [feedback("f", prefix=CODE, suffix="()\n")])
    limits = Collect(max_user_share=1, max_user_weight=1, max_new_users=0)
    accounting, _ = account_with_samples(served, [feedback("f", prefix=CODE, suffix="()\n")], limits=limits)
    plan = rows.plan_store(store)
    found = standing.with_standing(store, plan.partitions, accounting.samples, 3)
    found = samples.with_settled_tokens(found, made)
    capped = found.with_columns(settled_weight=pl.lit(0.25), reward=pl.lit(1.0), advantage=pl.lit(0.5))
    batch = from_parquet(samples.parquet(samples.tables(store, plan.partitions, capped, made)), Sample)
    own, *lines = batch
    assert (own.completion_id, own.outcome, own.advantage) == ("c", "accepted", 0.5)
    assert [line.completion_id for line in lines] == ["c/1", "c/2", "c/3"]
    assert {(line.outcome, line.user, line.settled_weight, line.advantage) for line in lines} == {("standing", "u", 0.25, 0.0)}
    written = [tokenizer.decode(line.settled_token_ids[:-1]) for line in lines]
    assert [line.settled_token_ids[-1] for line in lines] == [made.renderer.end] * 3
    assert sorted(written) == sorted(found["standing_text"].item())
    assert sum(len(line.settled_token_ids) for line in lines) == found["standing_tokens"].item()
    for line, rest in zip(lines, written, strict=True):
        before = tokenizer.decode(line.prompt_token_ids, skip_special_tokens=True)
        assert any(row.endswith(rest) and rest for row in CODE.split("\n")) and "main" in before + rest


def test_standing_lines_count_in_their_users_weight() -> None:
    frame = sample_frame([sample(user, user=user, settled_token_ids=[7] * 2) for user in "abcd"])
    heavy = frame.with_columns(standing_tokens=pl.when(pl.col("user") == "d").then(30).otherwise(0))
    assert cap_weights(heavy, {"user": 0.25})["settled_weight"].to_list() == pytest.approx([1.0, 1.0, 1.0, 2 / 32])
