"""A user's newest requests, with what is known of each before and after a cycle."""

from infra.settings import Settings
from infra.settings.schema import Collect
from tasks.labels.recent import recent
from tests.tasks.labels.test_explain import seal
from tests.tasks.made import NOW, MemoryStore, completion, feedback

COLLECT = Collect(max_user_share=1)


def shop() -> MemoryStore:
    """Return a store with requests of two users, none of them in a cycle."""
    store = MemoryStore()
    completions = [
        completion("old", prefix="a", time=NOW - 7_200),
        completion("taken", prefix="b", language="py"),
        completion("secret", prefix="c", redacted=True, time=NOW + 2),
        completion("other", prefix="d", user="v"),
    ]
    store.put_rows("events/completions/date=2027-01-15/hour=08/a.parquet", completions)
    store.put_rows("events/feedback/date=2027-01-15/hour=08/a.parquet", [feedback("1", prefix="b")])
    return store


def test_what_became_of_each_request_is_known_before_a_cycle() -> None:
    found = recent(shop(), COLLECT, "u", NOW + 60, hours=1, last=20)
    assert [(each.id, each.answer, each.flags, each.cycle) for each in found] == [
        ("taken", "accepted", (), ""),
        ("secret", "no answer yet", ("a secret was removed",), ""),
    ]
    assert found[0].accepted_characters == len("foo(bar)") and "accepted" in str(found[0]) and "in no cycle yet" in str(found[0])


def test_the_newest_come_last_and_older_ones_on_request() -> None:
    store = shop()
    assert [each.id for each in recent(store, COLLECT, "u", NOW + 60, hours=1, last=1)] == ["secret"]
    assert [each.id for each in recent(store, COLLECT, "u", NOW + 60, hours=3, last=9)] == ["old", "taken", "secret"]
    assert recent(store, COLLECT, "nobody", NOW + 60, hours=3, last=9) == []
    assert recent(MemoryStore(), COLLECT, "u", NOW + 60, hours=3, last=9) == []


def test_a_cycle_says_where_it_put_each() -> None:
    store = shop()
    seal(store, "cycle-000001", NOW + 400, Settings(collect=COLLECT))
    buckets = {each.id: (each.cycle, each.bucket) for each in recent(store, COLLECT, "u", NOW + 400, hours=1, last=9)}
    assert buckets == {"taken": ("cycle-000001", "trained"), "secret": ("cycle-000001", "quarantined")}
