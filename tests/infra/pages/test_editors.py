"""The configurations of editors: the pages hold them, a parser of each format reads them, and they lead where clients send."""

import json
import re
import tomllib
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from infra.cli import invite
from infra.pages import editors
from infra.settings import ROOT, Settings

PAGES = {"continue": "web", "zed": "", "tabby": "", "llama.vim": "", "llama.vscode": ""}
"""Editors whose page holds their configuration, each with the page's project."""
HARD = "a \"b\" 'c': #d"


def configuration(editor: str, token: str = "TOKEN", project: str = "") -> editors.Configuration:
    where = editors.reached("http://127.0.0.1:8081", token, Settings().model.name, project, "http://127.0.0.1:8082")
    return editors.configure(editor, where)


def recorded(client: str) -> dict[str, Any]:
    return json.loads(Path(f"tests/data/clients/{client}.json").read_text())


@pytest.mark.parametrize(("editor", "project"), PAGES.items())
def test_the_page_of_an_editor_holds_what_invite_prints(editor: str, project: str) -> None:
    found = configuration(editor, project=project)
    page = (ROOT / f"infra/docs/editors/{editor.replace('.', '-')}.md").read_text()
    assert f"```{found.kind}\n{found.text}```" in page
    assert found.file.split()[0].rstrip(",") in page or editor == "llama.vscode"


def test_the_command_names_every_editor() -> None:
    assert tuple(editors.EDITORS) == invite.EDITORS


@pytest.mark.parametrize("token", ["TOKEN", "-9_x", "no", HARD])
@pytest.mark.parametrize("project", ["", "web"])
def test_continue_sends_requests_and_events_where_it_was_recorded_to(token: str, project: str) -> None:
    found = yaml.safe_load(configuration("continue", token, project).text)
    assert {"name", "version", "schema", "models", "data"} == found.keys() and found["schema"] == "v1"
    (model,), (data,), case = found["models"], found["data"], recorded("continue")
    assert urlsplit(model["apiBase"]).path + "/completions" == case["request"]["url"]
    assert urlsplit(data["destination"]).path == case["events"][0]["url"]
    assert model["apiKey"] == data["apiKey"] == token
    assert all(word in model["model"] for word in ("qwen", "coder"))
    headers = {"X-Project-ID": project} if project else None
    assert [each.get("requestOptions", {}).get("headers") for each in (model, data)] == [headers] * 2


@pytest.mark.parametrize("token", ["TOKEN", HARD])
def test_the_other_editors_send_requests_where_they_were_recorded_to(token: str) -> None:
    zed = json.loads(configuration("zed", token).text)["edit_predictions"]["open_ai_compatible_api"]
    assert urlsplit(zed["api_url"]).path == recorded("zed")["request"]["url"]
    assert token in configuration("zed", token).notes[0] and token not in configuration("zed", token).text
    tabby = tomllib.loads(configuration("tabby", token).text)["server"]
    assert tabby == {"endpoint": "http://127.0.0.1:8081", "token": token}
    code = json.loads(configuration("llama.vscode", token).text)
    assert code == {"llama-vscode.endpoint": "http://127.0.0.1:8081", "llama-vscode.api_key": token}
    assert recorded("llama_vscode")["request"]["url"] == "/infill"
    vim = dict(re.findall(r"'(\w+)': '((?:[^']|'')*)'", configuration("llama.vim", token).text))
    assert urlsplit(vim["endpoint_fim"]).path == recorded("llama_vim")["request"]["url"]
    assert vim["api_key"].replace("''", "'") == token


@pytest.mark.parametrize("path", ["", "/tabloop", "/a/v1x"])
@pytest.mark.parametrize("route", ["", "/", "/v1/", "/v1/completions", "/infill", "/me"])
def test_another_machine_has_one_address_for_requests_and_events(path: str, route: str) -> None:
    """A path is that of a proxy which takes it off."""
    where = editors.reached(f"https://tabloop.acme.example{path}{route}", "t", "qwen-coder-x")
    assert where.completions == where.feedback == f"https://tabloop.acme.example{path}"
    assert f"https://tabloop.acme.example{path}/v1/continue/events" in editors.configure("continue", where).text


@pytest.mark.parametrize("address", ["tabloop.example", "ftp://a", "http://", "https://ada:secret@a"])
def test_an_address_that_no_editor_can_use_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match="expected the address of the completions port"):
        editors.reached(address, "t", "m")


def test_an_unknown_editor_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"'emacs': expected one of continue, zed"):
        configuration("emacs")
