"""The Parquet tables of an experiment, read with SQL as another system would: they give the gate's own numbers."""

import random
import stat
from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from infra import cli as command
from infra.assignment import assigned_arm
from infra.records import Decision, ExperimentRecord, Forgotten, Plan
from infra.settings import Settings
from infra.settings.schema import Collect, Experiment
from infra.storage.store import ObjectStore
from tasks.experiments.counting.totals import gather
from tasks.experiments.planning.plan import make_plan
from tasks.experiments.reports.export import EXPOSURES, FACTS, NotExported, export
from tasks.experiments.verdict import decide
from tests.tasks.made import NOW, MemoryStore, completion, feedback

BUSY, USERS = 3, 24
LIMITS = Settings(collect=Collect(settle_seconds=5))


def plan(**fields: object) -> Plan:
    values = {"min_history_requests": 0, "min_requests": 20, "max_user_weight": 2.0, "tolerated_users": 0, **fields}
    settings = {name: value for name, value in values.items() if name in Experiment.model_fields}
    return make_plan(Experiment.model_validate(settings), LIMITS.collect).model_copy(update=values)


def world(**fields: object) -> tuple[MemoryStore, ExperimentRecord]:
    """Return a store with the requests of 24 users on both arms, of whom three send five times as many, and the test."""
    store = MemoryStore()
    test = ExperimentRecord(id="e", champion="1", challenger="2", share=0.5, started=NOW, plan=plan(**fields))
    store.put_json("experiments/e.json", test)
    draw, completions, events = random.Random(1), [], []
    for number in range(USERS):
        user = f"{number:032x}"
        for i in range(50 if number < BUSY else 10):
            name, time = f"{number}-{i}", NOW - 40 + 60 * draw.random()
            arm = assigned_arm(test, user, time) if time >= NOW else "champion"
            of_test = {"arm": arm, "experiment": "e", "assigned": "e"} if time >= NOW else {}
            completions.append(completion(name, user=user, prefix=name, time=time, credential=f"c{number % 5}", **of_test))
            outcome = "accepted" if draw.random() < (0.6 if arm == "challenger" else 0.2) else "rejected"
            if i % 7:  # the others are not answered
                events.append(feedback(name, user=user, prefix=name, time=time + 1, outcome=outcome))
    store.put_rows("events/completions/date=2027-01-15/hour=08/a.parquet", completions)
    store.put_rows("events/feedback/date=2027-01-15/hour=08/a.parquet", events)
    return store, test


def query(folder: Path, statement: str) -> list[dict[str, Any]]:
    tables = {"exposures": pl.scan_parquet(folder / "e" / EXPOSURES), "facts": pl.scan_parquet(folder / "e" / FACTS)}
    return pl.SQLContext(tables).execute(statement, eager=True).to_dicts()


@pytest.mark.parametrize("on_both_arms", [0, 1])
def test_sql_over_the_tables_gives_the_estimate_of_the_verdict(tmp_path: Path, on_both_arms: int) -> None:
    store, test = world(baseline_seconds=0.0)
    for number in range(on_both_arms):  # set aside
        user, time = f"{number:032x}", NOW + 30
        other = "champion" if assigned_arm(test, user, time) == "challenger" else "challenger"
        of_test = {"arm": other, "experiment": "e", "assigned": "e"}
        row = completion(f"both-{number}", user=user, prefix=f"both-{number}", time=time, credential=f"c{number}", **of_test)
        store.put_rows("events/completions/date=2027-01-15/hour=08/b.parquet", [row])
    assert test.plan
    verdict = decide.decide(test, test.plan, gather(store, test, test.plan, NOW + 60), NOW + 60)
    export(store, "e", tmp_path, NOW + 60)
    rates = query(
        tmp_path,
        """SELECT variation_id, SUM(weight * requests) AS requests,
           SUM(weight * accepted) / SUM(weight * judged) * SUM(weight * visible) / SUM(weight * requests) AS rate
           FROM facts WHERE variation_id <> '' GROUP BY variation_id""",
    )
    of_arm = {row["variation_id"]: row for row in rates}
    found = next(metric for metric in verdict.metrics if metric.name == "accepted")
    assert (of_arm["champion"]["rate"], of_arm["challenger"]["rate"]) == pytest.approx((found.champion, found.challenger))
    # Without earlier requests to adjust for, the difference of the rates is the gate's estimate.
    assert found.estimate == pytest.approx(of_arm["challenger"]["rate"] - of_arm["champion"]["rate"], abs=1e-12)
    assert {arm: round(row["requests"]) for arm, row in of_arm.items()} == verdict.requests
    assert sum(verdict.users.values()) == USERS - on_both_arms
    assert min(row["weight"] for row in query(tmp_path, "SELECT weight FROM facts")) < 0.9, "the busy users are capped"


