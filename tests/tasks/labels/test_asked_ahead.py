"""Requests that llama.vim and llama.vscode send ahead, as if the text that they show were accepted: nobody wrote it."""

from collections.abc import Sequence
from typing import Any

import polars as pl
import pytest

from infra.records import Completion
from infra.settings.schema import Hindsight
from tasks.labels import hindsight
from tasks.labels.ahead import asked_ahead
from tasks.labels.partitions import HOUR
from tests.tasks import rows
from tests.tasks.labels.test_hindsight import accounted, joined, row
from tests.tasks.labels.test_hindsight_truth import MOST, QUIET, written
from tests.tasks.made import NOW, completion

TOP = "import os\n\nfrom shop.prices import load_prices\n\n\n"
BODY = "def total_of(names: list[str]) -> float:\n    prices = load_prices(os.environ['SHOP'])\n    result = 0.0\n    "
TAIL = "\n\n\nclass Order:\n    def __init__(self, names: list[str]) -> None:\n        self.names = names\n"
SHOWN = "if result > 100:\n        result = with_discount(result)\n        notify(result)\n    return result"


def asked(id: str, at: float, prefix: str, suffix: str = TAIL, text: str = "\n", **fields: Any) -> Completion:
    values = {"time": NOW + at, "client": "llama", "prefix": prefix, "suffix": suffix, "text": text}
    return completion(id, **{**values, **fields})


@pytest.mark.parametrize("functions", [0, 3])
def test_a_request_that_was_sent_ahead_ends_no_document(functions: int) -> None:
    """In a short file, half of what it shows is gone later."""
    top = TOP + "".join(f"def price_{n}(name: str) -> float:\n    return load_prices({n})[name]\n\n\n" for n in range(functions))
    first, ahead = asked("c", 0, top + BODY, text=SHOWN), asked("a", 0.4, top + BODY + SHOWN)
    later = asked("d", 20, top + BODY + "return round(result, 2)" + TAIL + "        self.", "")
    alone, found = row(accounted([first, later])), row(accounted([first, ahead, later]))
    assert found["settled"] == "return round(result, 2)"
    assert found["kept_characters"] == alone["kept_characters"] < 20


def test_a_text_that_nobody_wrote_is_not_kept() -> None:
    first, second = asked("c", 0, TOP + BODY, text=SHOWN), asked("b", 15, TOP + BODY + "check(names)\n    ", text=SHOWN)
    alone = row(accounted([first, second]))
    found = row(accounted([first, second, asked("a", 15.4, second.prefix + SHOWN)]))
    assert found["settled"] == "check(names)\n"
    assert found["kept_characters"] == alone["kept_characters"] < 5


def test_an_accepted_text_shows_in_the_next_request_and_the_one_behind_it_does_not() -> None:
    """The editor shows the completion behind it from its cache, and asks ahead of that."""
    accepted, refused = "if result > 100:", "\n        result = with_discount(result)"
    first, ahead = asked("c", 0, TOP + BODY, text=accepted), asked("a", 0.4, TOP + BODY + accepted, text=refused)
    further = asked("b", 12, ahead.prefix + refused)
    later = asked("d", 25, ahead.prefix + "\n        return 100" + TAIL + "        self.", "")
    found = accounted([first, ahead, further, later])
    assert row(found)["kept_characters"] == len(accepted) and row(found)["settled"] == accepted + "\n        return 100"
    assert row(found, "a")["settled"] == "\n        return 100"
    assert row(found, "a")["kept_characters"] == 0
    assert [row(found, id)["written"] for id in "ca"] == [len(accepted + "\n        return 100"), None]


def test_of_an_editor_that_reports_a_request_behind_an_accept_shows_text_that_was_written() -> None:
    first, behind = asked("c", 0, TOP + BODY, text=SHOWN), asked("d", 12, TOP + BODY + SHOWN)
    for client, settled in (("llama", None), ("tabby", SHOWN[: SHOWN.rindex("\n") + 1])):
        served = [one.model_copy(update={"client": client}) for one in (first, behind)]
        found = hindsight.settle(rows.frame(served, Completion), pl.Series(["c"]), Hindsight())
        assert found["settled"].to_list() == [settled]


