"""Tabby's completions and events."""

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
