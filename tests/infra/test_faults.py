"""The object store behind a faulty proxy: requests are retried, then an error names the action, and nothing is lost."""

import time
from pathlib import Path

import boto3
import pytest
from botocore.config import Config

from infra import cycles
from infra.settings import Settings
from infra.settings.schema import Collect
from infra.store import AlreadyExists, ObjectStore, Unreachable, sha256
from tasks.labels.collect import collect
from tasks.steps import sealing
from tasks.validation.quarantine import ValidationEvidence
from tests.infra.conftest import KEYS
from tests.infra.faulty import FAULTS, Fault, Weather, proxy
from tests.stack import free_ports
from tests.tasks import rows
from tests.tasks.made import NOW, MemoryRegistry, completion, feedback

pytestmark = pytest.mark.stack

TRIES = 40


def client(address: str, bucket: str, read_timeout: float = 0.5) -> ObjectStore:
    """A store like that of ObjectStore.connect, with shorter timeouts (seconds) and pauses."""
    config = Config(
        retries={"mode": "standard", "max_attempts": 4},
        connect_timeout=1,
        read_timeout=read_timeout,
        response_checksum_validation="when_required",
        request_checksum_calculation="when_required",
    )
    return ObjectStore(boto3.client("s3", endpoint_url=address, config=config, **KEYS), bucket, pause=0.01)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten boto3's pauses of up to 20 s; these tests check the number of attempts."""
    monkeypatch.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", lambda self, context: 0.01)


@pytest.mark.parametrize("kind", FAULTS)
def test_of_any_fault_once_in_a_while_nobody_notices(moto: str, kind: Fault) -> None:
    weather = Weather(0.0, (kind,))
    with proxy(moto, weather) as address:
        store = client(address, f"once-{FAULTS.index(kind)}")
        store.ensure_bucket()
        store.put("a", b"")
        for work, expected in (
            (lambda: store.put("a", b"x" * 100_000), sha256([b"x" * 100_000])),
            (lambda: store.get("a"), b"x" * 100_000),
            (lambda: store.put_new("b", b"new"), sha256([b"new"])),
            (lambda: list(store.keys("")), ["a", "b"]),
        ):
            weather.planned.append(kind)
            assert work() == expected
            assert weather.planned == []
        assert weather.happened[kind] == 4
        assert store.get("b") == b"new"
        with pytest.raises(AlreadyExists):
            store.put_new("b", b"other")


@pytest.mark.parametrize("kind", FAULTS)
def test_of_a_fault_that_stays_the_error_says_what_could_not_be_done(moto: str, kind: Fault) -> None:
    with proxy(moto, weather := Weather(0.0, (kind,))) as address:
        store = client(address, f"stays-{FAULTS.index(kind)}")
        store.ensure_bucket()
        store.put("a", b"x" * 100_000)
        weather.share = 1.0
        impatient = client(address, store.bucket, read_timeout=0.2)
        with pytest.raises(Unreachable, match=r"could not read s3://stays-\d/a: .*`make status`"):
            impatient.get("a")
        assert weather.happened[kind] >= 4, "the request is retried"
        if kind not in ("torn", "slow"):  # a write has no body to tear, and timeouts take long
            with pytest.raises(Unreachable, match=r"could not write s3://stays-\d/b"):
                store.put("b", b"y")
            with pytest.raises(Unreachable, match=r"could not (look for|write once) s3://stays-\d/c"):
                store.put_new("c", b"y")
            with pytest.raises(Unreachable, match=r"could not list s3://stays-\d/"):
                list(store.keys(""))


def test_a_server_that_is_not_there(tmp_path: Path) -> None:
    store = client(f"http://127.0.0.1:{free_ports(1)[0]}", "none")
    began = time.monotonic()
    with pytest.raises(Unreachable, match="could not read s3://none/a"):
        store.get("a")
    assert time.monotonic() - began < 30


def again_and_again(work):
    """Repeat the work until it succeeds, as a schedule repeats a flow; return its result and the number of failures."""
    for failures in range(TRIES):
        try:
            return work(), failures
        except Unreachable:
            continue
    raise AssertionError(f"failed {TRIES} times")


def test_a_cycle_in_bad_weather_is_sealed_once_with_every_label(moto: str) -> None:
    calm, weather = client(moto, "weather"), Weather(0.0, seed=3)
    calm.ensure_bucket()
    for segment in range(12):
        served = [completion(f"{segment}-{i}", prefix=f"{segment}-{i} = ") for i in range(5)]
        events = [feedback(f"{segment}-{i}", prefix=f"{segment}-{i} = ") for i in range(5)]
        calm.put_rows(f"events/completions/date=2027-01-15/hour=08/{segment:02d}.parquet", served)
        calm.put_rows(f"events/feedback/date=2027-01-15/hour=08/{segment:02d}.parquet", events)
    registry = MemoryRegistry(v1={})
    registry.aliases["champion"] = "1"
    limits = Settings(collect=Collect(settle_seconds=10, join_seconds=60, max_user_share=1, max_user_weight=1))
    expected = collect(calm, registry.client, limits, NOW + 100)
    assert expected.accounting.samples.height == 60

    with proxy(moto, weather) as address:
        store = client(address, "weather")
        weather.share = 0.4
        collected, failures = again_and_again(lambda: collect(store, registry.client, limits, NOW + 100))
        assert collected.accounting.samples.equals(expected.accounting.samples)
        assert collected.plan.completions.drop("source").equals(expected.plan.completions.drop("source"))
        assert collected.plan.feedback.drop("source").equals(expected.plan.feedback.drop("source"))

        def sealed() -> str:
            index = cycles.index(store)
            if (name := cycles.unfinished(index)) is None:
                name = cycles.next_name(index)
                sealing.seal(
                    store,
                    name,
                    sealing.manifest_fields(collected, ValidationEvidence(), NOW + 100),
                    rows.batch(store, collected),
                    limits,
                )
            return name

        name, more = again_and_again(sealed)
    assert weather.happened.total() - weather.happened["fine"] > 10, (weather.happened, failures, more)
    assert list(cycles.index(calm)) == [name] == ["cycle-000001"]
    manifest = cycles.manifest_of(calm, name)
    assert calm.get(manifest.samples.key) == rows.batch(calm, expected)
