"""The metrics of requests by version and arm, and of the spool."""

import os
from collections.abc import Iterable
from pathlib import Path

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families
from tokenizers import Tokenizer

from infra.records import MeasuredGroup, Measures
from infra.storage import cycles
from serving.metrics import HOUR, Metrics
from tests.serving.fakes import House
from tests.serving.helpers import ADMINISTRATOR, run_experiment, until
from tests.tasks.made import NOW, completion, manifest

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


async def scrape(house: House) -> Series:
    text = (await house.client.get(house.urls[0] + "/metrics", headers=ADMINISTRATOR)).text
    return series_in(text_string_to_metric_families(text))


def series_in(families: Iterable[Metric]) -> Series:
    """Return the series of metrics, without empty labels, which Prometheus drops."""
    samples = [sample for family in families for sample in family.samples]
    return {(s.name, frozenset((label, text) for label, text in s.labels.items() if text)): s.value for s in samples}


def value(series: Series, name: str, **labels: str) -> float | None:
    return series.get(("tabloop_" + name, frozenset((label, text) for label, text in labels.items() if text)))


async def test_requests_tokens_and_times_are_counted_by_version_and_arm(tmp_path: Path, tokenizer: Tokenizer) -> None:
    async with House(tmp_path, tokenizer, withhold_below=0.3) as house:
        await run_experiment(house)
        house.engines[house.number("challenger")].logprob = -0.01  # probable enough to show, unlike the champion's
        requests = {"champion": 2, "challenger": 3}
        for arm, times in requests.items():
            for _ in range(times):
                await house.complete(headers={"X-Tabloop-Arm": arm, **ADMINISTRATOR})
        rows = house.rows("completions")
        series = await scrape(house)
        for arm, version, finish in (("champion", "1", "stop"), ("challenger", "2", "length")):
            arm_rows, labels = [row for row in rows if row.arm == arm], {"arm": arm, "version": version}
            sampled = labels | {"sampling": "served"}
            assert value(series, "completions_total", **sampled, finish=finish) == len(arm_rows) == requests[arm]
            assert value(series, "tokens_total", **sampled) == sum(len(row.token_ids) for row in arm_rows) > 0
            assert value(series, "withheld_total", **sampled) == (requests[arm] if arm == "champion" else None)
            for name, field in (("first_token", "ttft_ms"), ("completion", "total_ms")):
                taken = [getattr(row, field) for row in arm_rows]
                assert value(series, f"{name}_seconds_count", **labels) == len(taken)
                assert value(series, f"{name}_seconds_sum", **labels) == pytest.approx(sum(taken) / 1e3)


def test_a_version_that_nobody_has_asked_for_a_day_has_no_series() -> None:
    """For good it would leave more than forty, and as many more as a challenger."""
    metrics = Metrics()
    for number in range(50):
        time, withheld = NOW + number * 6 * HOUR, not number % 2
        for arm in ("champion", "challenger"):
            row = completion(arm=arm, policy_version=str(number), time=time, withheld=withheld, held_back="x")
            metrics.completed(row)
    series = series_in(metrics.registry.collect())
    assert {dict(labels)["version"] for _, labels in series if "version" in dict(labels)} == {"45", "46", "47", "48", "49"}
    assert value(series, "shown_total", arm="champion", version="47", sampling="served") == 1
    metrics.completed(completion(policy_version="0", time=NOW + 300 * HOUR))
    assert value(series_in(metrics.registry.collect()), "first_token_seconds_count", arm="champion", version="0") == 1


async def test_disconnected_clients_are_counted_by_version_and_arm(house: House) -> None:
    house.engines[0].delay = 0.05
    body = {"prompt": "def f(x):\n    ", "stream": True}
    async with house.client.stream("POST", house.urls[0] + "/v1/completions", json=body) as response:
        await response.aiter_lines().__anext__()
    await until(lambda: house.rows("completions"), 10)
    series = await scrape(house)
    assert value(series, "completions_total", arm="champion", version="0", sampling="served", finish="disconnected") == 1


