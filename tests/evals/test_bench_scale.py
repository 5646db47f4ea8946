"""The benchmark of size looks at tests in events that it makes, and later looks read less than the first."""

from pathlib import Path

from evals.bench.scale import DAY, END, CountingStore, experiment_of, make, measure


def test_a_later_look_reads_less_than_the_first(tmp_path: Path) -> None:
    make(CountingStore(tmp_path), experiment_of(0.5), (END - DAY / 2, END), 480, 240)
    first, later = (measure(tmp_path, 0.5, END + seconds) for seconds in (0.0, 20.0))
    assert first["requests"] == later["requests"] > 200
    assert later["gets"] < first["gets"] / 2 and later["bytes"] < first["bytes"] / 2
