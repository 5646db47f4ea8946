"""Forgotten: no byte of a user or a project is left, whatever the moment, and it is known which versions learnt from it."""

import io
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from infra.events import tombstones
from infra.records import Amendment, CycleOutcome, ExperimentRecord, Manifest, Sample
from infra.settings import Settings
from infra.settings.schema import Collect, Experiment, Retention
from infra.store import Corrupt
from tasks.experiments.totals import gather
from tasks.labels.collect import Collected, collect
from tasks.steps.sealing import finish, manifest_fields, seal
from tasks.trainer.run import train
from tasks.upkeep import retention
from tasks.upkeep.compaction import compact
from tasks.upkeep.forget import Forgetting, NobodyNamed, forget, request, sweep
from tasks.upkeep.retention import TooShort, retain
from tasks.validation.quarantine import ValidationEvidence
from tests.tasks import rows
from tests.tasks.made import NOW, Killed, MemoryRegistry, MemoryStore, completion, feedback

ADA, BOB = "a" * 32, "b" * 32
LIMITS = Settings(
    collect=Collect(settle_seconds=10, join_seconds=60, max_user_share=1, max_user_weight=1),
    experiment=Experiment(min_history_requests=0),
)
DAY = 86_400.0
ASKED = request(ADA, "", NOW + 200, "operator", "she asked")


def put(store: MemoryStore, name: str, time: float) -> None:
    """A segment in which Ada is in projects p and q, Bob in p, all judged."""
    people = [(ADA, "p"), (ADA, "q"), (BOB, "p")]
    made = [completion(f"{name}{i}", user=u, project=p, prefix=f"{name}{i} = ", time=time) for i, (u, p) in enumerate(people)]
    told = [feedback(f"{name}{i}", user=u, project=p, prefix=f"{name}{i} = ", time=time + 1) for i, (u, p) in enumerate(people)]
    store.put_rows(f"events/completions/date=2027-01-15/hour=08/{name}.parquet", made)
    store.put_rows(f"events/feedback/date=2027-01-15/hour=08/{name}.parquet", told)


def run_cycle(store: MemoryStore, registry: MemoryRegistry, name: str, now: float, *, ended: bool = True) -> Manifest:
    found = collect(store, registry.client, LIMITS, now)
    manifest = seal(store, name, manifest_fields(found, ValidationEvidence(), now), rows.batch(store, found), LIMITS)
    if ended:
        finish(store, CycleOutcome(cycle=name, result="registered", reason=""))
    return manifest


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def registry(store: MemoryStore) -> MemoryRegistry:
    """A base, a version of the first cycle, which is the champion, and one trained from that."""
    first, second = {"parent": "1", "cycle": "cycle-000001"}, {"parent": "2", "cycle": "cycle-000002"}
    made = MemoryRegistry(v1={}, v2=first, v3=second, v4={"parent": "1"})
    made.aliases["champion"] = "1"
    put(store, "x", NOW)
    run_cycle(store, made, "cycle-000001", NOW + 100)
    made.aliases["champion"] = "2"
    return made


def holding(store: MemoryStore, column: str, name: str) -> list[str]:
    """Objects with rows of a user or a project; every Parquet object is looked into."""
    tables = {key: pq.read_table(io.BytesIO(body)) for key, body in store.objects.items() if key.endswith(".parquet")}
    return [key for key, table in tables.items() if name in table[column].to_pylist()]


