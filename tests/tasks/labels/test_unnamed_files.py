"""Settled text of files without names: a user switches between files with licences, imports, functions or cells in common."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

import polars as pl
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from infra.records import Completion
from infra.settings.schema import Hindsight
from tasks.labels import hindsight
from tasks.labels.documents import KnownLines, compare, seen, shows_again
from tasks.labels.hindsight import ANCHOR_CHARACTERS
from tests.tasks import rows
from tests.tasks.labels.test_accounting import LINEAGE
from tests.tasks.labels.test_hindsight import LIMITS
from tests.tasks.made import NOW, completion

Kind = Literal["licence", "copied", "cells", "similar"]
KINDS: tuple[Kind, ...] = ("licence", "copied", "cells", "similar")
USERS = 60
"""Streams of each kind."""
LICENCE = "".join(f"# Part {n} of the licence, which every file of this project begins with.\n" for n in range(9))
IMPORTS = "import json\nimport logging\nfrom collections.abc import Iterator\n\nlog = logging.getLogger(__name__)\n\n\n"
SHARED = (
    "def read_rows(path: str) -> list[dict]:\n    rows = []\n    with open(path) as file:\n        for line in file:\n"
    "            row = json.loads(line)\n            if not row:\n                continue\n            rows.append(row)\n"
    "    return rows\n\n\ndef run(path: str) -> None:\n    rows = read_rows(path)\n    log.info('read %s', path)\n"
)
CELL = "fig, axes = plt.subplots(1, 2, figsize=(12, 4))\nframe = load_frame(path).dropna()\n"
WORDS = ("order", "bill", "user", "cart", "shop", "price", "stock", "claim", "route", "fleet", "crew", "plan", "tax", "fee")


@dataclass(frozen=True)
class File:
    """A file as it is in the end: the lines between `top` and `tail` are written one after another."""

    top: str
    written: tuple[str, ...]
    tail: str


@dataclass(frozen=True)
class Asked:
    """A request of a stream, and the rest of the line that is written at its place."""

    request: Completion
    file: int
    rest: str


def made(kind: Kind, names: Sequence[str], rng: random.Random) -> File:
    """A file with names of its own."""
    one, two, three = names
    own = f"def load_{one}(path: str) -> dict:\n    {one} = read_rows(path)[{rng.randrange(9)}]\n    return {one}\n\n\n"
    fields = rng.choices(WORDS, k=8)
    calls = [f"    {word}_{n} = {one}.{rng.choice(WORDS)}({two}, {rng.randrange(99)})\n" for n, word in enumerate(fields)]
    tail = f"\n\ndef save_{three}(path: str, {three}: dict) -> None:\n    write_rows(path, [{three}, {rng.randrange(99)}])\n"
    match kind:
        case "licence":
            top = LICENCE + IMPORTS + rng.choice(["", own]) + f"def total_{two}({one}: dict) -> float:\n"
        case "copied":
            top = IMPORTS + own + SHARED
        case "cells":
            top, tail = f"path = 'data/{one}_{two}.csv'\n" + CELL, "plt.show()\n"
            calls = [f"axes[{n % 2}].plot(frame['{word}'], label='{rng.choice(WORDS)}')\n" for n, word in enumerate(fields[:4])]
        case "similar":
            top = IMPORTS + f"class {one.title()}View(View):\n    model = {one.title()}\n    template = '{one}.html'\n\n"
            top += f"    def get(self, request):\n        {one} = self.find(request.key)\n"
            calls = [f"        {one}.{word} = request.{rng.choice(WORDS)}({rng.randrange(99)})\n" for word in fields]
            tail = f"        return self.render({one})\n\n    def post(self, request):\n        self.save(request)\n"
    return File(top, tuple(calls), tail if kind == "similar" else rng.choice(["", tail]))


def stream(kind: Kind, seed: int, windows: Sequence[int] = (10_000, 10_000, 600)) -> Iterator[Asked]:
    """A user writes several files in turn, some in windows of a few hundred characters, a request every few seconds."""
    rng = random.Random(f"{kind}-{seed}")
    names = rng.sample(WORDS, 9)
    files = [made(kind, names[at : at + 3], rng) for at in (0, 3, 6)]
    window = rng.choice(windows)
    done, at, now = [0, 0, 0], 0, NOW + 10_000.0 * seed
    number = 0
    while any(done[n] < len(file.written) for n, file in enumerate(files)):
        now += rng.uniform(4, 20)
        if rng.random() < 0.25 or done[at] == len(files[at].written):
            at, now = rng.choice([n for n, file in enumerate(files) if done[n] < len(file.written)]), now + rng.uniform(2, 30)
        file = files[at]
        line = file.written[done[at]]
        column = rng.choice([len(line) - len(line.lstrip()), rng.randrange(len(line))])
        before = file.top + "".join(file.written[: done[at]]) + line[:column]
        place = {"prefix": before[-window:], "suffix": "\n" + file.tail[:window]}
        request = completion(f"{kind}-{seed}-{number}", time=now, user=f"{kind}-{seed}", project="p", **place)
        yield Asked(request, at, line[column:].rstrip("\n"))
        number += 1
        done[at] += rng.random() < 0.8


@cache
def streams(kind: Kind) -> tuple[Asked, ...]:
    return tuple(asked for seed in range(USERS) for asked in stream(kind, seed))


def labels(asked: Sequence[Asked], *, named: bool) -> dict[str, str]:
    requests = [one.request.model_copy(update={"file": str(one.file) if named else ""}) for one in asked]
    found = hindsight.settle(rows.frame(requests, Completion), pl.Series([one.request.id for one in asked]), Hindsight())
    return dict(found.drop_nulls("settled").select("id", "settled").iter_rows())


def right(one: Asked, label: str) -> bool:
    return label.split("\n")[0] == one.rest


@pytest.mark.parametrize("kind", KINDS)
def test_a_label_is_of_its_file_and_few_are_lost(kind: Kind) -> None:
    """At least 99.5 % of the labels are right, at a tenth at most of those that names of files give."""
    asked = streams(kind)
    unnamed, named = labels(asked, named=False), labels(asked, named=True)
    wrong = [one for one in asked if one.request.id in unnamed and not right(one, unnamed[one.request.id])]
    possible = [one.request.id for one in asked if one.request.id in named and len(one.request.prefix) >= ANCHOR_CHARACTERS]
    kept = sum(id in unnamed for id in possible)
    assert len(unnamed) > 300
    assert len(wrong) <= 0.005 * len(unnamed)
    assert kept >= 0.9 * len(possible)


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(KINDS), st.integers(USERS, 10**6))
def test_no_label_is_of_another_file_however_a_user_switches(kind: Kind, seed: int) -> None:
    asked = tuple(stream(kind, seed, (10_000,)))
    found = hindsight.settle(frame(asked), pl.Series([one.request.id for one in asked]), Hindsight())
    files = {one.request.id: one.file for one in asked}
    assert all(files[id] == files[by] for id, by in found.drop_nulls("settled").select("id", "settled_by").iter_rows())


def begins_copied(window: str) -> bool:
    """Whether a window shows nothing above the copied code that is its file's own: at most the end of a word."""
    cut, _, rest = window.partition("\n")
    return (window if len(cut) > 2 else rest).lstrip()[:40] in SHARED


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(KINDS), st.integers(USERS, 10**6))
@example("copied", 48224)  # a file that begins is followed by the end of another, in a window of the copied code
@example("copied", 16994)  # the same in a window that begins with the blank lines above the copied code
@example("copied", 37470)  # and with the last letter of a name
def test_text_that_is_shown_again_is_compared_no_further(kind: Kind, seed: int) -> None:
    """The comparison of all lines gives the same answer."""
    asked, known = tuple(stream(kind, seed)), KnownLines()
    shown = [(one.request.prefix + one.request.suffix, len(one.request.prefix)) for one in asked]
    pairs = [(earlier, later) for later in range(len(asked)) for earlier in range(max(0, later - 6), later)]
    again = [(earlier, later) for earlier, later in pairs if shows_again(*shown[earlier], *shown[later])]
    lines = [seen(*one, known) for one in shown]
    assert all(compare(lines[earlier], lines[later]) == "same" for earlier, later in again)
    own = [pair for pair in again if not begins_copied(asked[pair[1]].request.prefix)]
    assert all(asked[earlier].file == asked[later].file for earlier, later in own)
    assert len(again) > len(asked) / 2


