"""Context lines: which lines of a prefix become places of their own, in the batch and in the caps."""

from collections.abc import Sequence, Set
from itertools import groupby, pairwise
from unittest.mock import patch

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from infra.model.fim import Renderer
from infra.records import Completion, Sample
from infra.settings import ROOT
from infra.settings.schema import Collect
from infra.storage.store import from_parquet
from tasks.labels import context_lines, samples
from tasks.labels.appeared import FileHistory, Histories
from tasks.labels.partitions import HOUR, plan_window
from tasks.labels.pipeline import join_partition, merge_partitions
from tasks.labels.samples import SettledTokens
from tasks.rewards.weights import TooFewToShare, cap_weights
from tests.tasks import rows
from tests.tasks.labels.test_accounting import account_with_samples
from tests.tasks.labels.test_partitions import EVERYTHING, store_events
from tests.tasks.made import NOW, MemoryStore, completion, feedback, sample
from tests.tasks.rows import sample_frame

CODE = "import os\n\n\ndef size(path):\n    status = os.stat(path)\n    return status.st_size\n\n\ndef main():\n    pri"
TEXTS = st.lists(st.sampled_from(["", "a = 1", "    b(2)", "  ", "return x", "é"]), max_size=12).map("\n".join)


def picked(prefix: str, most: int = 99, pasted: Set[int] = frozenset()) -> list[int]:
    """Return the cursors in lines of a prefix, of which none was taken."""
    return context_lines.pick(context_lines.offered(prefix, pasted), most, set())


@given(TEXTS, st.integers(0, 5))
def test_a_place_is_inside_a_line_that_ends_and_holds_something(prefix: str, most: int) -> None:
    cursors = picked(prefix, most)
    assert len(cursors) <= most
    for before, rest, after in context_lines.places(prefix, "tail", cursors):
        assert before + rest + after == prefix + "tail"
        assert rest.strip() and "\n" not in rest and after.startswith("\n")
        assert not rest[0].isspace() or before.rpartition("\n")[2].strip(), "not inside the indentation"


@given(TEXTS, st.text("ab\n", max_size=6))
def test_a_line_is_taken_once_however_the_file_grows(prefix: str, more: str) -> None:
    seen: set[int] = set()
    first = context_lines.pick(context_lines.offered(prefix), 99, seen)
    assert context_lines.pick(context_lines.offered(prefix), 99, seen) == []
    again = context_lines.pick(context_lines.offered(prefix + "\n" + more), 99, seen)
    changed = prefix.rfind("\n", 0, max(prefix.rfind("\n"), 0)) + 1
    assert all(cursor >= changed for cursor in again), "only below the last line are lines new"
    assert first == picked(prefix), "the choice depends on the text alone"


def test_the_first_line_and_the_one_being_typed_are_no_places() -> None:
    """The first may begin in the middle, where the record cuts the prefix."""
    rests = {rest for _, rest, _ in context_lines.places(CODE, "", picked(CODE))}
    assert len(rests) == 4
    assert all(any(line.endswith(rest) for line in CODE.split("\n")[1:-1]) for rest in rests)