async def test_what_was_shown_and_why_it_was_not_taken_is_counted(house: House) -> None:
    await house.complete()
    house.engines[0].reply = house.tokenizer.encode("  ").ids
    await house.complete()
    tabby = "/v1/events"
    for path, body in (
        ("/v1/feedback", {"outcome": "accepted", "shown": "four"}),
        ("/v1/feedback", {"outcome": "partially_accepted", "accepted_characters": 3}),
        ("/v1/feedback", {"outcome": "rejected", "reason": "rejected", "seen_ms": 700}),
        ("/v1/feedback", {"outcome": "rejected", "reason": "typed_away", "seen_ms": 750}),
        ("/v1/feedback", {"reason": "cancelled"}),
        (tabby, {"type": "dismiss", "elapsed": 90}),
    ):
        assert (await house.send_feedback(path, {"completion_id": "c", **body})).status_code == 200
    series = await scrape(house)
    assert value(series, "completions_total", arm="champion", version="0", sampling="served", finish="length") == 2
    assert value(series, "shown_total", arm="champion", version="0", sampling="served") == 1
    for reason in ("rejected", "typed_away", "cancelled"):
        assert value(series, "not_taken_total", client="other", reason=reason) == 1
    assert [row.seen_ms for row in house.rows("feedback")] == [None, None, 700, 750, None, 90]


async def test_the_measures_are_those_of_the_last_cycle(house: House) -> None:
    sums = Measures(requests=10, shown=8, accepted=2, kept_characters=30, explicit_cancels=1)
    for name, groups in (
        ("cycle-000001", ()),
        ("cycle-000002", (("all", "", sums), ("language", "python", Measures(requests=4)))),
    ):
        measured = tuple(MeasuredGroup(by=by, name=group, measures=measures) for by, group, measures in groups)
        house.store.put_json(
            cycles.key(name, cycles.MANIFEST), manifest(name).model_copy(update={"measures": measured}).model_dump()
        )
    series = await scrape(house)
    for name, ratio in sums.ratios().items():
        assert value(series, "measure", measure=name, by="all", group="") == ratio
    assert value(series, "measure", measure="accepted_per_request", by="language", group="python") == 0
    assert value(series, "measure", measure="accepted_per_shown", by="language", group="python") is None


async def test_requests_refused_during_an_outage_are_counted(house: House) -> None:
    for engine in house.engines:
        engine.up = False
    for stream in (True, False):
        response = await house.complete(stream=stream)
        assert response.status_code == 503 and int(response.headers["retry-after"]) > 0
        assert response.json()["error"]["type"] == "server_error"
    assert value(await scrape(house), "refused_total", status="503") == 2


async def test_the_spool_is_measured_at_a_scrape(house: House) -> None:
    await house.complete()
    await house.send_feedback("/v1/feedback", {"completion_id": "c", "outcome": "accepted"})
    segments = list(house.spool.directory.rglob("*.jsonl"))
    for segment in segments:
        stat = segment.stat()
        os.utime(segment, (stat.st_atime, stat.st_mtime - 100))
    series = await scrape(house)
    assert value(series, "spool_segments") == len(segments) == 2
    assert value(series, "spool_bytes") == sum(segment.stat().st_size for segment in segments) > 0
    oldest = value(series, "spool_oldest_seconds")
    assert oldest is not None and 100 <= oldest < 160
    status = (await house.client.get(house.urls[0] + "/admin/status", headers=ADMINISTRATOR)).json()
    assert status["spool"]["segments"] == 2 and status["spool"]["oldest_seconds"] >= 100


async def test_events_between_two_measurements_count_towards_the_spools_limit(tmp_path: Path, tokenizer: Tokenizer) -> None:
    async with House(tmp_path, tokenizer, spool_bytes=2_000) as house:
        body = {"completion_id": "c", "outcome": "accepted", "shown": "x " * 450}
        statuses = [(await house.send_feedback("/v1/feedback", body)).status_code for _ in range(4)]
        assert statuses == [200, 200, 503, 503]


async def test_an_internal_error_has_openais_shape_and_is_counted(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_disk_full() -> None:
        raise OSError(28, "no space left on device")

    monkeypatch.setattr(house.spool, "measure", raise_disk_full)
    response = await house.client.get(house.urls[0] + "/admin/status", headers=ADMINISTRATOR)
    assert response.status_code == 500 and "feedback" not in response.text and response.json()["error"]["type"] == "server_error"
    monkeypatch.undo()
    assert value(await scrape(house), "refused_total", status="500") == 1