def test_nothing_is_left_and_the_versions_are_named(store: MemoryStore, registry: MemoryRegistry) -> None:
    objects = dict(store.objects)
    would = forget(store, registry.client, ASKED, NOW + 200)
    assert store.objects == objects, "a dry run is what is done where nothing is said"

    done = forget(store, registry.client, ASKED, NOW + 200, dry_run=False)
    assert (done.rows, done.versions, done.cycles, done.pending) == (would.rows, would.versions, ("cycle-000001",), ())
    assert sorted(done.rows.values()) == [2, 2, 2]
    assert [(v.version, v.directly, v.serves) for v in done.versions] == [("2", True, "champion"), ("3", False, "")]
    assert holding(store, "user", ADA) == []
    assert len(holding(store, "user", BOB)) == 3
    assert not any(ADA.encode() in body for key, body in store.objects.items() if not key.startswith("forgotten/"))
    (amendment,) = (key for key in store.objects if "/amendments/" in key)
    assert sum(Amendment.model_validate(store.get_json(amendment)).rows.values()) == 2

    after = dict(store.objects)
    again = forget(store, registry.client, ASKED, NOW + 300, dry_run=False)
    assert store.objects == after
    assert (again.rows, again.versions) == ({}, done.versions), "the list stays the same"


def test_a_project(store: MemoryStore, registry: MemoryRegistry) -> None:
    done = forget(store, registry.client, request("", "q", NOW, "operator", ""), NOW, dry_run=False)
    assert set(done.rows.values()) == {1}
    assert holding(store, "project", "q") == []
    assert len(holding(store, "user", ADA)) == 3


def test_later_cycles_never_see_what_is_shipped_later(store: MemoryStore, registry: MemoryRegistry) -> None:
    forget(store, registry.client, ASKED, NOW + 200, dry_run=False)
    put(store, "late", NOW + 120)
    found = collect(store, registry.client, LIMITS, NOW + 300)
    assert set(found.accounting.samples["id"]) == {"late2"}
    assert found.accounting.requests == 1
    swept = retain(store, registry.client, LIMITS, NOW + 300, dry_run=False)
    assert sum(swept.forgotten.rows.values()) == 4
    assert holding(store, "user", ADA) == []


def test_compacted_objects_too(store: MemoryStore, registry: MemoryRegistry) -> None:
    put(store, "y", NOW + 110)
    limits = Retention(compact_least=2, compact_after_seconds=3600)
    compact(store, limits, NOW + 9000, dry_run=False)
    forget(store, registry.client, ASKED, NOW + 9000, dry_run=False)
    assert holding(store, "user", ADA) == []
    compact(store, limits, NOW + 9000, dry_run=False)
    found = collect(store, registry.client, LIMITS, NOW + 9000)
    assert set(found.accounting.samples["id"]) == {"y2"}, "what the first cycle has read is still known"


def test_a_cycle_under_way_keeps_its_inputs_and_is_cleaned_after_its_end(store: MemoryStore, registry: MemoryRegistry) -> None:
    put(store, "y", NOW + 120)
    manifest = run_cycle(store, registry, "cycle-000002", NOW + 180, ended=False)
    body = store.get(manifest.samples.key)
    done = forget(store, registry.client, ASKED, NOW + 200, dry_run=False)
    assert done.pending == ("cycle-000002",)
    assert store.get(manifest.samples.key) == body
    assert holding(store, "user", ADA) == [manifest.samples.key]
    assert [(v.version, v.directly) for v in done.versions] == [("2", True), ("3", True)]

    finish(store, CycleOutcome(cycle="cycle-000002", result="registered", reason=""))
    swept = retain(store, registry.client, LIMITS, NOW + 300, dry_run=False).forgotten
    assert (swept.pending, swept.versions) == ((), done.versions)
    assert holding(store, "user", ADA) == []


def test_who_is_forgotten_between_collecting_and_sealing_is_not_sealed(store: MemoryStore, registry: MemoryRegistry) -> None:
    put(store, "y", NOW + 120)
    found: Collected = collect(store, registry.client, LIMITS, NOW + 180)
    forget(store, registry.client, ASKED, NOW + 200, dry_run=False)
    with pytest.raises(tombstones.ErasedDuringCycle, match="2 requests of this cycle"):
        tombstones.check(store, found.accounting.classified.select("user", "project").iter_rows())
    again = collect(store, registry.client, LIMITS, NOW + 180)
    tombstones.check(store, again.accounting.classified.select("user", "project").iter_rows())


