"""Long commands tell how far they are: as a line that moves on a terminal, as plain lines elsewhere."""

from collections.abc import Callable

import pytest

from evals.progress import Progress, duration
from tests.evals.consoles import Clock, console, printed


@pytest.mark.parametrize(
    ("seconds", "text"), [(-1.0, "0 s"), (40.4, "40 s"), (110.0, "2 min"), (7100.0, "118 min"), (7500.0, "2 h 5 min")]
)
def test_durations_are_said_as_people_say_them(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_plain_lines_come_now_and_then_with_the_time_left() -> None:
    clock, out = Clock(), console(terminal=False)
    with Progress(out, clock=clock, every=10.0) as progress, progress.part("serving: blocks", 40) as part:
        for _ in range(20):
            clock.now += 1.0
            part.advance()
        progress.say("serving.median 1.5 ms")
    assert printed(out) == [
        "[    0 s] serving: blocks: 0 of 40",
        "[   10 s] serving: blocks: 10 of 40, 30 s left",
        "[   20 s] serving: blocks: 20 of 40, 20 s left",
        "serving.median 1.5 ms",
    ]


def test_the_time_left_of_the_command_counts_the_parts_by_their_work() -> None:
    clock, out = Clock(), console(terminal=False)
    with Progress(out, work=4.0, clock=clock, every=0.0) as progress:
        with progress.part("training", 2, work=3.0) as part:
            clock.now = 300.0
            part.at(2)
        with progress.part("scoring", 10, work=1.0) as part:
            clock.now = 350.0
            part.at(5)
    assert printed(out)[1::2] == [
        "[  300 s] training: 2 of 2; all: 75%, 2 min left",
        "[  350 s] scoring: 5 of 10; all: 88%, 50 s left",
    ]


def on_a_terminal(name: str, change: Callable[[Progress], None], clock: Clock) -> str:
    out = console(terminal=True)
    progress = Progress(out, clock=clock)
    with progress.part(name, 200) as part:
        clock.now = 60.0
        part.at(50)
        change(progress)
        with out.capture() as captured:
            out.print(progress)
    return captured.get()


def test_a_terminal_shows_one_line_that_does_not_wrap() -> None:
    shown = on_a_terminal("a part with a name " * 8, lambda progress: None, Clock())
    assert shown.count("\n") == 1 and len(shown.rstrip("\n")) <= 80
    assert "50 of 200, 3 min left" in shown and "…" in shown


def test_a_terminal_shows_the_innermost_part() -> None:
    clock = Clock()

    def inner(progress: Progress) -> None:
        with progress.part("inner"):
            assert "inner" in progress_text(progress)

    assert "outer" in on_a_terminal("outer", inner, clock)


def progress_text(progress: Progress) -> str:
    with progress.console.capture() as captured:
        progress.console.print(progress)
    return captured.get()
