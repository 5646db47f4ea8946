"""Benchmarks write their figures to a file and compare them with targets."""

import asyncio
import inspect
import io
import json
import math
import os
import re
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from evals.bench import suite
from evals.bench.capacity import compared
from evals.bench.figures import Bench, Figure, Size, bound, figure, file_of, reported, write
from evals.bench.rigs.apps import WITHOUT_ENGINES
from evals.bench.serving import median_figures
from evals.bench.streams import StreamResult, first_token_percentiles
from evals.bench.suite import KNOWN, Entry, chosen, run_bench, summary
from evals.progress import Progress
from evals.studies.recipes.bench import Options, plan
from infra.cli import main
from infra.settings import DEMO, ROOT, Settings, load


class Shown:
    """Progress on a terminal of 80 columns that is none, with what it printed."""

    def __init__(self) -> None:
        self._file = io.StringIO()
        self.progress = Progress(Console(file=self._file, width=80, color_system=None))

    @property
    def lines(self) -> list[str]:
        return self._file.getvalue().splitlines()


def read(name: str, quick: bool, folder: Path) -> list[Figure]:
    """Return the figures that a run wrote."""
    return [Figure(**row) for row in json.loads(file_of(name, quick, folder).read_text())]


def test_a_target_is_an_upper_or_a_lower_bound(tmp_path: Path) -> None:
    figures, shown = [figure("a", 3.0, "ms", most=3.0), figure("b", 0.94, "ratio", least=0.95), figure("c", 7, "s")], Shown()
    assert [f.met for f in figures] == [True, False, True]
    assert not write("x", figures, shown.progress, folder=tmp_path) and write("y", figures[:1], shown.progress, folder=tmp_path)
    assert "x: 3 figures, 1 of 2 targets missed" in shown.lines[0] and "y: 1 figures, all targets met" in shown.lines[1]
    rows = json.loads((tmp_path / "x.json").read_text())
    assert rows[1] == {"name": "b", "value": 0.94, "unit": "ratio", "target": 0.95, "met": False, "quick": False, "bound": False}


def test_figures_of_a_quick_run_lie_beside_the_full_ones_and_say_so(tmp_path: Path) -> None:
    shown = Shown()
    write("x", [figure("a", 1.0, "ms")], shown.progress, folder=tmp_path)
    write("x", [figure("a", 2.0, "ms")], shown.progress, quick=True, folder=tmp_path)
    assert [f.value for quick in (False, True) for f in read("x", quick, tmp_path)] == [1.0, 2.0]
    assert read("x", True, tmp_path)[0].quick and "quick run: its intervals are wide" in shown.lines[-1]


def test_a_quick_run_has_no_target_for_the_end_of_an_interval() -> None:
    figures = [figure("gain", 1.0, "%", least=2.0), bound("gain, low", -3.0, "%", least=0.0)]
    assert [f.met for f in reported(figures, Shown().progress)] == [False, False]
    assert [(f.met, f.target) for f in reported(figures, Shown().progress, quick=True)] == [(False, 2.0), (True, None)]


def test_each_figure_is_said_when_it_is_had_and_fits_a_terminal() -> None:
    shown, said = Shown(), list[int]()

    def found() -> Iterator[Figure]:
        yield figure("first_token.added_median", 1.25, "ms", most=3.0)
        said.append(len(shown.lines))
        yield figure("experiments.trap.by_user.champion_loses_10_percent_of_its_labels.promoted", 0.5, "of 10 tests", most=0.1)

    assert len(reported(found(), shown.progress)) == 2 and said == [1]
    assert shown.lines[0].split() == ["first_token.added_median", "1.25", "ms", "(target", "3)"]
    assert shown.lines[-1].split() == ["0.5", "of", "10", "tests", "(target", "0.1,", "MISSED)"]
    assert all(len(line) <= 80 for line in shown.lines)


def make_up(monkeypatch: pytest.MonkeyPatch, run: Callable[[Settings, Bench], AsyncIterator[Figure] | Iterator[Figure]]) -> None:
    """Let the suite know a benchmark `made_up`."""
    monkeypatch.setitem(sys.modules, "evals.bench.made_up", SimpleNamespace(run=run))
    monkeypatch.setitem(KNOWN, "made_up", Entry(Size(1.0, 1.0), "evals.bench.made_up"))


async def test_figures_of_a_generator_are_computed_beside_the_event_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(settings: Settings, bench: Bench) -> Iterator[Figure]:
        yield figure("in_another_thread", threading.current_thread() is not threading.main_thread(), "")
        yield figure("two", 2.0, "")

    make_up(monkeypatch, run)
    ended = await run_bench(load(DEMO, {}), Bench("made_up", False, Shown().progress, 1.0, tmp_path))
    assert [f.value for f in ended.figures] == [1.0, 2.0]