def test_context_lines_are_rows_of_their_sample_with_its_weight() -> None:
    tokenizer = Tokenizer.from_file(str(ROOT / "infra" / "base_model" / "tokenizer.json"))
    made = SettledTokens(Renderer(tokenizer, "spm", 96, 24), 24, 1)
    store = MemoryStore()
    served = [completion("c", prefix=CODE, suffix="()\n"), completion("d", prefix=CODE, suffix="()\n", time=NOW + 2, user="v")]
    rows.put(store, served, [feedback("f", prefix=CODE, suffix="()\n")])
    limits = Collect(max_user_share=1, max_user_weight=1, max_new_users=0)
    accounting, _ = account_with_samples(served, [feedback("f", prefix=CODE, suffix="()\n")], limits=limits)
    plan = rows.plan_store(store)
    found = context_lines.with_context_lines(store, plan.partitions, accounting.samples, 3)
    read = samples.read_tokens(store, plan.partitions, found, made)
    found = samples.with_settled_tokens(found, made, read)
    capped = found.with_columns(settled_weight=pl.lit(0.25), reward=pl.lit(1.0), advantage=pl.lit(0.5))
    batch = from_parquet(samples.parquet(samples.tables(read, capped)), Sample)
    own, *lines = batch
    assert (own.completion_id, own.outcome, own.advantage) == ("c", "accepted", 0.5)
    assert [line.completion_id for line in lines] == ["c/1", "c/2", "c/3"]
    assert {(line.outcome, line.user, line.settled_weight, line.advantage) for line in lines} == {("standing", "u", 0.25, 0.0)}
    written = [tokenizer.decode(line.settled_token_ids[:-1]) for line in lines]
    assert [line.settled_token_ids[-1] for line in lines] == [made.renderer.end] * 3
    assert sorted(written) == sorted(rest for _, rest, _ in context_lines.places(CODE, "", found["standing"].item()))
    assert sum(len(line.settled_token_ids) for line in lines) == found["standing_tokens"].item()
    silent = capped.with_columns(tokens=0, settled_token_ids=pl.lit([], pl.List(pl.Int64)))
    blank = samples.read_tokens(store, plan.partitions, found.with_columns(tokens=0), made)
    assert from_parquet(samples.parquet(samples.tables(blank, silent)), Sample) == lines, "it has no tokens of its own"
    for line, rest in zip(lines, written, strict=True):
        before = tokenizer.decode(line.prompt_token_ids, skip_special_tokens=True)
        assert any(row.endswith(rest) and rest for row in CODE.split("\n")) and "main" in before + rest


def test_context_lines_count_in_their_users_weight() -> None:
    frame = sample_frame([sample(user, user=user, settled_token_ids=[7] * 2) for user in "abcd"])
    heavy = frame.with_columns(standing_tokens=pl.when(pl.col("user") == "d").then(30).otherwise(0))
    assert cap_weights(heavy, (), {"user": 0.25})[0]["settled_weight"].to_list() == pytest.approx([1.0, 1.0, 1.0, 2 / 32])


PASTE = "".join(f"    total_{number} = compute_{number}(first_{number}, second_{number})\n" for number in range(20))
OWN = "import os\n\n\ndef first_of_all(path):\n    status = os.stat(path)\n    return status.st_size\n\n\n"
BELOW = "\n\ndef last_of_all(path):\n    return open(path)\n"
MOST = 512 + 4 * 24
"""Characters that may appear between two requests with the settings of these tests."""


def rests(prefix: str, pasted: Set[str]) -> set[str]:
    cursors = picked(prefix, pasted=set(map(hash, pasted)))
    return {rest.strip() for _, rest, _ in context_lines.places(prefix, "", cursors)}


def seen_as_pasted(*documents: tuple[str, str], file: str = "a.py") -> set[str]:
    histories = Histories()
    found: set[int] = set()
    for prefix, suffix in documents:
        found = histories.pasted(("p", "u", file), prefix, suffix, MOST)
    return {line for document in documents for line in lines_of("".join(document)) if hash(line) in found}


def lines_of(text: str) -> set[str]:
    return {line.strip() for line in text.split("\n") if line.strip()}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((OWN, BELOW), (OWN + PASTE, BELOW)),  # at the cursor
        ((OWN, BELOW), (OWN, BELOW.replace("\n\n", "\n" + PASTE, 1))),  # behind it
        ((OWN[:30], OWN[30:] + BELOW), (OWN + PASTE + "x = ", BELOW)),  # elsewhere
        ((OWN, ""), (OWN + PASTE, "")),  # at the end of the file
        ((OWN, BELOW), (PASTE * 9 + "x = ", BELOW)),  # so much that nothing of the first request's prefix is left
    ],
)
def test_lines_that_appeared_at_once_are_no_places(first: tuple[str, str], second: tuple[str, str]) -> None:
    pasted = seen_as_pasted(first, second)
    assert lines_of(PASTE) - pasted <= lines_of(PASTE[: PASTE.index("\n")]), "the first line may be cut"
    assert not pasted & lines_of(OWN + BELOW)
    assert not {line for line in rests(second[0], pasted) if "compute_" in line} - lines_of(PASTE[: PASTE.index("\n")])


