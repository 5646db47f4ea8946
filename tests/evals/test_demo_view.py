"""The demo's view, as it is on a terminal of 80 columns and as plain lines, and its last screen."""

import os
from pathlib import Path

import pytest
from rich.console import Console

from evals.demo.loop import USUAL_SECONDS, done_in, trained
from evals.demo.report import LastScreen
from evals.demo.report import files as report_files
from evals.demo.view import View
from infra.pages.figures import ArmRow
from tests.evals.consoles import Clock, console, printed
from tests.evals.made_report import report as made_report
from tests.evals.test_demo import UNDECIDED, _report

ARMS = [
    ArmRow("champion", "5", 60, 1600, "14.4 % [12.9, 15.9]", "1.210 [1.100, 1.320]"),
    ArmRow("challenger", "7", 61, 1590, "18.1 % [16.4, 19.8]", "1.400 [1.280, 1.520]"),
]
LONG = "cycle-000012: registered: " + "the challenger is surely no worse in any guardrail " * 4


def picture(view: View, out: Console) -> list[str]:
    """Return what the view shows at this moment."""
    with out.capture() as captured:
        out.print(view)
    return captured.get().splitlines()


def test_the_view_has_stage_progress_time_left_arms_and_the_last_verdict() -> None:
    clock, out = Clock(), console(terminal=True)
    view = View(out, clock=clock)
    with view.part("A/B test, v7 vs v5, requests an arm", 1632) as part:
        clock.now = 60.0
        part.at(408)
        view.arms(ARMS)
        with out.capture():
            view.verdict(LONG)
        shown = picture(view, out)
    assert shown[0].rstrip() == "tabloop demo, 60 s"
    assert shown[1].startswith("A/B test, v7 vs v5") and "408 of 1,632, 3 min left" in shown[1]
    assert shown[2].rstrip() == "champion v5: 14.4 % [12.9, 15.9] accepted of 1600 requests"
    assert shown[3].rstrip() == "challenger v7: 18.1 % [16.4, 19.8] accepted of 1590 requests"
    assert shown[4].startswith("last verdict: cycle-000012: registered:") and shown[4].endswith("…")
    assert len(shown) == 5 and all(len(line) <= 80 for line in shown), "nothing wraps"


def test_the_innermost_stage_is_shown_and_a_long_one_is_cut() -> None:
    out = console(terminal=True)
    view = View(out, clock=Clock())
    with view.part("A/B test", 10):
        with view.part("experiment (a task with a very long name)" * 3):
            inner = picture(view, out)
        outer = picture(view, out)
    assert "experiment (a task" in inner[1] and len(inner) == 2 and len(inner[1].rstrip()) <= 80
    assert outer[1].startswith("A/B test")


def test_without_a_terminal_there_are_plain_lines() -> None:
    clock, out = Clock(), console(terminal=False)
    with View(out, clock=clock, every=10.0) as view, view.part("developers type, requests", 400) as part:
        view.arms(ARMS[:1])
        for _ in range(20):
            clock.now += 1.0
            part.advance(10)
        view.verdict("cycle-000001: registered: version 2 is the challenger")
    arm = "champion v5: 14.4 % [12.9, 15.9] accepted of 1600 requests"
    assert printed(out) == [
        "[    0 s] developers type, requests: 0 of 400",
        f"[   10 s] developers type, requests: 100 of 400, 30 s left; {arm}",
        f"[   20 s] developers type, requests: 200 of 400, 20 s left; {arm}",
        "[   20 s] cycle-000001: registered: version 2 is the challenger",
    ]


def test_on_a_terminal_lines_that_stay_do_not_exceed_it() -> None:
    out = console(terminal=True)
    view = View(out, clock=Clock())
    view.say(LONG)
    assert len(printed(out)) > 1 and all(len(line) <= 80 for line in printed(out))


def test_the_steps_of_a_cycle_tell_how_far_it_is() -> None:
    assert done_in("look", 0) == done_in("unknown", 9) == 0
    assert done_in("train", 0) < done_in("train", 9) < done_in("train", 9_999) < done_in("evaluate", 0)
    assert done_in("train", 9_999, 0.25) == done_in("train", 0) + 0.25 * USUAL_SECONDS["train"]
    assert done_in("evaluate", 0) == done_in("train", 0) + USUAL_SECONDS["train"] < sum(USUAL_SECONDS.values())


def test_progress_of_training_is_that_of_the_trainers_own_steps(tmp_path: Path) -> None:
    assert trained(tmp_path, 0.0) is None
    for cycle, lines in (("cycle-000001", "step 9 of 9: {}"), ("cycle-000002", "noise\nstep 1 of 8: {}\nstep 2 of 8: {}\nste")):
        log = tmp_path / cycle / "trainer.log"
        log.parent.mkdir()
        log.write_text(lines)
        os.utime(log, (0, int(cycle[-1])))
    assert trained(tmp_path, 0.0) == trained(tmp_path, 2.0) == 0.25
    assert trained(tmp_path, 3.0) is None, "an update that has no log yet has not taken the steps of the one before"


LINKS = {
    name: f"http://127.0.0.1:{port}/?login#1795603417.{'0' * 16}.{'f' * 64}{page}"
    for name, port, page in (
        ("status page", 8081, ""),
        ("MLflow", 5000, "/#/models/tabloop/versions/12?workflowType=machine_learning"),
        ("Prefect", 4200, "/runs"),
    )
}


@pytest.mark.parametrize("improved", [True, False])
def test_the_last_screen_is_one_sentence_one_table_and_the_links(improved: bool) -> None:
    report = _report() if improved else _report(later=UNDECIDED)
    out = console(terminal=False)
    out.print(LastScreen(report, {"report": Path("var/demo/report.html")}, LINKS), crop=False)
    lines = printed(out)
    text = " ".join(" ".join(lines).split())
    says = "version 2 beats the base" if improved else "version 2 does not surely beat the base"
    assert text.startswith(f"After one cycle in 0 minutes, {says} at its best on the team's later code")
    assert "accepted, later code, %" in text and "kept characters, new files" in text
    assert text.count("difference, 95 %") == 1 and "report: var/demo/report.html" in text
    assert "MLflow: http://127.0.0.1:5000/?login#" in text and "Nothing trains until it is asked to" in text


def test_the_longest_last_screen_fits_24_lines_of_80_columns() -> None:
    found = made_report()
    assert found.grounds["later"].learning, "the sentence has both parts of the gain"
    out = console(terminal=False)
    out.print(LastScreen(found, report_files(Path("var/demo")), LINKS), crop=False)
    lines = [line.rstrip() for line in printed(out)]
    links = [line for line in lines if "?login#" in line]
    pages = ("f", "/versions/12?workflowType=machine_learning", "/runs")
    assert len(links) == 3 and all(line.endswith(page) for line, page in zip(links, pages, strict=True))
    assert all(len(line) <= 80 for line in lines if line not in links), "only a link is longer: the terminal wraps it"
    assert sum(-(-max(len(line), 1) // 80) for line in lines) <= 24


def test_the_last_screen_says_that_no_version_was_better() -> None:
    out = console(terminal=False)
    out.print(LastScreen(_report(later=UNDECIDED).model_copy(update={"champion_version": "1"}), {}, {}))
    assert printed(out)[0].startswith("No version beat the base in one cycle")