@pytest.mark.parametrize("writes", range(8))
def test_killed_before_any_write_and_run_again_it_ends_the_same(
    store: MemoryStore, registry: MemoryRegistry, writes: int
) -> None:
    whole = MemoryStore()
    whole.objects = dict(store.objects)
    expected: Forgetting = forget(whole, registry.client, ASKED, NOW + 200, dry_run=False)

    class Dying(MemoryStore):
        left = writes

        def put(self, key: str, body: bytes) -> str:
            if not self.left:
                raise Killed
            self.left -= 1
            return super().put(key, body)

    dying = Dying()
    dying.objects = store.objects
    try:
        forget(dying, registry.client, ASKED, NOW + 200, dry_run=False)
    except Killed:
        forget(store, registry.client, ASKED, NOW + 200, dry_run=False)
    assert holding(store, "user", ADA) == []
    again = sweep(store, registry.client, [ASKED], NOW + 200)
    assert (again.versions, again.cycles) == (expected.versions, expected.cycles)


def test_samples_with_rows_taken_out_are_not_taken_for_those_of_the_manifest(
    store: MemoryStore, registry: MemoryRegistry, tmp_path: Path
) -> None:
    manifest = Manifest.model_validate(store.get_json("cycles/cycle-000001/manifest.json"))
    forget(store, registry.client, ASKED, NOW + 200, dry_run=False)
    assert [s.user for s in store.get_rows(manifest.samples.key, Sample)] == [BOB]
    with pytest.raises(Corrupt):
        train(store, manifest, tmp_path, Settings().train, tmp_path)


@pytest.mark.parametrize(
    ("user", "project", "said"), [("", "", "exactly one"), (ADA, "p", "exactly one"), ("ada", "", "python -m infra.identity")]
)
def test_who_is_not_named_as_events_name_them_is_an_error(user: str, project: str, said: str) -> None:
    with pytest.raises(NobodyNamed, match=said):
        request(user, project, NOW, "", "")


def test_what_is_too_old_goes_and_what_a_cycle_may_read_stays(store: MemoryStore, registry: MemoryRegistry) -> None:
    put(store, "y", NOW + 120)
    run_cycle(store, registry, "cycle-000002", NOW + 180, ended=False)
    later = NOW + 100 * DAY
    store.put_rows("events/completions/date=2027-04-24/hour=08/new.parquet", [completion("new", time=later)])
    limits = LIMITS.model_copy(update={"retention": Retention(events_days=30, cycles_days=60)})
    would = retain(store, registry.client, limits, later)
    assert holding(store, "user", ADA), "a dry run is what is done where nothing is said"
    done = retain(store, registry.client, limits, later, dry_run=False)
    assert (done.events, done.cycles) == (would.events, would.cycles)
    assert list(store.keys("events/")) == ["events/completions/date=2027-04-24/hour=08/new.parquet"]
    left = {key.split("/", 1)[1] for key in store.keys("cycles/")}
    assert "cycle-000001/manifest.json" in left
    assert not [key for key in left if key.startswith("cycle-000001/samples-")]
    assert [key for key in left if key.startswith("cycle-000002/samples-")], "it is under way"
    assert retain(store, registry.client, limits, later, dry_run=False).events == ()
    found = collect(store, registry.client, LIMITS, later + 60)
    assert found.accounting.requests == 1


def test_a_retention_shorter_than_the_window_is_refused() -> None:
    limits = LIMITS.model_copy(update={"retention": Retention(events_days=7)})
    with pytest.raises(TooShort, match=r"retention.events_days = 7, expected at least 9: .*TABLOOP_RETENTION__EVENTS_DAYS"):
        retention.check(limits)


def test_tests_do_not_count_them_either(store: MemoryStore, registry: MemoryRegistry) -> None:
    running = ExperimentRecord(id="e", champion="1", challenger="2", share=0.5, started=NOW + 300)
    before = gather(store, running, LIMITS.collect, LIMITS.experiment, NOW + 400).before
    assert before.keys() == {ADA, BOB}
    tombstones.write(store, ASKED)
    assert gather(store, running, LIMITS.collect, LIMITS.experiment, NOW + 400).before.keys() == {BOB}
