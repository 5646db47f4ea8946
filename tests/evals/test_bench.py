"""What a benchmark says is kept, and a missed target is seen."""

import json
from pathlib import Path

import pytest
from rich.console import Console

from evals.bench.__main__ import BENCHES, main
from evals.bench.figures import figure, write
from evals.bench.serving import percentiles
from evals.bench.streams import Shot


def test_a_target_is_a_bound_from_above_or_below(tmp_path: Path) -> None:
    figures = [figure("a", 3.0, "ms", most=3.0), figure("b", 0.94, "ratio", least=0.95), figure("c", 7, "s")]
    assert [f.met for f in figures] == [True, False, True]
    assert not write("x", figures, Console(quiet=True), tmp_path) and write("y", figures[:1], Console(quiet=True), tmp_path)
    kept = json.loads((tmp_path / "x.json").read_text())
    assert kept[1] == {"name": "b", "value": 0.94, "unit": "ratio", "target": 0.95, "met": False}


def test_quantiles_are_those_of_the_first_tokens() -> None:
    shots = [Shot(at=0.0, first_ms=float(ms), total_ms=1e9, tokens=9, version="") for ms in range(101)]
    assert percentiles(shots) == (50.0, 99.0)


def test_a_benchmark_that_is_none_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["nothing"])
    assert "nothing" in (said := capsys.readouterr().err) and all(name in said for name in BENCHES)