def frame(asked: Sequence[Asked]) -> pl.DataFrame:
    return rows.frame([one.request for one in asked], Completion)


ORDERS = "import sql\n\n\ndef orders(customer):\n    rows = sql.query('orders', customer)\n    found = list(rows)\n"
BILLS = "import mail\n\n\nclass Bills(Table):\n    def send(self, month):\n        mail.open(self)\n        self.month = month\n"
LAST = "    # the following total is without tax and without shipping\n    total = "


def test_the_text_of_another_file_is_not_settled_where_both_end_alike() -> None:
    """Zed names no file. Two files differ in all but the last 60 characters before the cursor."""
    first = completion("c", time=NOW, user="u", prefix=ORDERS + LAST, suffix="\n    return total\n")
    other = completion("d", time=NOW + 60, user="u", prefix=BILLS + LAST + "month.bills\n    return total\n", suffix="")
    again = completion("e", time=NOW + 70, user="u", prefix=ORDERS + LAST + "sum(rows)\n    return total\n\n\nde", suffix="\n")
    for requests, expected in (([first, other], (None, "not_shown")), ([first, again, other], ("sum(rows)", ""))):
        found = hindsight.settle(rows.frame(requests, Completion), pl.Series(["c"]), Hindsight())
        assert found.select("settled", "unsettled").row(0) == expected
        # The same by way of the stored events, to the bucket and the row that is trained on.
        classified = rows.account(requests, limits=LIMITS, lineage=LINEAGE, until=NOW + 1000).classified
        row = classified.row(by_predicate=pl.col("id") == "c", named=True)
        assert (row["settled"], row["bucket"]) == (expected[0], "trained" if expected[0] else "unlabelled")


def test_too_little_around_the_place_is_no_document() -> None:
    """Comments and imports alone may begin any file."""
    head = LICENCE + "import json\nimport logging\n\n"
    first = completion("c", time=NOW, user="u", prefix=head, suffix="")
    later = completion("d", time=NOW + 60, user="u", prefix=head + "class Bills:\n    rows = []\n", suffix="")
    found = hindsight.settle(rows.frame([first, later], Completion), pl.Series(["c"]), Hindsight())
    assert found.select("settled", "unsettled").row(0) == (None, "unknown_file")