def test_what_stood_before_the_first_request_or_outside_of_its_text_is_a_place() -> None:
    assert seen_as_pasted((OWN + PASTE, BELOW)) == set(), "the first request of the window"
    assert seen_as_pasted((OWN, BELOW), ("# a\n" + PASTE, PASTE)) == set(), "another part of a large file"
    below = BELOW + PASTE + "y = 1\nz = 2\n"
    assert seen_as_pasted((OWN, BELOW + "cu"), (OWN + below, "x\n")) == set(), "the first request's suffix was cut"
    typed = [(OWN + PASTE[:at], BELOW) for at in range(0, len(PASTE), 400)]
    assert seen_as_pasted(*typed) == set(), "typed, with a request now and then"
    indented = [(OWN + PASTE, BELOW), (OWN + PASTE.replace("    ", "        "), BELOW)]
    assert seen_as_pasted(*indented) == set(), "only the indentation changed"


def test_another_file_without_a_name_is_no_paste() -> None:
    """Zed and llama.vim name no file, and files of one project begin alike."""
    head = "import os\nimport numpy as np\nimport pandas as pd\n\n"
    one, two = (head + PASTE.replace("total", name).replace("compute", f"of_{name}") for name in ("first", "second"))
    changed = two + "more = 1\n"
    assert seen_as_pasted((one, ""), (two, ""), (changed, ""), (one, BELOW), (two, ""), file="") == set()
    assert lines_of(two) - lines_of(one) <= seen_as_pasted((one, ""), (two, "")), "in a file with a name it is a paste"


def test_a_paste_without_a_name_is_seen_beside_half_as_many_lines_of_the_file() -> None:
    """Where it is more than two thirds of what is shown, it counts as another file."""
    for lines, seen in ((12, True), (10, True), (8, False), (2, False)):
        own = "\n" + "".join(f"own_{number} = {number}\n" for number in range(lines))
        pasted = seen_as_pasted((own, "\n"), (own + PASTE, "\n"), file="")
        assert pasted == (lines_of(PASTE) if seen else set())


class Reference:
    """The lines of a file as `FileHistory` keeps them, read whole from every request."""

    def __init__(self) -> None:
        self.lines: set[str] = set()
        self.pairs: set[tuple[str, str]] = set()
        self.pasted: set[str] = set()

    def observe(self, prefix: str, suffix: str, most: int, *, named: bool) -> None:
        whole = [line.strip() for line in (prefix + suffix).split("\n")[1:-1] if line.strip()]
        shown = whole + [""] * (not suffix.strip())
        above, below = {one for one, _ in self.pairs}, {other for _, other in self.pairs}
        written: list[str] = []
        for is_new, run in groupby(range(len(shown)), key=lambda at: shown[at] not in self.lines):
            first, *others = run
            last = others[-1] if others else first
            before, behind = tuple(shown[max(first - 2, 0) : first]), tuple(shown[last + 1 : last + 3])
            stood = (before in self.pairs and before[-1] in above) or (behind in self.pairs and behind[0] in below)
            written += shown[first : last + 1] if is_new and stood else []
        of_another = not named and 3 * sum(line not in self.lines for line in shown) > 2 * len(whole)
        if sum(map(len, written)) > most and not of_another:
            self.pasted |= set(written)
        self.lines |= set(shown)
        self.pairs |= set(pairwise(shown))


LINES = st.lists(st.sampled_from(["", "  ", "\t", "a", "    b(2)", "é", *(f"line_{n} = {n}" * 9 for n in range(9))]), max_size=9)


@given(
    LINES, st.lists(st.tuples(st.integers(0, 99), st.integers(0, 3), LINES, st.integers(0, 999), st.integers(0, 200))), st.data()
)
def test_a_history_is_that_of_reading_every_request_whole(
    document: list[str], edits: list[tuple[int, int, list[str], int, int]], data: st.DataObject
) -> None:
    """A document is edited at places; requests show a part of it around a cursor, at the edit or elsewhere."""
    history, reference, most = FileHistory(), Reference(), data.draw(st.sampled_from([0, 9, 90]))
    named = data.draw(st.booleans())
    for at, gone, new, cursor, size in edits:
        document[at : at + gone] = new
        text = "\n".join(document)
        cursor = min(cursor, len(text))
        begin, end = (max(0, cursor - size), cursor + size) if size else (0, len(text))
        for one in (history, reference):
            one.observe(text[begin:cursor], text[cursor:end], most, named=named)
        pairs = {(one, other) for one, other in history.behind.items() if other is not None} | history.others
        assert history.pasted == set(map(hash, reference.pasted)) and set(history.behind) == set(map(hash, reference.lines))
        assert pairs == {(hash(one), hash(other)) for one, other in reference.pairs}


