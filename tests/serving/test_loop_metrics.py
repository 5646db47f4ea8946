"""The metrics of the loop: what flows left in the object store, on the app's /metrics, without waiting for it."""

import asyncio
import re
import ssl
import time
from pathlib import Path

import jwt
import pytest
from prometheus_client import CollectorRegistry

from infra.records import CycleOutcome, CycleProgress, LoopRun, SpoolNote
from infra.settings import ROOT, Settings
from infra.storage import cycle_progress, cycles, loop_runs
from serving.metrics.loop import MOST_REASONS, MOST_SPOOLS, STATES, LoopMetrics, LoopState
from serving.recording.left_spools import LeftSpools
from serving.recording.spool import Spool
from serving.status import certificates
from tests.serving.access.test_shared_rates import write_certificate
from tests.serving.fakes import House
from tests.serving.status.shown import PLANNED, run_watched_test
from tests.serving.test_metrics import Series, scrape, series_in, value
from tests.tasks.made import NOW, manifest
from tests.tasks.made import MemoryStore as Bucket

CYCLE = "cycle-000003"


def series_of(state: LoopState, now: float = NOW, **projects: LoopState) -> Series:
    registry = CollectorRegistry()
    LoopMetrics(registry, lambda: now).states = {"": state, **projects}
    return series_in(registry.collect())


async def test_a_scrape_has_the_newest_cycle_the_flows_and_the_running_test(house: House) -> None:
    now = time.time()
    await run_watched_test(house, now)
    sealed = manifest(CYCLE).model_copy(
        update={"created": now - 900, "requests": 12, "buckets": {"trained": 7, "quarantined": 5}, "quarantined": {"secret": 5}}
    )
    house.store.put_json(cycles.key(CYCLE, cycles.MANIFEST), sealed)
    house.store.put_json(
        cycles.key(CYCLE, cycles.OUTCOME), CycleOutcome(cycle=CYCLE, result="refused", reason="it got worse", ended=now - 300)
    )
    cycle = LoopRun(flow="cycle", began=now - 40).end(now - 10, "ExperimentRunning", "e1 has no verdict yet")
    for run in (cycle, LoopRun(flow="experiment", began=now - 4)):
        loop_runs.write(house.store, run)
    series = await scrape(house)
    assert value(series, "cycle_sealed_timestamp_seconds") == now - 900
    assert value(series, "cycle_ended_timestamp_seconds") == now - 300
    assert value(series, "cycle_samples") == 1
    assert value(series, "cycle_requests", bucket="trained") == 7
    assert value(series, "cycle_quarantined", reason="secret") == 5
    assert [value(series, "cycle_result", result=result) for result in ("refused", "running", "registered")] == [1, 0, 0]
    assert value(series, "flow_state", flow="cycle", state="ExperimentRunning") == 1
    assert value(series, "flow_ended_well_timestamp_seconds", flow="cycle") == now - 10
    assert value(series, "flow_seconds", flow="cycle") == pytest.approx(30)
    seconds = value(series, "flow_seconds", flow="experiment")
    assert seconds is not None and 4 <= seconds <= 4 + time.time() - now
    assert value(series, "flow_ended_timestamp_seconds", flow="experiment") is None
    assert [value(series, "test_stage", stage=stage) for stage in ("test", "ramp", "none")] == [1, 0, 0]
    assert value(series, "test_share") == 0.5
    assert value(series, "test_look_timestamp_seconds") == pytest.approx(now, abs=1)
    assert (value(series, "test_requests"), value(series, "test_planned_requests")) == (1400, PLANNED)
    ends = value(series, "test_planned_end_timestamp_seconds")
    assert ends is not None and 0 < ends - now < 2 * 3600
    low, middle, high = (value(series, "test_difference", metric="accepted", bound=b) for b in ("low", "estimate", "high"))
    assert low is not None and middle == 0.02 and high is not None and low < middle < high
    assert value(series, "loop_unread", part="cycles") == 0
    house.clock += 10
    house.registry.experiment, house.registry.aliases = None, {"champion": "1"}
    await house.follow()
    series = await scrape(house)
    assert [value(series, "test_stage", stage=stage) for stage in ("test", "none")] == [0, 1]
    assert value(series, "test_look_timestamp_seconds") is None


async def test_a_scrape_waits_for_no_store_and_says_so(house: House) -> None:
    house.store.put_json(cycles.key(CYCLE, cycles.MANIFEST), manifest(CYCLE))
    house.store.reads_allowed.clear()
    try:
        began = time.monotonic()
        series = await scrape(house)
        assert time.monotonic() - began < 15 and value(series, "cycle_samples") is None
    finally:
        house.store.reads_allowed.set()
    async with asyncio.timeout(60):
        while value(await scrape(house), "cycle_samples") != 1:
            await asyncio.sleep(0.01)
    house.store.unavailable = True
    house.clock += 10
    async with asyncio.timeout(60):
        while [value(series := await scrape(house), "loop_unread", part=part) for part in ("cycles", "versions")] != [1, 0]:
            await asyncio.sleep(0.01)
    assert value(series, "cycle_samples") == 1, "the answer before"


