"""The join on two Dask workers runs on made events, and joins what the flow joins."""

from pathlib import Path

import pytest

from evals.bench import workers

REQUESTS = 1_600


@pytest.mark.stack
def test_workers_join_what_the_flow_joins_and_each_has_its_time_and_cpu(tmp_path: Path) -> None:
    found = {one.name.removeprefix("scale."): one for one in workers.run(tmp_path, REQUESTS)}
    for way in ("flow", "workers"):
        assert found[f"join_by_{way}"].unit == f"s for {REQUESTS} requests"
        assert found[f"join_by_{way}_cpu"].value > 0
    flow, by_workers = found["join_by_flow"].value, found["join_by_workers"].value
    assert found["workers_over_flow"].value == pytest.approx(flow / by_workers, rel=0.01)
    assert 0 < found["join_by_workers_longest"].value < found["join_by_workers_cpu"].value
