"""Who is known: users of a credential become known a few a day, and nobody is counted twice."""

import random

import polars as pl
from hypothesis import example, given, settings
from hypothesis import strategies as st

from infra.records import Forgotten
from infra.settings import Settings
from infra.settings.schema import Collect
from infra.storage.events import tombstones
from tasks.labels import users
from tasks.labels.collect import collect
from tasks.labels.users import DAY, NOBODY, admit, with_admission, with_history
from tests.tasks.labels.test_accounting import account
from tests.tasks.labels.test_explain import seal
from tests.tasks.made import NOW, MemoryRegistry, MemoryStore, completion, feedback

FIRST = 20_000 * DAY
requests = st.lists(
    st.tuples(st.integers(0, 8), st.sampled_from("ab"), st.integers(0, 2), st.integers(0, 9)), min_size=1, max_size=40
)


def frame(rows: list[tuple[int, str, int, int]]) -> pl.DataFrame:
    """Requests of a user with a credential on a day, at an hour of it."""
    made = [(f"u{user}", credential, FIRST + day * DAY + hour * 3600.0) for user, credential, day, hour in rows]
    schema = {"user": pl.String, "credential": pl.String, "time": pl.Float64}
    return pl.DataFrame(made, schema, orient="row")


@settings(max_examples=100)
@example([(0, "a", 0, 0), (0, "b", 0, 0), (1, "b", 0, 0)], 1, random.Random(0))
@given(requests, st.integers(1, 3), st.randoms())
def test_few_users_of_a_credential_become_known_a_day_whatever_the_order(rows, most: int, draw: random.Random) -> None:
    register = admit(frame(rows), NOBODY, most)
    by_day = register.group_by("credential", pl.col("admitted") // DAY).len()
    assert max(by_day["len"]) <= most
    assert register["user"].is_unique().all()
    draw.shuffle(rows)
    assert admit(frame(rows), NOBODY, most).equals(register)
    # Those of the first days, then the others: as all at once, and no request counts twice.
    first = frame([row for row in rows if row[2] == 0])
    assert admit(frame(rows), admit(first, NOBODY, most), most).equals(register)
    counted = with_admission(frame(rows), register).filter("admitted")
    assert dict(register.select("user", "requests").iter_rows()) == dict(counted.group_by("user").len().iter_rows())
    assert admit(frame(rows), register, most).equals(register), "the same window again"


def test_by_hand() -> None:
    rows = [(0, "a", 0, 1), (1, "a", 0, 2), (1, "a", 1, 3), (2, "a", 1, 1), (3, "b", 0, 5), (0, "a", 1, 4)]
    register = admit(frame(rows), NOBODY, 1)
    assert register.select("user", "admitted", "requests").rows() == [
        ("u0", FIRST + 3600.0, 2),  # the first of day 0
        ("u2", FIRST + DAY + 3600.0, 1),  # the first of day 1
        ("u3", FIRST + 5 * 3600.0, 1),  # another credential's
    ]
    admitted = with_admission(frame(rows), register)["admitted"].to_list()
    assert admitted == [True, False, False, True, True, True]
    assert with_history(register, FIRST + DAY, 2) == {"u0"}
    assert with_history(register, FIRST + 3600.0, 1) == frozenset(), "known before the test began"
    assert admit(frame(rows), NOBODY, 0).height == 4


def test_ten_thousand_invented_users_of_a_day_are_fifty() -> None:
    served = [completion(f"{i}", prefix=f"{i}", user=f"invented {i}", time=NOW + i / 1000) for i in range(1000)]
    judged = [feedback(c.id, prefix=c.prefix, user=c.user, time=c.time + 1) for c in served]
    found = account(served, judged, limits=Collect(max_user_share=1))
    assert (found.buckets["trained"], found.buckets["new_user"]) == (50, 950)


def test_what_invented_users_wrote_is_not_trained_on_either() -> None:
    served = [completion(f"{i}", prefix=f"{i}", user=f"invented {i}", time=NOW + i / 1000) for i in range(200)]
    judged = [
        feedback(c.id, prefix=c.prefix, user=c.user, time=c.time + 1, outcome="shown", completion_id=c.id, settled="foo(bar)")
        for c in served
    ]
    found = account(served, judged, limits=Collect(max_user_share=1))
    assert (found.buckets["trained"], found.buckets["new_user"]) == (50, 150)


def test_the_register_goes_from_cycle_to_cycle_without_the_forgotten() -> None:
    store, registry = MemoryStore(), MemoryRegistry(v1={})
    registry.aliases["champion"] = "1"
    limits = Settings(collect=Collect(max_user_share=1, max_new_users=2))
    ada, bob, eve = ("a" * 32, "b" * 32, "e" * 32)

    def ship(name: str, people: tuple[str, ...], at: float) -> None:
        served = [completion(f"{name}{u[0]}", user=u, prefix=f"{name}{u}", time=at + i) for i, u in enumerate(people)]
        store.put_rows(f"events/completions/date=2027-01-15/hour=08/{name}.parquet", served)
        judged = [feedback(c.id, user=c.user, prefix=c.prefix, time=c.time + 1) for c in served]
        store.put_rows(f"events/feedback/date=2027-01-15/hour=08/{name}.parquet", judged)

    ship("x", (ada, bob), NOW)
    seal(store, "cycle-000001", NOW + 100, limits)
    ship("y", (eve, ada, bob), NOW + 110)
    found = collect(store, registry.client, limits, NOW + 200)
    assert dict(found.accounting.classified.filter(pl.col("user") == eve).select("id", "bucket").rows()) == {"ye": "new_user"}
    assert found.register.select("user", "requests").rows() == [(ada, 2), (bob, 2)]
    tombstones.write(store, Forgotten(kind="user", subject=ada, time=NOW, by="", reason=""))
    assert users.read(store, 0.0)["user"].to_list() == [bob]
    assert users.read(store, NOW + DAY).is_empty(), "who sent nothing for long is new again"