def test_labels_are_bounded() -> None:
    reasons = {f"reason_{number:03d}": 1000 - number for number in range(100)}
    run = LoopRun(flow="cycle", began=NOW - 5).end(NOW, "def secret(): pass", "")
    cycle = manifest(CYCLE).model_copy(update={"quarantined": reasons})
    series = series_of(LoopState({"cycle": run}, cycle=(cycle, None)))
    assert value(series, "flow_state", flow="cycle", state="other") == 1
    named = {dict(labels)["reason"] for name, labels in series if name == "tabloop_cycle_quarantined"}
    assert len(named) == MOST_REASONS + 1 and "reason_000" in named
    assert value(series, "cycle_quarantined", reason="other") == sum(sorted(reasons.values())[:-MOST_REASONS])
    assert not any(s in str(series) for s in ("secret", "reason_050"))


def test_a_wait_for_gpus_is_measured_until_the_stage_goes_on() -> None:
    waits = CycleProgress(run="r", stage="train", started=NOW - 900, seen=NOW).waiting(NOW - 600).waiting(NOW - 5)
    runs = {"cycle": LoopRun(flow="cycle", began=NOW - 1000, run="r")}
    assert value(series_of(LoopState(runs, progress=waits)), "gpus_awaited_seconds") == 600
    assert "waits for GPUs for 10 min" in cycle_progress.described(waits, NOW)
    for ended in (waits.advanced(1, 8, NOW), waits.entered("r", "evaluate", NOW)):
        assert value(series_of(LoopState(runs, progress=ended)), "gpus_awaited_seconds") == 0
    killed = {"cycle": LoopRun(flow="cycle", began=NOW - 1000, ended=NOW, state="Failed")}
    assert value(series_of(LoopState(killed, progress=waits)), "gpus_awaited_seconds") == 0


def test_spools_of_replicas_that_are_gone_have_series_of_a_bounded_number() -> None:
    notes = {f"app-{number}-0a1b2c3d": SpoolNote(seen=NOW - number, bytes=number, set_aside=0) for number in range(30)}
    series = series_of(LoopState({}, left=notes))
    named = {dict(labels)["spool"] for name, labels in series if name == "tabloop_left_spool_bytes"}
    assert len(named) == MOST_SPOOLS + 1 and {"app-29-0a1b2c3d", "other"} < named
    assert value(series, "left_spool_bytes", spool="app-29-0a1b2c3d") == 29
    assert value(series, "left_spool_bytes", spool="other") == sum(range(10))
    assert value(series, "left_spool_seen_timestamp_seconds", spool="other") == NOW - 9, "the oldest"


async def test_a_scrape_names_the_spool_of_a_replica_that_is_gone(house: House, tmp_path: Path) -> None:
    store = Bucket()
    spools = {host: LeftSpools(Spool(tmp_path / host), store, host) for host in ("app-0", "app-1")}
    house.data.spools = spools["app-0"]
    for each in spools.values():
        await each.step()
    assert value(await scrape(house), "left_spool_bytes", spool=spools["app-1"].name) is None
    store.now += 400
    await spools["app-0"].step()
    series = await scrape(house)
    assert value(series, "left_spool_bytes", spool=spools["app-1"].name) == 0
    assert value(series, "loop_unread", part="spools") == 0
    spools["app-0"].error = "Refused: no rights"
    assert value(await scrape(house), "loop_unread", part="spools") == 1


def test_the_expiry_of_a_token_is_read_where_the_token_says_it() -> None:
    expiring, other = (jwt.encode(claims, "of the tests" * 3) for claims in ({"exp": NOW - 5}, {"sub": "app"}))
    slots = [{"kind": "external", "url": "http://gpu-7:8000/v1", "model": "m", "token": token} for token in (expiring, "a.b.c")]
    for given in (other, "opaque"):
        settings = Settings.model_validate({"registry": {"token": given}, "serving": {"engines": slots}})
        assert certificates.tokens(settings) == {"slot-0": NOW - 5}, "also one that has expired"
    series = series_of(LoopState({}, tokens=certificates.tokens(settings)))
    assert value(series, "token_expires_timestamp_seconds", server="slot-0") == NOW - 5
    assert certificates.tokens(Settings()) == {}


async def test_the_certificate_of_a_server_is_read_also_when_nobody_trusts_it(tmp_path: Path) -> None:
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    write_certificate("localhost", certificate, key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0, ssl=context)
    async with server:
        port = server.sockets[0].getsockname()[1]
        settings = Settings.model_validate(
            {"registry": {"uri": f"https://localhost:{port}"}, "store": {"endpoint": "https://127.0.0.1:9/"}}
        )
        assert certificates.addresses(settings) == {"registry": ("localhost", port), "store": ("127.0.0.1", 9)}
        found: dict[str, float] = {}
        following = asyncio.create_task(certificates.follow(settings, found, 0.01))
        async with asyncio.timeout(60):
            while not found:
                await asyncio.sleep(0.01)
        following.cancel()
    assert set(found) == {"registry"} and 0 < found["registry"] - time.time() < 8 * 86_400
    assert value(series_of(LoopState({}, certificates=found)), "certificate_expires_timestamp_seconds", server="registry")


def test_every_state_in_which_a_cycle_waits_has_a_series_of_its_own() -> None:
    sources = [file.read_text() for room in ("flows", "tasks") for file in (ROOT / room).rglob("*.py")]
    named = {name for text in sources for name in re.findall(r'"((?:WaitingFor|TooFew)[A-Za-z]+)"', text)}
    assert "WaitingForJudge" in named and named <= STATES