@pytest.mark.parametrize(
    ("prefix", "text", "ahead"),
    [
        (BODY + "total", "total", True),
        (BODY + "total", "total\n\n", True),
        (BODY + "total\n    ", "total\n    ", True),  # llama.vim
        (BODY + "total", "total\n    ", True),  # llama.vscode
        (BODY[20:] + "total", "total", True),  # so many lines before the cursor are sent
        (BODY + "total\n    ", "total", False),
        (BODY + "tot", "total", False),
        (BODY, "\n\n", False),
        (TOP + "total", "total", False),
    ],
)
def test_the_prefix_is_the_earlier_one_with_the_text_that_was_served(prefix: str, text: str, ahead: bool) -> None:
    assert found([asked("c", 0, BODY, text=text), asked("a", 1, prefix)]) == [False, ahead]


@pytest.mark.parametrize("fields", [{"user": "v"}, {"project": "q"}, {"client": "tabby"}, {"time": NOW + 31}])
def test_another_request_was_not_sent_ahead(fields: dict[str, Any]) -> None:
    assert found([asked("c", 0, BODY, text="total"), asked("a", 1, BODY + "total", **fields)]) == [False, False]


def test_other_requests_may_come_in_between() -> None:
    between = [asked(f"b{n}", 0.1 * n, BODY + "x" * n, text="y") for n in range(1, 4)]
    first, ahead = asked("c", 0, BODY, text="total"), asked("d", 1, BODY + "total")
    assert found([first, *between[:2], ahead]) == [False, False, False, True]
    assert not any(found([first, *between, ahead]))


def test_the_labels_are_the_same_where_the_hour_turns_between_the_two() -> None:
    first, second = (
        asked("c", HOUR - 20, TOP + BODY, text=SHOWN),
        asked("b", HOUR - 0.2, TOP + BODY + "check(names)\n    ", text=SHOWN),
    )
    served = [first, second, asked("a", HOUR + 0.2, second.prefix + SHOWN)]
    (whole, one), (divided, two) = joined(served, [], 0, 1, 10**9), joined(served, [], 0, 1, 0)
    assert (one, two) == (1, 2) and divided == whole
    assert [label["settled"] for label in whole] == ["check(names)\n", None, None]


def found(requests: Sequence[Completion]) -> list[bool]:
    return asked_ahead(rows.frame(requests, Completion)).to_list()


def labels(requests: Sequence[Completion]) -> dict[str, str]:
    settings = Hindsight(quiet_seconds=QUIET, most_seconds=MOST)
    settled = hindsight.settle(rows.frame(requests, Completion), pl.Series([one.id for one in requests]), settings)
    return dict(settled.drop_nulls("settled").select("id", "settled").iter_rows())


def test_simulated_developers_of_such_an_editor_lose_no_label() -> None:
    """Each request is followed by the one that is sent ahead; the texts that they accept are right, the others wrong."""
    alone, sent = [], []
    for one in written():
        position = one.pause.position
        text = position.truth if one.truth.kind == "accepted" else "raise NotImplementedError(self)\n    return None"
        place = {"user": one.pause.developer.name, "suffix": one.pause.suffix}
        first = asked(one.id, one.time - NOW, one.pause.prefix, text=text, **place)
        ahead = asked(f"{one.id}-ahead", one.time - NOW + 0.4, one.pause.prefix + text.rstrip("\n"), **place)
        alone.append(first.model_copy(update={"client": "continue"}))
        sent += [first, ahead]
    expected, both = labels(alone), labels(sent)
    assert len(expected) > 1000
    assert sum(both.get(id) == text for id, text in expected.items()) >= 0.99 * len(expected)
    assert sum(id in expected for id in both) >= 0.99 * len([id for id in both if not id.endswith("-ahead")])
