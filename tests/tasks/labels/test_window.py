"""The window of a cycle: nothing twice, nothing lost, whatever was promoted, rolled back, or came late."""

import pytest

from infra.records import Manifest, ObjectReference
from infra.settings import Settings
from infra.settings.schema import Collect
from tasks.labels.collect import collect
from tasks.labels.partitions import InputChanged, join_partition, plan_window, references
from tasks.labels.window import Window, window_after
from tasks.steps.sealing import manifest_fields, seal
from tasks.validation.quarantine import ValidationEvidence
from tests.tasks import rows
from tests.tasks.made import NOW, MemoryRegistry, MemoryStore, completion, feedback

SETTINGS = Settings(collect=Collect(settle_seconds=10, join_seconds=60, max_user_share=1, max_user_weight=1))


def put(store: MemoryStore, name: str, ids: list[str], time: float) -> None:
    """An object of completions, each accepted at once."""
    served = [completion(i, time=time, prefix=f"{i} = ") for i in ids]
    told = [feedback(i, time=time + 1, prefix=f"{i} = ") for i in ids]
    store.put_rows(f"events/completions/date=2027-01-15/hour=08/{name}.parquet", served)
    store.put_rows(f"events/feedback/date=2027-01-15/hour=08/{name}.parquet", told)


def cycle(store: MemoryStore, registry: MemoryRegistry, name: str, now: float) -> tuple[list[str], Manifest]:
    """Collect and seal; the ids that are trained."""
    found = collect(store, registry.client, SETTINGS, now)
    ids = found.accounting.samples["id"].to_list()
    return ids, seal(store, name, manifest_fields(found, ValidationEvidence(), now), rows.batch(store, found), SETTINGS)


def test_the_next_window_begins_where_the_champions_own_ended() -> None:
    store, registry = MemoryStore(), MemoryRegistry(v1={})
    registry.aliases["champion"] = "1"
    put(store, "a", ["1", "2"], NOW)
    put(store, "b", ["3"], NOW + 95)
    first, manifest = cycle(store, registry, "cycle-000001", NOW + 100)
    assert first == ["1", "2"]
    assert (manifest.buckets["waiting"], manifest.requests) == (1, 3)

    # The candidate was rejected: the champion has seen nothing of it.
    assert cycle(store, registry, "cycle-000002", NOW + 200)[0] == ["1", "2", "3"]

    # The candidate of the first cycle was promoted.
    registry.versions["2"] = {"parent": "1", "cycle": "cycle-000001"}
    registry.aliases["champion"] = "2"
    put(store, "c", ["4"], NOW + 150)
    again, manifest = cycle(store, registry, "cycle-000003", NOW + 200)
    assert again == ["3", "4"]
    assert manifest.since == NOW + 90

    # And rolled back.
    registry.aliases["champion"] = "1"
    assert cycle(store, registry, "cycle-000004", NOW + 200)[0] == ["1", "2", "3", "4"]


def test_an_object_that_came_late_is_in_the_next_window_and_nothing_is_trained_twice() -> None:
    store, registry = MemoryStore(), MemoryRegistry(v1={}, v2={"parent": "1", "cycle": "cycle-000001"})
    registry.aliases["champion"] = "1"
    put(store, "a", ["1", "2"], NOW)
    cycle(store, registry, "cycle-000001", NOW + 100)
    registry.aliases["champion"] = "2"
    put(store, "late", ["2", "9"], NOW + 1)
    found = collect(store, registry.client, SETTINGS, NOW + 200)
    assert found.accounting.samples["id"].to_list() == ["9"]
    assert found.accounting.buckets["duplicate"] == 1
    assert found.accounting.requests == 2


def test_rows_that_are_no_events_are_counted() -> None:
    store = MemoryStore()
    put(store, "a", ["1"], NOW)
    key = next(store.keys("events/completions/"))
    torn = completion("2").model_copy(update={"logprobs": (-0.5,)})
    store.put_rows(key, [completion("1"), torn])
    planned = plan_window(store, Window(NOW - 1, NOW + 99, NOW - 99, {}), NOW + 100, 60)
    (found,) = [join_partition(store, partition) for partition in planned.partitions]
    assert (planned.requests, found.facts["id"].to_list()) == (2, ["1"])
    (broken,) = found.malformed
    assert (broken.completion_id, broken.user, broken.reason) == ("2", "u", "malformed")
    assert '"logprobs": [-0.5]' in broken.row


def test_objects_read_to_the_end_are_not_read_again() -> None:
    store = MemoryStore()
    put(store, "a", ["1"], NOW)
    put(store, "b", ["2"], NOW + 50)
    every = plan_window(store, Window(NOW - 1, NOW + 99, NOW - 99, {}), NOW + 100, 60)
    manifest = Manifest(
        cycle="c", created=NOW, champion="1", parent="1", since=0, until=NOW + 20, completions=references(every.completions),
        feedback=(), samples=ObjectReference(key="", sha256="", rows=0), buckets={}, requests=0, settings_sha256="",
    )  # fmt: skip
    after = plan_window(store, window_after([manifest], NOW + 100, 10, 1000), NOW + 100, 60)
    assert [r.key[-9:] for r in references(after.completions)] == ["b.parquet"]
    assert [i for partition in after.partitions for i in join_partition(store, partition).facts["id"]] == ["2"]


def test_who_only_counts_reads_no_tokens() -> None:
    store = MemoryStore()
    put(store, "a", ["1"], NOW)
    torn = completion("2", prefix="2 = ").model_copy(update={"logprobs": (-0.5,)})
    store.put_rows(f"events/completions/{rows.FOLDER}/b.parquet", [torn])
    (partition,) = plan_window(store, Window(NOW - 1, NOW + 99, NOW - 99, {}), NOW + 100, 60).partitions
    found = join_partition(store, partition, tokens=False)
    assert (found.facts["id"].to_list(), found.malformed) == (["1", "2"], ())
    assert "tokens" not in found.matches.columns


def test_what_was_rewritten_after_the_window_was_looked_at_is_noticed() -> None:
    store = MemoryStore()
    put(store, "a", ["1", "2"], NOW)
    (partition,) = plan_window(store, Window(NOW - 1, NOW + 99, NOW - 99, {}), NOW + 100, 60).partitions
    put(store, "a", ["1"], NOW)
    with pytest.raises(InputChanged, match=r"a.parquet: SHA-256 .* was erased in the meantime"):
        join_partition(store, partition)
