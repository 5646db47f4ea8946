"""The pictures of a demo's screens."""

import re
import struct
from pathlib import Path

import pytest

from evals.demo import browser as browser_
from evals.demo import page, screens
from evals.demo.screens import HEIGHT, WIDTH, Screen
from infra.cli import main
from infra.settings import load
from tests.evals.made_report import report
from tests.infra import browser


def test_the_five_screens_are_those_of_the_champion_and_of_the_newest_run(tmp_path: Path) -> None:
    found = screens.screens(load(), report(), "a-run", tmp_path)
    assert [screen.name for screen in found] == ["terminal", "report", "status", "mlflow", "prefect"]
    urls = {screen.name: screen.url for screen in found}
    assert urls["mlflow"].endswith("/#/models/tabloop/versions/3?workflowType=machine_learning")
    assert urls["prefect"].endswith("/runs/flow-run/a-run")


def test_a_picture_of_the_terminal_and_of_the_report_is_taken_without_a_network(tmp_path: Path) -> None:
    program = browser.required()
    terminal = tmp_path / "terminal.html"
    terminal.write_text(screens.terminal_page(report()))
    assert not re.search(r"(src|href)=|url\(.https?:", terminal.read_text())
    page.write(report(), tmp_path)
    shown = [
        Screen("terminal", terminal.as_uri(), "document.body.textContent.includes('champion')"),
        Screen("report", (tmp_path / "report.html").as_uri(), "document.body.innerText.includes('demo report')"),
    ]
    with browser_.running(program, tmp_path / "profile") as running, running.tab(running.open("about:blank")) as tab:
        files = [screens.take(tab, screen, "dark", tmp_path) for screen in shown]
        (tmp_path / "phone").mkdir()
        phone = screens.take(tab, shown[1], "light", tmp_path / "phone", 390)
    assert struct.unpack(">I", phone.read_bytes()[16:20]) == (390,)
    heights = []
    for file in files:
        image = file.read_bytes()
        width, height = struct.unpack(">II", image[16:24])
        assert image.startswith(b"\x89PNG") and width == WIDTH
        assert len(image) > 20_000, "something is drawn"
        heights.append(height)
    assert 100 < heights[0] < HEIGHT == heights[1], "a picture ends with its page, and at the height of a window"


def test_without_a_finished_demo_the_command_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(screens, "DEMO", tmp_path)
    assert main(["screens"]) == 2
    assert "report.json: not found; run `tabloop demo` first" in capsys.readouterr().err