def test_facts_are_summed_by_version_block_project_language_and_decile(tmp_path: Path) -> None:
    store, _ = world(block_seconds=10.0)
    export(store, "e", tmp_path, NOW + 60)
    keys = "policy_version, block, project, language, decile"
    rows = query(tmp_path, f"SELECT user_id, {keys}, timestamp FROM facts WHERE variation_id <> ''")
    assert all(row["block"] == row["timestamp"].timestamp() // 10 for row in rows) and len({row["block"] for row in rows}) == 2
    requests = Counter(row["user_id"] for row in rows)
    ranked = sorted(requests, key=lambda user: (requests[user], user))
    assert {row["user_id"]: row["decile"] for row in rows} == {user: 10 * i // USERS + 1 for i, user in enumerate(ranked)}
    made = completion("any")
    assert {(row["policy_version"], row["project"], row["language"]) for row in rows} == {
        (made.policy_version, made.project, made.language)
    }


def test_exposures_are_each_users_first_request_and_earlier_facts_have_no_variation(tmp_path: Path) -> None:
    store, test = world()
    export(store, "e", tmp_path, NOW + 60)
    joined = query(
        tmp_path,
        """SELECT e.user_id, e.variation_id, e.experiment_id, MIN(f.timestamp) AS first, MIN(e.timestamp) AS exposed
           FROM exposures AS e JOIN facts AS f ON e.user_id = f.user_id AND e.variation_id = f.variation_id
           GROUP BY e.user_id, e.variation_id, e.experiment_id""",
    )
    assert len(joined) == len({row["user_id"] for row in joined}) == USERS
    for row in joined:
        assert row["first"] == row["exposed"] and row["experiment_id"] == "e" and row["first"].timestamp() >= NOW
        assert row["variation_id"] == assigned_arm(test, row["user_id"], NOW)
    earlier = query(tmp_path, "SELECT timestamp, weight FROM facts WHERE variation_id = ''")
    assert earlier and all(row["timestamp"].timestamp() < NOW and row["weight"] == 1 for row in earlier)


def test_a_crossover_has_an_exposure_for_each_block_of_a_user(tmp_path: Path) -> None:
    store, _ = world(design="crossover", block_seconds=5.0)
    export(store, "e", tmp_path, NOW + 60)
    units = query(tmp_path, "SELECT unit_id, user_id, variation_id FROM exposures")
    assert len({row["unit_id"] for row in units}) == len(units) > USERS
    assert {row["unit_id"].partition(":")[0] for row in units} == {row["user_id"] for row in units}


def test_users_of_one_credential_are_one_user_in_the_tables_too_where_the_gate_counts_them_so(tmp_path: Path) -> None:
    store, test = world(design="crossover", block_seconds=5.0, max_credential_weight=0.5)
    assert test.plan
    verdict = decide.undecided(gather(store, test, test.plan, NOW + 60))
    assert verdict.users == {"champion": 5, "challenger": 5}, "24 users of five credentials"
    store.put_json("decisions/e.json", Decision(experiment=test, verdict=verdict, decided=NOW + 60, by="gate"))
    written = export(store, "e", tmp_path, NOW + 999)
    assert written.note == "" and written.acceptance.keys() == verdict.acceptance.keys()
    for arm, rate in written.acceptance.items():
        assert rate.model_dump() == pytest.approx(verdict.acceptance[arm].model_dump())
    assert {row["user_id"] for row in query(tmp_path, "SELECT user_id FROM facts")} == {f"credential c{n}" for n in range(5)}


def test_the_files_are_for_their_owner_alone_and_say_when_events_are_gone(tmp_path: Path) -> None:
    store, test = world()
    assert test.plan
    totals = gather(store, test, test.plan, NOW + 60)
    verdict = decide.decide(test, test.plan, totals, NOW + 60)
    store.put_json("decisions/e.json", Decision(experiment=test, verdict=verdict, decided=NOW + 60, by="gate"))
    written = export(store, "e", tmp_path, NOW + 999)
    assert written.note == "" and set(written.rows) == {tmp_path / "e" / EXPOSURES, tmp_path / "e" / FACTS}
    assert {stat.S_IMODE(path.stat().st_mode) for path in written.rows} == {0o600}
    erased = Forgotten(kind="user", subject=f"{0:032x}", time=NOW, by="ada", reason="asked")
    store.put_json("forgotten/user-1.json", erased)
    assert "events have been forgotten or removed since" in export(store, "e", tmp_path, NOW + 999).note
    assert erased.subject not in {row["user_id"] for row in query(tmp_path, "SELECT DISTINCT user_id FROM facts")}


def test_what_cannot_be_exported_is_an_error_with_the_next_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store, _ = world()
    with pytest.raises(NotExported, match=r"experiments/other\.json does not exist.* the latest are e"):
        export(store, "other", tmp_path, NOW)
    with pytest.raises(NotExported, match=r"no request of this experiment counts.*tabloop history e"):
        export(store, "e", tmp_path, NOW)
    monkeypatch.setattr(ObjectStore, "connect", lambda _: store)
    monkeypatch.setattr("time.time", lambda: NOW + 120)
    assert command.main(["export", "e", "--folder", str(tmp_path)]) == 0
    assert f"{tmp_path}/e/{EXPOSURES}: {USERS} rows" in capsys.readouterr().out
    assert command.main(["export", "other", "--folder", str(tmp_path)]) == 1
    assert "does not exist" in capsys.readouterr().err