async def test_a_benchmark_tells_its_figures_and_writes_them_in_full_and_quick(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run(settings: Settings, bench: Bench) -> AsyncIterator[Figure]:
        with bench.part("places", 2, share=0.5) as part:
            part.advance(Size(full=2, quick=1).of(bench.quick))
            yield figure("half", part.share, "")

    make_up(monkeypatch, run)
    shown = Shown()
    for quick, value in ((False, 1.0), (True, 0.5)):
        ended = await run_bench(load(DEMO, {}), Bench("made_up", quick, shown.progress, 1.0, tmp_path))
        assert [f.value for f in ended.figures] == [value] and [f.value for f in read("made_up", quick, tmp_path)] == [value]


async def test_a_benchmark_that_fails_is_named_with_its_reason_and_writes_no_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run(settings: Settings, bench: Bench) -> AsyncIterator[Figure]:
        yield figure("one", 1.0, "")
        raise RuntimeError("no answer [from] it")

    make_up(monkeypatch, run)
    shown = Shown()
    ended = await run_bench(load(DEMO, {}), Bench("made_up", False, shown.progress, 1.0, tmp_path))
    assert ended.failure == "RuntimeError: no answer [from] it" and not list(tmp_path.iterdir())
    assert "made_up failed" in shown.lines and "RuntimeError: no answer [from] it" in shown.lines
    shown.progress.console.print(summary([ended], quick=False))
    assert "failed: RuntimeError: no answer [from] it" in " ".join(" ".join(shown.lines[-4:]).split())


@pytest.mark.parametrize("name", KNOWN)
def test_every_benchmark_yields_figures_from_the_settings_and_its_run(name: str) -> None:
    run = import_module(KNOWN[name].module).run
    assert inspect.isasyncgenfunction(run) or inspect.isgeneratorfunction(run)
    assert list(inspect.signature(run).parameters) == ["settings", "bench"]


def test_an_app_without_engines_has_settings_that_are_accepted() -> None:
    assert len(set(load(DEMO, dict(WITHOUT_ENGINES)).serving.engines)) == 2


def test_the_quick_form_of_all_benchmarks_takes_about_ten_minutes() -> None:
    sizes = [KNOWN[name].minutes for name in chosen([])]
    assert 8 <= sum(size.quick for size in sizes) <= 12 < sum(size.full for size in sizes)
    assert [name for name in KNOWN if name not in chosen([])] == ["fleet"]


def test_the_page_of_benchmarks_names_those_that_there_are() -> None:
    page = (ROOT / "infra/docs/contribute/benchmarks.md").read_text()
    named = re.findall(r"^\| `(\w+)`", page.split("\n## ")[0], re.MULTILINE)
    assert sorted(named) == sorted(KNOWN)
    assert f"The full plan has {len(plan(Options()))} runs." in page


def test_percentiles_are_of_the_times_to_the_first_token() -> None:
    results = [StreamResult(sent_at=0.0, first_ms=float(ms), total_ms=1e9, tokens=9, version="") for ms in range(101)]
    assert first_token_percentiles(results) == (50.0, 99.0)


def test_one_disturbed_block_moves_neither_the_median_nor_its_bounds() -> None:
    """Of 12 values in order, the 3rd and the 10th bound the median: P(X <= 2) = 79 / 4096 < 0.025 for X of B(12, 1/2)."""
    undisturbed = [12.0, 3.0, 5.0, 7.0, 1.0, 2.0, 4.0, 6.0, 8.0, 9.0, 10.0, 11.0]
    for blocks in (undisturbed, [900.0, *undisturbed[1:]]):
        figures = median_figures("late", blocks, "ms", most=6.4)
        assert [(f.name, f.value, f.met) for f in figures] == [
            ("late", 6.5, False),
            ("late.low", 3.0, True),
            ("late.high", 10.0, True),
        ]


def test_the_error_names_the_unknown_benchmark_and_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "nothing"]) == 2
    assert "nothing" in (output := capsys.readouterr().err) and all(name in output for name in KNOWN)


NOT_MEASURED = [(0.0, math.inf, False), (-0.1, math.inf, False)]


@pytest.mark.parametrize(("measured", "apart", "met"), [(2.0, 1.0, True), (1.0, 2.0, False), *NOT_MEASURED])
def test_a_cost_that_is_lost_in_the_noise_does_not_meet_the_plan(measured: float, apart: float, met: bool) -> None:
    found = compared("capacity.event_alone_cpu", 2.0, measured)
    assert (found.value, found.met) == (apart, met)


def test_a_run_that_is_terminated_ends_what_it_started(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = []

    async def terminated(*_: object) -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(10)
        finally:
            ended.append("servers")

    monkeypatch.setattr(suite, "run_benches", terminated)
    handler, mask = signal.signal(signal.SIGTERM, signal.SIG_IGN), os.umask(0o022)
    try:
        with pytest.raises(KeyboardInterrupt):
            suite.run(Settings(), ["join"], quick=True)
    finally:
        signal.signal(signal.SIGTERM, handler)
        os.umask(mask)
    assert ended == ["servers"]
