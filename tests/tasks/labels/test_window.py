"""The window of a cycle: no request is lost or trained twice after promotions, rollbacks and late objects."""

import pytest

from infra.records import Manifest, ObjectReference
from infra.settings import Settings
from infra.settings.schema import Collect
from tasks.labels.collect import collect
from tasks.labels.partitions import plan_window, references
from tasks.labels.pipeline import join_partition
from tasks.labels.read import InputChanged
from tasks.labels.window import Window, window_after
from tasks.steps.transaction import manifest_fields, seal
from tasks.validation.quarantine import ValidationEvidence
from tests.tasks import rows
from tests.tasks.made import NOW, MemoryRegistry, MemoryStore, completion, feedback

SETTINGS = Settings(collect=Collect(settle_seconds=10, join_seconds=60, max_user_share=1, max_user_weight=1))


def put(store: MemoryStore, name: str, ids: list[str], time: float) -> None:
    """Write an object of completions and one of feedback that accepts each of them."""
    completions = [completion(i, time=time, prefix=f"{i} = ") for i in ids]
    events = [feedback(i, time=time + 1, prefix=f"{i} = ") for i in ids]
    store.put_rows(f"events/completions/date=2027-01-15/hour=08/{name}.parquet", completions)
    store.put_rows(f"events/feedback/date=2027-01-15/hour=08/{name}.parquet", events)


def cycle(store: MemoryStore, registry: MemoryRegistry, name: str, now: float) -> tuple[list[str], Manifest]:
    """Collect and seal a cycle; return the ids of its samples and its manifest."""
    collected = collect(store, registry.client, SETTINGS, now)
    ids = collected.accounting.samples["id"].to_list()
    return ids, seal(store, name, manifest_fields(collected, ValidationEvidence(), now), rows.batch(store, collected), SETTINGS)


def test_a_window_begins_at_the_end_of_the_champions_own_window() -> None:
    store, registry = MemoryStore(), MemoryRegistry(v1={})
    registry.aliases["champion"] = "1"
    put(store, "a", ["1", "2"], NOW)
    put(store, "b", ["3"], NOW + 95)
    first, manifest = cycle(store, registry, "cycle-000001", NOW + 100)
    assert first == ["1", "2"]
    assert (manifest.buckets["waiting"], manifest.requests) == (1, 3)

    # The candidate was rejected, so the champion was trained on none of its requests.
    assert cycle(store, registry, "cycle-000002", NOW + 200)[0] == ["1", "2", "3"]

    # The candidate of the first cycle was promoted.
    registry.versions["2"] = {"parent": "1", "cycle": "cycle-000001"}
    registry.aliases["champion"] = "2"
    put(store, "c", ["4"], NOW + 150)
    third, manifest = cycle(store, registry, "cycle-000003", NOW + 200)
    assert third == ["3", "4"]
    assert manifest.since == NOW + 90

    # The candidate was rolled back.
    registry.aliases["champion"] = "1"
    assert cycle(store, registry, "cycle-000004", NOW + 200)[0] == ["1", "2", "3", "4"]


def test_a_late_object_is_in_the_next_window_and_no_request_is_trained_twice() -> None:
    store, registry = MemoryStore(), MemoryRegistry(v1={}, v2={"parent": "1", "cycle": "cycle-000001"})
    registry.aliases["champion"] = "1"
    put(store, "a", ["1", "2"], NOW)
    cycle(store, registry, "cycle-000001", NOW + 100)
    registry.aliases["champion"] = "2"
    put(store, "late", ["2", "9"], NOW + 1)
    collected = collect(store, registry.client, SETTINGS, NOW + 200)
    assert collected.accounting.samples["id"].to_list() == ["9"]
    assert collected.accounting.buckets["duplicate"] == 1
    assert collected.accounting.requests == 2


