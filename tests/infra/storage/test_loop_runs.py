"""The newest runs of the flows say whether the loop goes on."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from infra.records import LoopFlow, LoopRun
from infra.storage import loop_runs
from infra.storage.loop_runs import Sign, prefect, signs
from tests.tasks.made import MemoryStore

NOW = 1_800_000_000.0
ON = {"experiment": True, "cycle": True, "retention": False}


def run(flow: LoopFlow, ago: float, state: str = "", message: str = "", schedules: dict[str, bool] = ON) -> LoopRun:
    """Return a run that ended some seconds ago, or that began then and runs, without a state."""
    return LoopRun(
        flow=flow, began=NOW - ago - 3, ended=NOW - ago if state else 0.0, state=state, message=message, schedules=schedules
    )


def said(*runs: LoopRun, **more: object) -> dict[str, Sign]:
    found = signs({run.flow: run for run in runs}, NOW, **more)  # type: ignore[arg-type]  # two options of two types
    return {sign.name: sign for sign in found}


def test_the_newest_run_of_each_flow_replaces_the_one_before() -> None:
    store = MemoryStore()
    assert loop_runs.read(store) == {}
    for each in (run("cycle", 60, "TooFewSamples"), run("cycle", 5, "registered"), run("experiment", 1, "Undecided")):
        loop_runs.write(store, each)
    assert {flow: found.state for flow, found in loop_runs.read(store).items()} == {
        "cycle": "registered",
        "experiment": "Undecided",
    }
    assert list(store.keys("")) == ["loop/cycle.json", "loop/experiment.json"]


TURN = run("cycle", 7_200, "TooFewSamples")
"""The newest run of a project's loop, two hours ago, with 3 s."""


@pytest.mark.parametrize(
    ("common", "ok", "case"),
    [
        (LoopRun(flow="cycle", began=NOW - 7_210), True, "another loop trains in the same run since"),
        (LoopRun(flow="cycle", began=NOW - 7_210).end(NOW - 20, "registered", ""), True, "it trained until now"),
        (LoopRun(flow="cycle", began=NOW - 7_210).end(NOW - 600, "registered", ""), False, "no run has begun since"),
        (LoopRun(flow="cycle", began=NOW - 60).end(NOW - 20, "TooFewSamples", ""), False, "the project's turn was left out"),
    ],
)
def test_a_cycle_of_a_project_is_late_only_if_its_turn_was_left_out(common: LoopRun, ok: bool, case: str) -> None:
    watches = {"experiment": run("experiment", 5, "Undecided")}
    found = {sign.name: sign for sign in signs({"cycle": TURN, **watches}, NOW, common={"cycle": common, **watches})}
    assert found["cycle"].ok is ok, case
    assert found["watch"].ok and found["schedules"].ok


def test_a_watch_of_a_project_that_a_killed_run_left_behind_is_late() -> None:
    own, killed = run("experiment", 900, "Undecided"), LoopRun(flow="experiment", began=NOW - 905, schedules=ON)
    found = {sign.name: sign for sign in signs({"experiment": own}, NOW, common={"experiment": killed})}
    assert not found["watch"].ok and "expected every 20 s" in found["watch"].text
    paused = killed.model_copy(update={"schedules": {"experiment": False}})
    found = {sign.name: sign for sign in signs({"experiment": own}, NOW, common={"experiment": paused})}
    assert "its schedule is off in Prefect" in found["watch"].text, "the schedule is that of the common run"


@pytest.mark.parametrize(
    ("watch", "ok", "words"),
    [
        (run("experiment", 12, "Undecided", "512 requests"), True, "last run 12 s ago: Undecided: 512 requests"),
        (run("experiment", 1_800, "Undecided"), False, "last run 30 min ago: Undecided; expected every 20 s"),
        (run("experiment", 1_800, "Undecided", schedules={"experiment": False}), False, "its schedule is off in Prefect"),
        (
            run("experiment", 5, "Failed", "Unreachable: no answer\nmore"),
            False,
            "last run 5 s ago: Failed: Unreachable: no answer",
        ),
        (run("experiment", 5), True, "runs since 8 s"),
        (run("experiment", 400), False, "not ended; expected every 20 s"),
    ],
)
def test_a_watch_that_does_not_run_shows(watch: LoopRun, ok: bool, words: str) -> None:
    sign = said(watch)["watch"]
    assert sign.ok is ok and words in sign.text and "\n" not in sign.text


