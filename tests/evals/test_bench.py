"""Benchmarks write their figures to a file and compare them with targets."""

import json
from pathlib import Path

import pytest
from rich.console import Console

from evals.bench.__main__ import BENCHES, main
from evals.bench.figures import figure, write
from evals.bench.serving import median_figures
from evals.bench.streams import StreamResult, first_token_percentiles


def test_a_target_is_an_upper_or_a_lower_bound(tmp_path: Path) -> None:
    figures = [figure("a", 3.0, "ms", most=3.0), figure("b", 0.94, "ratio", least=0.95), figure("c", 7, "s")]
    assert [f.met for f in figures] == [True, False, True]
    assert not write("x", figures, Console(quiet=True), tmp_path) and write("y", figures[:1], Console(quiet=True), tmp_path)
    rows = json.loads((tmp_path / "x.json").read_text())
    assert rows[1] == {"name": "b", "value": 0.94, "unit": "ratio", "target": 0.95, "met": False}


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
    with pytest.raises(SystemExit):
        main(["nothing"])
    assert "nothing" in (output := capsys.readouterr().err) and all(name in output for name in BENCHES)