def request(number: int, user: str, time: float, prefix: str) -> Completion:
    return completion(f"c{number}", time=time, user=user, file="a.py", prefix=prefix, suffix=BELOW, text="x", credential=user)


@st.composite
def histories(draw: st.DrawFn) -> list[Completion]:
    """Draw the requests of two users, some with a paste since the one before, around the turns of hours."""
    served, texts = [], dict.fromkeys("uv", OWN)
    for number in range(draw(st.integers(1, 8))):
        user = draw(st.sampled_from("uv"))
        block = draw(st.sampled_from(["", "y = 1\n", PASTE, PASTE.replace("total", "sum")]))
        texts[user] = draw(st.sampled_from([texts[user] + block, OWN + block + texts[user][len(OWN) :]]))
        served.append(request(number, user, NOW + draw(st.sampled_from([0.0, 0.5])) + number * HOUR / 2, texts[user]))
    return served


def cursors_of(
    served: Sequence[Completion], seed: int, objects: int, least: int, *, apart: bool = False
) -> dict[str, list[int] | None]:
    """Return the cursors of the context lines of every other request, which are the samples; `apart`: by groups of users."""
    store = store_events(served, [], seed, objects)
    plan = plan_window(store, EVERYTHING, NOW + 9 * HOUR, 60.0, least)
    labelled, _ = merge_partitions([join_partition(store, partition) for partition in plan.partitions])
    samples_ = labelled.filter(pl.col("id").is_in([row.id for row in served][::2]))
    read_all = (lambda work, groups: [work(store, group) for group in reversed(groups)]) if apart else None
    found = context_lines.with_context_lines(store, plan.partitions, samples_, 3, read_all)
    return dict(found.select("id", "standing").iter_rows())


def line_of(prefix: str, cursor: int) -> str:
    return prefix[prefix.rfind("\n", 0, cursor) + 1 : prefix.index("\n", cursor)].strip()


@given(histories(), st.integers(0, 99), st.integers(1, 4))
@settings(max_examples=20, deadline=None)
def test_context_lines_depend_on_no_order_object_or_partition(served: list[Completion], seed: int, objects: int) -> None:
    expected = cursors_of(served, 0, 1, 50_000)
    with patch("tasks.labels.context_lines.TAKEN", 2):
        assert cursors_of(served, seed, objects, 1) == expected
        assert cursors_of(served, seed, objects, 1, apart=True) == expected
    seen: dict[str, str] = {}
    for row in served:
        pasted = {line for line in lines_of(row.prefix) - lines_of(seen.get(row.user, row.prefix)) if "compute_" in line}
        taken = {line_of(row.prefix, cursor) for cursor in expected.get(row.id) or []}
        assert sum(map(len, pasted)) <= MOST or not pasted & taken
        seen[row.user] = row.prefix


WEIGHTS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 200)), min_size=6, max_size=6)


@given(WEIGHTS, st.floats(0.2, 0.6), st.floats(0.35, 1))
def test_context_lines_and_settled_text_have_one_cap_for_each_user_and_project(
    tokens: list[tuple[int, int]], share: float, of_project: float
) -> None:
    rows_ = [
        sample(f"c{n}", user="abcde"[n % 5], project="pqr"[n % 3], settled_token_ids=[7] * (1 + written))
        for n, (written, _) in enumerate(tokens)
    ]
    frame = sample_frame(rows_).with_columns(standing_tokens=pl.Series([stood for _, stood in tokens], dtype=pl.Int64))
    try:
        capped = cap_weights(frame, (), {"user": share, "project": of_project})[0]
    except TooFewToShare:
        return
    size = pl.col("settled_weight") * (pl.col("settled_token_ids").list.len() + pl.col("standing_tokens"))
    total = capped.select(size.sum()).item()
    for name, most in (("user", share), ("project", of_project)):
        assert capped.group_by(name).agg(size.sum())["settled_weight"].max() <= most * total * (1 + 1e-6)
