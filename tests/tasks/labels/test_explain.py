"""`explain` finds the bucket and the reason of a request in the objects of the cycles."""

from typing import get_args

import pytest

from evals.demo import history
from evals.demo.history import LoopState
from evals.demo.record import Step
from infra import cli
from infra.records import Bucket, ExperimentRecord, Verdict
from infra.registry.client import Aliases
from infra.settings import Settings
from infra.settings.schema import Collect
from infra.storage.store import ObjectStore, sha256
from tasks.labels import explain, users
from tasks.labels.collect import collect
from tasks.labels.explain import Fate
from tasks.steps import transaction
from tasks.validation.quarantine import ValidationEvidence
from tests.tasks import rows
from tests.tasks.made import NOW, MemoryRegistry, MemoryStore, completion, decision, feedback

SETTINGS = Settings(collect=Collect(max_user_share=1))


def seal(store: MemoryStore, cycle: str, now: float, settings: Settings = SETTINGS) -> None:
    """Collect and seal a cycle, as the flow does, without validation and rewards."""
    registry = MemoryRegistry(v1={})
    registry.aliases["champion"] = "1"
    collected = collect(store, registry.client, settings, now)
    accounting = collected.accounting
    body = rows.batch(store, collected)
    explain.write(store, cycle, sha256([body]), accounting)
    users.write(store, cycle, sha256([body]), collected.register)
    transaction.seal(store, cycle, transaction.manifest_fields(collected, ValidationEvidence(), now), body, settings)


@pytest.fixture
def store() -> MemoryStore:
    """Return a store with three requests in two cycles; the last request waits for its label in the first cycle."""
    store, late = MemoryStore(), NOW + 100
    completions = [
        completion("good", prefix="a"),
        completion("secret", prefix="b", redacted=True),
        completion("young", prefix="c", time=late),
    ]
    events = [feedback("1", prefix="a"), feedback("3", prefix="c", time=late + 1)]
    store.put_rows("events/completions/date=2027-01-15/hour=08/a.parquet", completions)
    store.put_rows("events/feedback/date=2027-01-15/hour=08/a.parquet", events)
    seal(store, "cycle-000001", late + 5)
    seal(store, "cycle-000002", late + SETTINGS.collect.settle_seconds + 5)
    return store


def test_explain_returns_the_bucket_of_each_cycle(store: MemoryStore) -> None:
    unknown = {"settled": "unknown (short_prefix)"}
    assert list(explain.explain(store, "good"))[-1] == Fate("cycle-000001", "trained", **unknown)
    secret = Fate("cycle-000001", "quarantined", "secret", "unknown (redacted)")
    assert list(explain.explain(store, "secret"))[-1] == secret
    unknown = {"settled": "unknown (not_shown)"}
    young = [Fate("cycle-000002", "trained", **unknown), Fate("cycle-000001", "waiting", **unknown)]
    assert list(explain.explain(store, "young")) == young
    assert list(explain.explain(store, "made up")) == []


def test_without_the_list_of_requests_samples_and_quarantine_are_still_found(store: MemoryStore) -> None:
    store.put_json("cycles/cycle-000001/validation.json", {"quarantined": {"secret": "secret"}})  # of earlier code
    for key in [key for key in store.keys("cycles/") if "/requests-" in key]:
        store.delete(key)
    assert list(explain.explain(store, "good"))[-1] == Fate("cycle-000001", "trained")
    assert list(explain.explain(store, "secret"))[-1] == Fate("cycle-000001", "quarantined", "secret")


def test_the_command_prints_bucket_reason_and_meaning(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ObjectStore, "connect", lambda settings: store)
    monkeypatch.setattr(store, "uri", lambda key: f"s3://bucket/{key}", raising=False)
    assert cli.main(["explain", "secret"]) == 0
    assert "cycle-000001: quarantined (secret): not fit for training" in capsys.readouterr().out
    assert cli.main(["explain", "made up"]) == 1
    assert "made up: in no cycle of s3://bucket/cycles/" in capsys.readouterr().out


def test_every_bucket_has_a_meaning() -> None:
    assert set(explain.MEANINGS) == set(get_args(Bucket))


def test_the_demo_reads_which_requests_explored_and_were_accepted(store: MemoryStore) -> None:
    sampled = [completion(f"{n}", prefix=f"{n} = ", exploring=n == 1, time=NOW + 150) for n in range(3)]
    sent = [feedback(f"x{n}", prefix=f"{n} = ", time=NOW + 151, outcome="rejected" if n else "accepted") for n in range(2)]
    store.put_rows("events/completions/date=2027-01-15/hour=08/b.parquet", sampled)
    store.put_rows("events/feedback/date=2027-01-15/hour=08/b.parquet", sent)
    seal(store, "cycle-000003", NOW + 300)
    state = LoopState(Aliases(None, None, None, None), {f"cycle-00000{n}": {} for n in (1, 3)}, {})
    rows = {row["id"]: (row["exploring"], row["accepted"]) for row in history.request_rows(store, state)}
    assert {name: rows[name] for name in "012"} == {"0": (False, True), "1": (True, False), "2": (False, False)}
    assert rows["young"] == (False, True), "the newest cycle that read it counts: it waited before"


def test_the_demo_reads_a_row_of_each_ended_cycle_with_its_verdict(store: MemoryStore) -> None:
    for name, body in (
        ("training", {"steps": [{"reward": 0.5, "kl": 0.25, "clip_fraction": 0.125}]}),
        ("evaluation", {"candidate": {"judged": 7.5}}),
        ("showing", {"reliability": {"error": 0.1, "bins": []}}),
    ):
        store.put_json(f"cycles/cycle-000001/{name}.json", body)
    ended = {"version": "2", "reason": "it was registered", "result": "registered"}
    outcomes = {"cycle-000001": {**ended, "experiment": "e1"}, "cycle-000002": {**ended, "experiment": "", "result": "refused"}}
    verdict = Verdict(verdict="promote", reason="won", estimate=0.02, low=0.01, high=0.03)
    experiment = ExperimentRecord(id="e1", champion="1", challenger="2", share=0.5, started=NOW)
    state = LoopState(Aliases(None, None, None, None), outcomes, {"e1": decision(experiment, verdict, NOW)})
    first, second = history.cycle_rows(store, state)
    assert (first.verdict, first.reason, first.estimate, first.low, first.high) == ("promote", "won", 0.02, 0.01, 0.03)
    assert (first.judge, first.kl, first.clip_fraction, first.samples) == (7.5, 0.25, 0.125, 1)
    assert first.calibration and first.calibration.error == 0.1 and first.steps == [Step(reward=0.5, kl=0.25)]
    assert (second.verdict, second.reason, second.estimate) == ("refused", "it was registered", None)
    assert second.calibration is None and second.steps == []