@pytest.mark.parametrize(
    ("cycle", "ok", "words"),
    [
        (run("cycle", 40, "TooFewSamples", "98 of 256"), True, "last run 40 s ago: TooFewSamples: 98 of 256"),
        (run("cycle", 600, "TooFewSamples"), False, "last run 10 min ago: TooFewSamples; expected every 60 s"),
        (run("cycle", 300), True, "runs since 5 min"),
        (run("cycle", 40, "Failed", "no memory"), False, "Failed: no memory"),
    ],
)
def test_a_cycle_says_why_none_trains(cycle: LoopRun, ok: bool, words: str) -> None:
    sign = said(run("experiment", 5, "Undecided"), cycle)["cycle"]
    assert sign.ok is ok and words in sign.text


def test_a_pause_is_no_fault_of_the_cycle_and_names_the_command() -> None:
    paused = {"experiment": True, "cycle": False}
    found = said(run("experiment", 5, "NoExperiment", schedules=paused), run("cycle", 9_000, "TooFewSamples"))
    assert found["cycle"].ok and "its schedule is off: `tabloop loop resume`" in found["cycle"].text
    assert found["schedules"] == Sign("schedules", "off: cycle", True)


def test_prefect_knows_the_schedules_better_than_the_last_run_of_the_watch() -> None:
    found = said(run("experiment", 5, "Undecided"), schedules={"experiment": False, "cycle": True})
    assert found["schedules"] == Sign("schedules", "off: experiment", False)


def test_a_loop_that_never_ran_says_so() -> None:
    assert not said()["watch"].ok and "never ran" in said()["watch"].text
    assert "schedules" not in said(), "nobody knows"


def test_events_that_wait_in_the_spool_show(tmp_path: Path) -> None:
    assert loop_runs.backlog(tmp_path, NOW) == 0
    for kind, ago in (("completions", 200), ("feedback", 20), ("bad", 9_000)):
        (tmp_path / kind).mkdir()
        stamp = datetime.fromtimestamp(NOW - ago, UTC).strftime("%Y%m%dT%H%M%S.%f")
        (tmp_path / kind / f"{stamp}-0a1b2c3d.jsonl").write_text("{}\n")
    assert loop_runs.backlog(tmp_path, NOW) == pytest.approx(200)
    assert not said(backlog=200.0)["spool"].ok and "waits for 3 min" in said(backlog=200.0)["spool"].text
    assert said(backlog=4.0)["spool"].ok and said(backlog=0.0)["spool"] == Sign("spool", "empty", True)


@pytest.mark.parametrize(
    ("noted", "ok", "words"),
    [
        ({"prefect_seconds": 0.05}, True, "answered in 0.05 s, 20 s ago"),
        ({"prefect_seconds": 2.4}, False, "answered in 2.40 s, 20 s ago"),
        ({}, False, "gave the watch no answer 20 s ago"),
        ({"prefect_seconds": 0.05, "ended": NOW - 70}, False, "has started no watch for 70 s: `tabloop status` asks it"),
        ({"prefect_seconds": 0.05, "ended": 0.0, "began": NOW - 200}, True, "answered in 0.05 s, 3 min ago"),
        ({"prefect_seconds": 0.05, "ended": 0.0, "began": NOW - 400}, False, "has started no watch for 7 min"),
        (
            {"ended": NOW - 900, "schedules": {"experiment": False}},
            True,
            "not asked for 15 min, since the watch's schedule is off",
        ),
    ],
)
def test_the_watch_notes_how_prefect_does(noted: dict, ok: bool, words: str) -> None:
    """What the status page says of Prefect, whose credential the app does not hold."""
    sign = prefect({"experiment": run("experiment", 20, "Undecided").model_copy(update=noted)}, NOW)
    assert (sign.name, sign.ok) == ("prefect", ok) and words in sign.text


def test_without_a_run_of_the_watch_prefect_is_not_well() -> None:
    assert not prefect({}, NOW).ok


def test_failures_in_a_row_and_the_last_good_end_survive_the_next_run() -> None:
    def follows(before: LoopRun | None) -> LoopRun:
        return LoopRun(flow="cycle", began=NOW).after(before)

    well = follows(None).end(NOW + 1, "TooFewSamples", "")
    assert (well.well, well.failures) == (NOW + 1, 0)
    killed = follows(well)
    failed = follows(killed).end(NOW + 9, "Failed", "no alias champion")
    assert (killed.failures, failed.failures, failed.well) == (0, 2, NOW + 1)
    assert follows(failed).failures == 2
    dry = follows(failed).end(NOW + 20, "DryRun", "")
    assert (dry.failures, dry.well) == (0, NOW + 1)
