"""Tabby's completions and events."""

import pytest

from tests.serving.fakes import TEXT, House
from tests.serving.helpers import INFILL


async def test_tabby_and_llama_clients_get_completions(house: House) -> None:
    tabby = (await house.complete(segments={"prefix": "def f(", "suffix": "\n"}, language="python")).json()
    assert tabby["choices"] == [{"index": 0, "text": TEXT}] and tabby["id"] == house.rows("completions")[0].id
    llama = (await house.complete("/infill", **INFILL)).json()
    assert llama["content"] == TEXT
    rows = house.rows("completions")
    assert [row.client for row in rows] == ["tabby", "llama"] and rows[1].prefix == "import os\nx = "
    assert (await house.complete("/infill", input_prefix="", input_suffix="", n_predict=0)).json()["content"] == ""
    assert len(house.rows("completions")) == 2


async def test_the_language_is_the_file_ending_or_the_language_field(house: House) -> None:
    code = {"prefix": "def f(", "suffix": "\n"}
    await house.complete(segments={**code, "filepath": "src/a.py"}, language="python")
    await house.complete(segments=code, language="python")
    await house.complete(segments={**code, "filepath": "src/a.py"}, language="python", headers={"X-Tabloop-Opt-Out": "1"})
    assert [row.language for row in house.rows("completions")] == ["py", "python", ""]
    response = await house.complete(segments={**code, "filepath": 1})
    assert response.status_code == 400 and "segments.filepath" in response.text


async def test_views_selections_and_dismissals_are_recorded(house: House) -> None:
    for kind in ("view", "select", "dismiss"):
        body = {"type": kind, "completion_id": "cmpl-1", "choice_index": 0, "view_id": "view-1", "elapsed": 12}
        assert (await house.send_feedback("/v1/events", body)).status_code == 200
    body = {"type": "select", "completion_id": "cmpl-1", "choice_index": 0}
    assert (await house.send_feedback("/v1/events?select_kind=line", body)).status_code == 200
    assert [row.outcome for row in house.rows("feedback")] == ["shown", "accepted", "rejected", "partially_accepted"]
    assert (await house.send_feedback("/v1/events", {**body, "type": "hover"})).status_code == 400


FILE = {"prefix": "def f(", "suffix": "\n", "filepath": "src/server.ts"}
ORDERS = "git@git.example:team/orders.git"


@pytest.mark.parametrize(
    ("fields", "same"),
    [
        ({"git_url": ORDERS}, True),
        ({"git_url": "https://git.example/team/orders"}, True),
        ({"git_url": "https://git.example/team/orders.git/"}, True),
        ({"git_url": "https://ada:s3cret@git.example/team/orders.git"}, True),
        ({"git_url": "ssh://git@git.example/team/orders.git"}, True),
        ({"git_url": "git@git.example:team/billing.git"}, False),
        ({"git_url": "git@git.example:other/orders.git"}, False),
        ({"git_url": "git@other.example:team/orders.git"}, False),
        ({"git_url": ORDERS, "filepath": "src/other.ts"}, False),
        ({}, False),
    ],
)
async def test_a_path_in_two_repositories_is_two_files(house: House, fields: dict[str, str], same: bool) -> None:
    for segments in ({**FILE, "git_url": ORDERS}, {**FILE, **fields}):
        assert (await house.complete(segments=segments)).status_code == 200
    first, second = house.rows("completions")
    assert (first.file == second.file) is same
    assert first.language == second.language == "ts"
    assert len(first.file) == len(second.file) == 32


async def test_of_a_repository_nothing_but_the_hash_is_recorded(house: House) -> None:
    for url in (None, "", "x" * 20_000, "\x00", "//", "@", ".git"):
        assert (await house.complete(segments={**FILE, "git_url": url})).status_code == 200
    await house.complete(segments={"prefix": "def f(", "git_url": ORDERS})
    rows = house.rows("completions")
    assert rows[-1].file == ""  # a repository is no file
    assert len({row.file for row in rows}) == 4  # without a repository, the long one, the odd one and no file
    assert all("orders" not in row.model_dump_json() and len(row.file) in (0, 32) for row in rows)
    odd: tuple[object, ...] = (7, True, ["x"], {"url": "x"})
    for value in odd:
        response = await house.complete(segments={**FILE, "git_url": value})
        assert response.status_code == 400 and "segments.git_url" in response.text
