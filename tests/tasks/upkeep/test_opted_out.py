"""Text that another replica kept of a request that is opted out is not trained on, and retention removes it."""

from collections.abc import Iterator

from infra.records import Feedback
from infra.redaction.events import without_text
from infra.storage.store import from_parquet, to_parquet
from tasks.upkeep import opted_out
from tasks.upkeep.compaction import Limits, compact
from tasks.upkeep.forget import forget, request
from tests.tasks import rows
from tests.tasks.labels.test_accounting import account
from tests.tasks.made import NOW, MemoryRegistry, MemoryStore, completion, feedback

BOB = "b" * 32
HIDDEN = without_text(completion("hidden")).model_copy(update={"opted_out": True})
KEPT = feedback("f1", completion_id="hidden", prefix="secret_of_ada = ", shown="compute()", settled="compute()")
OTHER = feedback("f2", completion_id="c", prefix="x = ", shown="y")


def stored() -> MemoryStore:
    store = MemoryStore()
    rows.put(store, [HIDDEN, completion("c")], [KEPT, OTHER])
    return store


def feedback_ids(store: MemoryStore) -> list[str]:
    return [row.id for key in store.keys("events/feedback/") for row in from_parquet(store.get(key), Feedback)]


def test_it_is_removed_and_all_else_stays() -> None:
    store = stored()
    assert list(opted_out.clean(store, dry_run=True).values()) == [1] and len(feedback_ids(store)) == 2
    assert list(opted_out.clean(store, dry_run=False).values()) == [1]
    assert feedback_ids(store) == ["f2"]
    assert opted_out.clean(store, dry_run=False) == {}


def test_an_object_of_such_events_alone_is_deleted_and_one_without_text_stays() -> None:
    store = MemoryStore()
    rows.put(store, [HIDDEN], [KEPT])
    rows.put(store, [], [without_text(KEPT).model_copy(update={"id": "f3"})], name="b")
    opted_out.clean(store, dry_run=False)
    assert feedback_ids(store) == ["f3"]


def test_an_erasure_meanwhile_leaves_no_row_of_its_user() -> None:
    class ErasingStore(MemoryStore):
        begun = False

        def put(self, key: str, body: bytes) -> str:
            if key.startswith("events/feedback/") and not self.begun:
                self.begun = True  # the object was read, and is not yet written
                forget(self, MemoryRegistry(v1={}).client, request(BOB, "", NOW, "operator", ""), NOW, dry_run=False)
            return super().put(key, body)

    store, bobs = ErasingStore(), feedback("f4", completion_id="b", user=BOB)
    store.objects = stored().objects
    store.objects[next(store.keys("events/feedback/"))] = to_parquet([KEPT, OTHER, bobs])
    opted_out.clean(store, dry_run=False)
    assert store.begun and feedback_ids(store) == ["f2"]


def test_it_labels_nothing() -> None:
    accounting = account([HIDDEN], [KEPT])
    assert accounting.buckets["opted_out"] == 1 and accounting.samples.is_empty()


def test_a_completion_that_compaction_removes_after_it_was_listed_is_read_in_its_container() -> None:
    class CompactedMeanwhile(MemoryStore):
        listed = False

        def keys(self, prefix: str) -> Iterator[str]:
            found = list(super().keys(prefix))
            if prefix == opted_out.COMPLETIONS and not self.listed:
                self.listed = True
                compact(self, NOW + 7_300, Limits(least=2), dry_run=False)
            return iter(found)

    store = CompactedMeanwhile()
    for name, row in (("a", HIDDEN), ("b", completion("c"))):
        rows.put(store, [row], [KEPT] if name == "a" else [], name=name)
    store.listed = True
    compact(store, NOW + 7_300, Limits(least=2), dry_run=False)
    store.listed = False
    assert list(opted_out.clean(store, dry_run=False).values()) == [1]
    assert store.listed and len(list(store.keys(opted_out.COMPLETIONS))) == 1