def test_malformed_rows_are_counted_with_their_reason() -> None:
    store = MemoryStore()
    put(store, "a", ["1"], NOW)
    key = next(store.keys("events/completions/"))
    torn = completion("2").model_copy(update={"logprobs": (-0.5,)})
    store.put_rows(key, [completion("1"), torn])
    plan = plan_window(store, Window(NOW - 1, NOW + 99, NOW - 99, {}), NOW + 100, 60)
    (joined,) = [join_partition(store, partition) for partition in plan.partitions]
    assert (plan.requests, joined.facts["id"].to_list()) == (2, ["1"])
    (malformed,) = joined.malformed
    assert (malformed.completion_id, malformed.user, malformed.reason) == ("2", "u", "malformed")
    assert '"logprobs": [-0.5]' in malformed.row


def test_objects_that_end_before_the_window_are_not_read_again() -> None:
    store = MemoryStore()
    put(store, "a", ["1"], NOW)
    put(store, "b", ["2"], NOW + 50)
    first = plan_window(store, Window(NOW - 1, NOW + 99, NOW - 99, {}), NOW + 100, 60)
    manifest = Manifest(
        cycle="c", created=NOW, champion="1", parent="1", since=0, until=NOW + 20, completions=references(first.completions),
        feedback=(), samples=ObjectReference(key="", sha256="", rows=0), buckets={}, requests=0, settings_sha256="",
    )  # fmt: skip
    second = plan_window(store, window_after([manifest], NOW + 100, 10, 1000), NOW + 100, 60)
    assert [r.key[-9:] for r in references(second.completions)] == ["b.parquet"]
    assert [i for partition in second.partitions for i in join_partition(store, partition).facts["id"]] == ["2"]


def test_a_join_without_tokens_does_not_read_them() -> None:
    store = MemoryStore()
    put(store, "a", ["1"], NOW)
    torn = completion("2", prefix="2 = ").model_copy(update={"logprobs": (-0.5,)})
    store.put_rows(f"events/completions/{rows.FOLDER}/b.parquet", [torn])
    (partition,) = plan_window(store, Window(NOW - 1, NOW + 99, NOW - 99, {}), NOW + 100, 60).partitions
    joined = join_partition(store, partition, tokens=False)
    assert (joined.facts["id"].to_list(), joined.malformed) == (["1", "2"], ())
    assert "tokens" not in joined.matches.columns


def test_an_object_rewritten_after_planning_is_an_error() -> None:
    store = MemoryStore()
    put(store, "a", ["1", "2"], NOW)
    (partition,) = plan_window(store, Window(NOW - 1, NOW + 99, NOW - 99, {}), NOW + 100, 60).partitions
    put(store, "a", ["1"], NOW)
    with pytest.raises(InputChanged, match=r"a.parquet: SHA-256 .* was erased in the meantime"):
        join_partition(store, partition)


def test_an_object_removed_after_planning_is_an_error() -> None:
    store = MemoryStore()
    put(store, "a", ["1", "2"], NOW)
    (partition,) = plan_window(store, Window(NOW - 1, NOW + 99, NOW - 99, {}), NOW + 100, 60).partitions
    store.delete("events/completions/date=2027-01-15/hour=08/a.parquet")
    with pytest.raises(InputChanged, match=r"a.parquet is gone, .* was erased in the meantime"):
        join_partition(store, partition)


def test_a_clock_that_was_ahead_for_one_cycle_loses_no_request() -> None:
    store, registry = MemoryStore(), MemoryRegistry(v1={})
    registry.aliases["champion"] = "1"
    put(store, "a", ["1"], NOW)
    cycle(store, registry, "cycle-000001", NOW + 86_500)
    registry.versions["2"], registry.aliases["champion"] = {"parent": "1", "cycle": "cycle-000001"}, "2"
    put(store, "b", ["2"], NOW + 300)
    put(store, "c", ["3"], NOW + 495)
    assert cycle(store, registry, "cycle-000002", NOW + 500)[0] == ["2"]
    registry.versions["3"], registry.aliases["champion"] = {"parent": "2", "cycle": "cycle-000002"}, "3"
    assert cycle(store, registry, "cycle-000003", NOW + 900)[0] == ["3"]
