"""The object store behind a faulty proxy: requests are retried, then an error names the action, and nothing is lost."""

import time
from pathlib import Path

import boto3
import pytest
from botocore.config import Config

from infra.settings import Settings
from infra.settings.schema import Collect
from infra.storage import cycles
from infra.storage.store import AlreadyExists, ObjectStore, Unreachable, sha256
from tasks.labels.collect import collect
from tasks.steps import transaction
from tasks.validation.quarantine import ValidationEvidence
from tests.infra.conftest import KEYS
from tests.infra.faulty import FAULTS, Fault, FaultInjector, proxy
from tests.stack import free_ports
from tests.tasks import rows
from tests.tasks.made import NOW, MemoryRegistry, completion, feedback, next_name

pytestmark = pytest.mark.stack

ATTEMPTS = 40


def client(address: str, bucket: str, read_timeout: float = 0.5) -> ObjectStore:
    """Return a store like that of ObjectStore.connect, with shorter timeouts (seconds) and pauses."""
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
def test_a_single_fault_is_hidden_by_a_retry(moto: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Fault) -> None:
    monkeypatch.setattr("infra.storage.parts.PART_BYTES", 60_000)
    injector = FaultInjector(0.0, (kind,))
    with proxy(moto, injector) as address:
        store = client(address, f"once-{FAULTS.index(kind)}")
        store.ensure_bucket()
        store.put("a", b"")
        for action, expected in (
            (lambda: store.put("a", b"x" * 100_000), sha256([b"x" * 100_000])),
            (lambda: store.get("a"), b"x" * 100_000),
            (lambda: store.get_file("a", tmp_path / "a"), sha256([b"x" * 100_000])),
            (lambda: store.put_new("b", b"new"), sha256([b"new"])),
            (lambda: list(store.keys("")), ["a", "b"]),
        ):
            injector.planned.append(kind)
            assert action() == expected
            assert injector.planned == []
        assert injector.counts[kind] == 5
        assert store.get("b") == b"new"
        with pytest.raises(AlreadyExists):
            store.put_new("b", b"other")


@pytest.mark.parametrize("kind", FAULTS)
def test_the_error_for_a_lasting_fault_names_the_failed_action(moto: str, kind: Fault) -> None:
    with proxy(moto, injector := FaultInjector(0.0, (kind,))) as address:
        store = client(address, f"stays-{FAULTS.index(kind)}")
        store.ensure_bucket()
        store.put("a", b"x" * 100_000)
        injector.share = 1.0
        store_with_short_timeout = client(address, store.bucket, read_timeout=0.2)
        with pytest.raises(Unreachable, match=r"could not read s3://stays-\d/a: .*`tabloop status`"):
            store_with_short_timeout.get("a")
        assert injector.counts[kind] >= 4, "the request is retried"
        if kind not in ("torn", "slow"):  # a write has no body to tear, and timeouts take long
            with pytest.raises(Unreachable, match=r"could not write s3://stays-\d/b"):
                store.put("b", b"y")
            with pytest.raises(Unreachable, match=r"could not (look for|write once) s3://stays-\d/c"):
                store.put_new("c", b"y")
            with pytest.raises(Unreachable, match=r"could not list s3://stays-\d/"):
                list(store.keys(""))


def test_an_absent_server_is_an_error_within_30_seconds(tmp_path: Path) -> None:
    store = client(f"http://127.0.0.1:{free_ports(1)[0]}", "none")
    start = time.monotonic()
    with pytest.raises(Unreachable, match="could not read s3://none/a"):
        store.get("a")
    assert time.monotonic() - start < 30


def repeat_until_success(action):
    """Repeat the action until it succeeds, as a schedule repeats a flow. Return its result and the number of failures."""
    for failures in range(ATTEMPTS):
        try:
            return action(), failures
        except Unreachable:
            continue
    raise AssertionError(f"failed {ATTEMPTS} times")


def test_a_cycle_under_faults_is_sealed_once_with_every_label(moto: str) -> None:
    direct_store, injector = client(moto, "faults"), FaultInjector(0.0, seed=3)
    direct_store.ensure_bucket()
    for segment in range(12):
        completions = [completion(f"{segment}-{i}", prefix=f"{segment}-{i} = ") for i in range(5)]
        events = [feedback(f"{segment}-{i}", prefix=f"{segment}-{i} = ") for i in range(5)]
        direct_store.put_rows(f"events/completions/date=2027-01-15/hour=08/{segment:02d}.parquet", completions)
        direct_store.put_rows(f"events/feedback/date=2027-01-15/hour=08/{segment:02d}.parquet", events)
    registry = MemoryRegistry(v1={})
    registry.aliases["champion"] = "1"
    limits = Settings(collect=Collect(settle_seconds=10, join_seconds=60, max_user_share=1, max_user_weight=1))
    expected = collect(direct_store, registry.client, limits, NOW + 100)
    assert expected.accounting.samples.height == 60

    with proxy(moto, injector) as address:
        store = client(address, "faults")
        injector.share = 0.4
        collected, failures = repeat_until_success(lambda: collect(store, registry.client, limits, NOW + 100))
        assert collected.accounting.samples.equals(expected.accounting.samples)
        assert collected.plan.completions.drop("source").equals(expected.plan.completions.drop("source"))
        assert collected.plan.feedback.drop("source").equals(expected.plan.feedback.drop("source"))

        def seal_cycle() -> str:
            index = cycles.index(store)
            if (name := cycles.unfinished(index)) is None:
                name = next_name(store)
                transaction.seal(
                    store,
                    name,
                    transaction.manifest_fields(collected, ValidationEvidence(), NOW + 100),
                    rows.batch(store, collected),
                    limits,
                )
            return name

        name, seal_failures = repeat_until_success(seal_cycle)
    assert injector.counts.total() - injector.counts["none"] > 10, (injector.counts, failures, seal_failures)
    assert list(cycles.index(direct_store)) == [name] == ["cycle-000001"]
    manifest = cycles.manifest_of(direct_store, name)
    assert direct_store.get(manifest.samples.key) == rows.batch(direct_store, expected)
