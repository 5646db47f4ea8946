"""What counts in a test: users with a history, and of a busy user or credential a part."""

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.settings import Settings
from infra.settings.schema import Collect, Experiment
from tasks.experiments.metrics import METRICS
from tasks.experiments.totals import cap_requests, gather
from tests.tasks.experiments.test_decide import TEST
from tests.tasks.labels.test_explain import seal
from tests.tasks.made import NOW, MemoryStore, completion, feedback

cells = st.lists(
    st.tuples(st.sampled_from(["champion", "challenger"]), st.integers(0, 20), st.integers(0, 4), st.integers(1, 500)),
    min_size=1,
    max_size=30,
    unique_by=lambda cell: cell[:3],
)


def sums(rows) -> pl.DataFrame:
    made = [(arm, f"u{user}", f"c{credential}", float(n)) for arm, user, credential, n in rows]
    frame = pl.DataFrame(made, ["arm", "user", "credential", "requests"], orient="row").sort("arm", "user", "credential")
    return frame.with_columns(**{metric.name: pl.col("requests") / 4 for metric in METRICS})


@given(cells, st.sampled_from([1.0, 2.0, 5.0]), st.sampled_from([0.2, 0.5, 1.0]))
def test_no_user_or_credential_counts_with_more_than_its_part(rows, weight: float, share: float) -> None:
    given = sums(rows)
    found = cap_requests(given, Experiment(max_user_weight=weight, max_credential_weight=share))
    median = given.group_by("arm", "user").agg(pl.col("requests").sum())["requests"].median()
    assert isinstance(median, float)
    assert found.group_by("arm", "user").agg(pl.col("requests").sum())["requests"].max() <= weight * median * (1 + 1e-9)
    of_arm = found.group_by("arm").agg(pl.col("requests").sum().alias("all"))
    by_credential = found.group_by("arm", "credential").agg(pl.col("requests").sum()).join(of_arm, on="arm")
    assert (by_credential["requests"] <= share * by_credential["all"] * (1 + 1e-6)).all()
    assert found["accepted"].to_list() == pytest.approx((found["requests"] / 4).to_list()), "the rates stay"


def test_who_is_not_known_from_before_the_test_counts_in_no_gate() -> None:
    store = MemoryStore()
    limits = Settings(collect=Collect(max_user_share=1, max_new_users=2, settle_seconds=5))

    def ship(name: str, people: list[str], at: float, **fields: str) -> None:
        served = [completion(f"{name}{u}", user=u, prefix=f"{name}{u}", time=at + i, **fields) for i, u in enumerate(people)]
        store.put_rows(f"events/completions/date=2027-01-15/hour=08/{name}.parquet", served)
        told = [feedback(c.id, user=c.user, prefix=c.prefix, time=c.time + 1) for c in served]
        store.put_rows(f"events/feedback/date=2027-01-15/hour=08/{name}.parquet", told)

    ship("before", ["ada", "bob", "held back"], NOW - 90)
    seal(store, "cycle-000001", NOW - 10, limits)
    ship("test", ["ada", "held back", "invented"], NOW + 1, experiment="e")
    found = gather(store, TEST, limits.collect, Experiment(min_history_requests=1), NOW + 60)
    assert (found.of("champion").keys(), found.before.keys()) == ({"ada"}, {"ada", "bob"})
    everyone = gather(store, TEST, limits.collect, Experiment(min_history_requests=0), NOW + 60)
    assert everyone.of("champion").keys() == {"ada", "held back", "invented"}
    assert gather(store, TEST, limits.collect, Experiment(min_history_requests=2), NOW + 60).users == {
        "champion": {},
        "challenger": {},
    }
