"""Erasure removes every byte of a user or a project, also after a kill, and names the versions trained on their data."""

import io
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from infra.cli import errors
from infra.records import Amendment, CycleOutcome, ExperimentRecord, Manifest, Sample
from infra.settings import Settings
from infra.settings.schema import Collect, Experiment, Retention
from infra.storage.events import segments, tombstones
from infra.storage.events.read import Gone
from infra.storage.store import Corrupt
from tasks.experiments.counting.totals import gather
from tasks.experiments.planning.plan import make_plan
from tasks.labels.collect import Collected, collect
from tasks.labels.counted import read_requests
from tasks.steps.transaction import finish, manifest_fields, seal
from tasks.trainer.run import TrainerOutput, train
from tasks.upkeep import retention
from tasks.upkeep.compaction import Limits, compact
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
ERASURE = request(ADA, "", NOW + 200, "operator", "she asked")


def put(store: MemoryStore, name: str, time: float) -> None:
    """Write segments of completions and feedback of Ada, in projects p and q, and Bob, in p."""
    people = [(ADA, "p"), (ADA, "q"), (BOB, "p")]
    completions = [
        completion(f"{name}{i}", user=u, project=p, prefix=f"{name}{i} = ", time=time) for i, (u, p) in enumerate(people)
    ]
    events = [feedback(f"{name}{i}", user=u, project=p, prefix=f"{name}{i} = ", time=time + 1) for i, (u, p) in enumerate(people)]
    store.put_rows(f"events/completions/date=2027-01-15/hour=08/{name}.parquet", completions)
    store.put_rows(f"events/feedback/date=2027-01-15/hour=08/{name}.parquet", events)


def run_cycle(store: MemoryStore, registry: MemoryRegistry, name: str, now: float, *, ended: bool = True) -> Manifest:
    """Collect, seal and, if `ended`, finish a cycle."""
    collected = collect(store, registry.client, LIMITS, now)
    manifest = seal(store, name, manifest_fields(collected, ValidationEvidence(), now), rows.batch(store, collected), LIMITS)
    if ended:
        finish(store, CycleOutcome(cycle=name, result="registered", reason=""))
    return manifest


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def registry(store: MemoryStore) -> MemoryRegistry:
    """Return a registry with the base 1, the champion 2 of the first cycle, its child 3, and 4, a child of the base."""
    first, second = {"parent": "1", "cycle": "cycle-000001"}, {"parent": "2", "cycle": "cycle-000002"}
    prepared = MemoryRegistry(v1={}, v2=first, v3=second, v4={"parent": "1"})
    prepared.aliases["champion"] = "1"
    put(store, "x", NOW)
    run_cycle(store, prepared, "cycle-000001", NOW + 100)
    prepared.aliases["champion"] = "2"
    return prepared


def holding(store: MemoryStore, column: str, name: str) -> list[str]:
    """Return the Parquet objects that have rows of a user or a project."""
    tables = {key: pq.read_table(io.BytesIO(body)) for key, body in store.objects.items() if key.endswith(".parquet")}
    return [key for key, table in tables.items() if name in table[column].to_pylist()]


def test_erasure_removes_all_rows_of_a_user_and_names_the_affected_versions(store: MemoryStore, registry: MemoryRegistry) -> None:
    objects = dict(store.objects)
    planned = forget(store, registry.client, ERASURE, NOW + 200)
    assert store.objects == objects, "the default is a dry run"

    forgetting = forget(store, registry.client, ERASURE, NOW + 200, dry_run=False)
    assert (forgetting.rows, forgetting.versions) == (planned.rows, planned.versions)
    assert (forgetting.cycles, forgetting.pending) == (("cycle-000001",), ())
    assert sorted(forgetting.rows.values()) == [2, 2, 2]
    assert [(v.version, v.directly, v.serves) for v in forgetting.versions] == [("2", True, "champion"), ("3", False, "")]
    assert holding(store, "user", ADA) == []
    assert len(holding(store, "user", BOB)) == 3
    assert not any(ADA.encode() in body for key, body in store.objects.items() if not key.startswith("forgotten/"))
    (amendment,) = (key for key in store.objects if "/amendments/" in key)
    assert sum(Amendment.model_validate(store.get_json(amendment)).rows.values()) == 2

    objects_after = dict(store.objects)
    repeated = forget(store, registry.client, ERASURE, NOW + 300, dry_run=False)
    assert store.objects == objects_after
    assert (repeated.rows, repeated.versions) == ({}, forgetting.versions), "a repeated request names the same versions"


def test_erasure_removes_all_rows_of_a_project(store: MemoryStore, registry: MemoryRegistry) -> None:
    forgetting = forget(store, registry.client, request("", "q", NOW, "operator", ""), NOW, dry_run=False)
    assert set(forgetting.rows.values()) == {1}
    assert holding(store, "project", "q") == []
    assert len(holding(store, "user", ADA)) == 3


def test_events_shipped_after_the_erasure_are_in_no_cycle(store: MemoryStore, registry: MemoryRegistry) -> None:
    forget(store, registry.client, ERASURE, NOW + 200, dry_run=False)
    put(store, "late", NOW + 120)
    collected = collect(store, registry.client, LIMITS, NOW + 300)
    assert set(collected.accounting.samples["id"]) == {"late2"}
    assert collected.accounting.requests == 1
    swept = retain(store, registry.client, LIMITS, NOW + 300, dry_run=False)
    assert sum(swept.forgotten.rows.values()) == 4
    assert holding(store, "user", ADA) == []


def test_erasure_reaches_compacted_objects(store: MemoryStore, registry: MemoryRegistry) -> None:
    put(store, "y", NOW + 110)
    limits = Limits(least=2, after_seconds=3600)
    compact(store, NOW + 9000, limits, dry_run=False)
    forget(store, registry.client, ERASURE, NOW + 9000, dry_run=False)
    assert holding(store, "user", ADA) == []
    compact(store, NOW + 9000, limits, dry_run=False)
    collected = collect(store, registry.client, LIMITS, NOW + 9000)
    assert set(collected.accounting.samples["id"]) == {"y2"}, "the segments that the first cycle read stay known"


def test_an_erasure_during_a_compaction_leaves_no_row(registry: MemoryRegistry) -> None:
    class ErasingStore(MemoryStore):
        begun = False

        def put(self, key: str, body: bytes) -> str:
            if segments.is_container(key) and not self.begun:
                self.begun = True
                forget(self, registry.client, ERASURE, NOW + 9000, dry_run=False)
            return super().put(key, body)

    store = ErasingStore()
    for name in ("x", "y"):
        put(store, name, NOW + 110)
    compact(store, NOW + 9000, Limits(least=2, after_seconds=3600), dry_run=False)
    assert store.begun and holding(store, "user", ADA) == []
    assert len(holding(store, "user", BOB)) > 0


def test_a_command_names_what_an_erasure_removes_after_it_was_listed() -> None:
    class ErasedMeanwhile(MemoryStore):
        def keys(self, prefix: str) -> Iterator[str]:
            found = list(super().keys(prefix))
            if prefix.startswith("events/feedback/date="):  # the completions were listed before
                forget(self, MemoryRegistry(v1={}).client, ERASURE, NOW, dry_run=False)
            return iter(found)

    store = ErasedMeanwhile()
    rows.put(store, [completion("a", user=ADA)], [])
    with pytest.raises(Gone) as raised:
        read_requests(store, NOW - 60, NOW + 60, 60)
    assert errors.code_of(raised.value) == errors.NOT_READY
    assert "a.parquet is gone since it was listed: a user or project was erased" in errors.message_of(raised.value)
    assert read_requests(store, NOW - 60, NOW + 60, 60).requests.is_empty()


@pytest.mark.parametrize("begins_with", ["events/completions/", "events/feedback/", "cycles/"])
def test_two_erasures_at_once_leave_no_row_of_either(store: MemoryStore, registry: MemoryRegistry, begins_with: str) -> None:
    class ErasingStore(MemoryStore):
        begun = False

        def put(self, key: str, body: bytes) -> str:
            if key.startswith(begins_with) and key.endswith(".parquet") and not self.begun:
                self.begun = True  # the object was read for the first erasure, and is not yet written
                forget(self, registry.client, request(BOB, "", NOW + 200, "operator", ""), NOW + 200, dry_run=False)
            return super().put(key, body)

    erasing = ErasingStore()
    erasing.objects = store.objects
    forget(erasing, registry.client, request("", "q", NOW + 200, "operator", ""), NOW + 200, dry_run=False)
    assert erasing.begun and holding(erasing, "user", BOB) == holding(erasing, "project", "q") == []
    assert len(holding(erasing, "user", ADA)) == 3


def test_an_object_that_is_removed_after_the_listing_stops_no_erasure(store: MemoryStore, registry: MemoryRegistry) -> None:
    class ListedBefore(MemoryStore):
        def keys(self, prefix: str) -> Iterator[str]:
            gone = ("events/feedback/date=2027-01-15/hour=08/gone.parquet", "cycles/cycle-000001/users-gone.parquet")
            yield from sorted([*super().keys(prefix), *(key for key in gone if key.startswith(prefix))])

    listed = ListedBefore()
    listed.objects = store.objects
    assert len(forget(listed, registry.client, ERASURE, NOW + 200, dry_run=False).rows) == 3
    assert holding(store, "user", ADA) == []


def test_samples_of_a_cycle_that_was_killed_before_its_manifest_wait_a_day(store: MemoryStore, registry: MemoryRegistry) -> None:
    put(store, "y", NOW + 120)
    manifest = run_cycle(store, registry, "cycle-000002", NOW + 180, ended=False)
    store.delete("cycles/cycle-000002/manifest.json")
    assert forget(store, registry.client, ERASURE, NOW + 200, dry_run=False).pending == ("cycle-000002",)
    assert holding(store, "user", ADA) == [manifest.samples.key], "a flow may seal it at this moment"
    store.times[manifest.samples.key] = NOW + 180
    store.now = NOW + 2 * DAY
    assert forget(store, registry.client, ERASURE, NOW + 2 * DAY, dry_run=False).pending == ()
    assert holding(store, "user", ADA) == []


def test_retention_removes_the_samples_of_a_cycle_that_was_killed_before_its_manifest(
    store: MemoryStore, registry: MemoryRegistry
) -> None:
    put(store, "y", NOW + 120)
    samples = run_cycle(store, registry, "cycle-000002", NOW + 180, ended=False).samples.key
    store.delete("cycles/cycle-000002/manifest.json")
    store.times[samples] = NOW + 180
    days = LIMITS.retention.cycles_days
    retain(store, registry.client, LIMITS, NOW + (days - 1) * DAY, dry_run=False)
    assert store.exists(samples)
    retain(store, registry.client, LIMITS, NOW + (days + 1) * DAY, dry_run=False)
    assert not store.exists(samples)


def test_a_cycle_goes_on_from_an_old_champion_after_retention(store: MemoryStore, registry: MemoryRegistry) -> None:
    put(store, "y", NOW + 120)
    refused = run_cycle(store, registry, "cycle-000002", NOW + 180, ended=False)
    finish(store, CycleOutcome(cycle="cycle-000002", result="refused", reason=""))
    store.delete(refused.samples.key)
    assert collect(store, registry.client, LIMITS, NOW + 40 * DAY).parent == "2", "what read nothing of the window is not read"


def test_a_running_cycle_keeps_its_inputs_and_is_erased_after_its_end(store: MemoryStore, registry: MemoryRegistry) -> None:
    put(store, "y", NOW + 120)
    manifest = run_cycle(store, registry, "cycle-000002", NOW + 180, ended=False)
    body = store.get(manifest.samples.key)
    forgetting = forget(store, registry.client, ERASURE, NOW + 200, dry_run=False)
    assert forgetting.pending == ("cycle-000002",)
    assert store.get(manifest.samples.key) == body
    assert holding(store, "user", ADA) == [manifest.samples.key]
    assert [(v.version, v.directly) for v in forgetting.versions] == [("2", True), ("3", True)]

    finish(store, CycleOutcome(cycle="cycle-000002", result="registered", reason=""))
    swept = retain(store, registry.client, LIMITS, NOW + 300, dry_run=False).forgotten
    assert (swept.pending, swept.versions) == ((), forgetting.versions)
    assert holding(store, "user", ADA) == []


def test_a_user_erased_between_collecting_and_sealing_is_an_error(store: MemoryStore, registry: MemoryRegistry) -> None:
    put(store, "y", NOW + 120)
    collected: Collected = collect(store, registry.client, LIMITS, NOW + 180)
    forget(store, registry.client, ERASURE, NOW + 200, dry_run=False)
    with pytest.raises(tombstones.ErasedDuringCycle, match="2 requests of this cycle"):
        tombstones.check(store, collected.accounting.classified.select("user", "project").iter_rows())
    collected_again = collect(store, registry.client, LIMITS, NOW + 180)
    tombstones.check(store, collected_again.accounting.classified.select("user", "project").iter_rows())


@pytest.mark.parametrize("writes", range(8))
def test_an_erasure_killed_at_any_write_completes_when_run_again(
    store: MemoryStore, registry: MemoryRegistry, writes: int
) -> None:
    other = MemoryStore()
    other.objects = dict(store.objects)
    expected: Forgetting = forget(other, registry.client, ERASURE, NOW + 200, dry_run=False)

    class DyingStore(MemoryStore):
        left = writes

        def put(self, key: str, body: bytes) -> str:
            if not self.left:
                raise Killed
            self.left -= 1
            return super().put(key, body)

    dying = DyingStore()
    dying.objects = store.objects
    try:
        forget(dying, registry.client, ERASURE, NOW + 200, dry_run=False)
    except Killed:
        forget(store, registry.client, ERASURE, NOW + 200, dry_run=False)
    assert holding(store, "user", ADA) == []
    swept = sweep(store, registry.client, [ERASURE], NOW + 200)
    assert (swept.versions, swept.cycles) == (expected.versions, expected.cycles)


def test_training_refuses_samples_with_erased_rows(store: MemoryStore, registry: MemoryRegistry, tmp_path: Path) -> None:
    manifest = Manifest.model_validate(store.get_json("cycles/cycle-000001/manifest.json"))
    forget(store, registry.client, ERASURE, NOW + 200, dry_run=False)
    assert [s.user for s in store.get_rows(manifest.samples.key, Sample)] == [BOB]
    with pytest.raises(Corrupt):
        train(store, manifest, tmp_path, Settings().train, TrainerOutput(tmp_path))


@pytest.mark.parametrize(
    ("user", "project", "message"), [("", "", "exactly one"), (ADA, "p", "exactly one"), ("ada", "", "tabloop hash")]
)
def test_a_request_must_name_one_user_or_project_as_events_do(user: str, project: str, message: str) -> None:
    with pytest.raises(NobodyNamed, match=message):
        request(user, project, NOW, "", "")


def test_retention_removes_old_objects_and_keeps_inputs_of_running_cycles(store: MemoryStore, registry: MemoryRegistry) -> None:
    put(store, "y", NOW + 120)
    run_cycle(store, registry, "cycle-000002", NOW + 180, ended=False)
    later = NOW + 100 * DAY
    store.put_rows("events/completions/date=2027-04-24/hour=08/new.parquet", [completion("new", time=later)])
    limits = LIMITS.model_copy(update={"retention": Retention(events_days=40, cycles_days=60)})
    planned = retain(store, registry.client, limits, later)
    assert holding(store, "user", ADA), "the default is a dry run"
    retained = retain(store, registry.client, limits, later, dry_run=False)
    assert (retained.events, retained.cycles) == (planned.events, planned.cycles)
    assert list(store.keys("events/")) == ["events/completions/date=2027-04-24/hour=08/new.parquet"]
    cycle_keys = {key.split("/", 1)[1] for key in store.keys("cycles/")}
    assert "cycle-000001/manifest.json" in cycle_keys
    assert not [key for key in cycle_keys if key.startswith("cycle-000001/samples-")]
    assert [key for key in cycle_keys if key.startswith("cycle-000002/samples-")], "the cycle is still running"
    assert retain(store, registry.client, limits, later, dry_run=False).events == ()
    collected = collect(store, registry.client, LIMITS, later + 60)
    assert collected.accounting.requests == 1


def test_retention_leaves_objects_of_other_programs(store: MemoryStore) -> None:
    odd = ("events/README", "events/completions/date=2027-13-45/hour=08/x.parquet", "events/completions/x.parquet")
    for key in odd:
        store.objects[key] = b""
    assert set(retention.old_events(store, NOW + 1e9)) == set(store.keys("events/")) - set(odd)


def test_retention_removes_what_evaluations_keep_by_its_last_write(store: MemoryStore, registry: MemoryRegistry) -> None:
    for name in ("evaluations/a.parquet", "judgements/j/b.json"):
        store.put(name, b"")
    store.now += 50 * DAY
    store.put("evaluations/new.parquet", b"")
    retained = retain(store, registry.client, LIMITS, NOW + 91 * DAY, dry_run=False)
    assert retained.evaluations == ("evaluations/a.parquet", "judgements/j/b.json")
    assert "2 of evaluations" in retained.summary()
    assert list(store.keys("evaluations/")) == ["evaluations/new.parquet"] and not list(store.keys("judgements/"))


@pytest.mark.parametrize(
    ("experiment", "anchored", "least", "reason"),
    [
        ({"max_seconds": 3600.0}, False, 9, "cycles look back 7 days, and readers two days further"),
        (
            {"max_seconds": 10 * DAY, "watch_seconds": 3 * DAY},
            False,
            16,
            "a test may last 10 days, its watch 3 days, its history a",
        ),
        (
            {},
            False,
            32,
            r"a test may last 28 days \(experiment.max_seconds = 0\), its watch 60 min, its history a day, and readers",
        ),
        (
            {"mode": "non_inferiority", "max_seconds": DAY, "anchor_share": 0.2},
            False,
            31,
            "a comparison with the anchor lasts 28 days",
        ),
        ({"mode": "non_inferiority", "max_seconds": DAY, "anchor_share": 0.0}, True, 9, "cycles look back"),
        ({"max_seconds": DAY, "anchor_share": 0.2}, True, 31, "a comparison with the anchor lasts 28 days"),
        ({"max_seconds": DAY, "anchor_share": 0.0}, True, 9, "cycles look back"),
    ],
)
@pytest.mark.parametrize("name", ["events_days", "cycles_days"])
def test_a_retention_shorter_than_what_cycles_and_tests_read_is_refused(
    registry: MemoryRegistry, name: str, experiment: dict[str, float], anchored: bool, least: int, reason: str
) -> None:
    if anchored:
        registry.client.set_anchor(ExperimentRecord(id="a", champion="1", challenger="2", share=0.1, started=NOW))
    limits = LIMITS.model_copy(update={"experiment": Experiment.model_validate(experiment)})
    enough, short = (limits.model_copy(update={"retention": Retention(**{name: days})}) for days in (least, least - 1))
    retain(MemoryStore(), registry.client, enough, NOW)
    expected = (
        f"retention.{name} = {least - 1}, expected at least {least}: {reason}.*TABLOOP_RETENTION__{name.upper()} to {least}"
    )
    with pytest.raises(TooShort, match=expected):
        retain(MemoryStore(), registry.client, short, NOW)


def test_a_refused_retention_still_erases(store: MemoryStore, registry: MemoryRegistry) -> None:
    tombstones.write(store, ERASURE)
    put(store, "late", NOW + 300)
    store.put_rows("events/completions/date=2027-01-15/hour=08/out.parquet", [completion("out", user=BOB, opted_out=True)])
    text = "events/feedback/date=2027-01-15/hour=08/text.parquet"
    store.put_rows(text, [feedback("text", user=BOB, completion_id="out", prefix="x = ")])
    kept = set(store.keys("events/completions/"))
    limits = LIMITS.model_copy(update={"retention": Retention(events_days=1)})
    with pytest.raises(TooShort, match="No old data was removed; erasure goes on"):
        retain(store, registry.client, limits, NOW + 100 * DAY, dry_run=False)
    assert holding(store, "user", ADA) == [] and not store.exists(text)
    assert set(store.keys("events/completions/")) == kept and holding(store, "user", BOB)


def test_experiments_do_not_count_erased_users(store: MemoryStore, registry: MemoryRegistry) -> None:
    running = ExperimentRecord(id="e", champion="1", challenger="2", share=0.5, started=NOW + 300)
    plan = make_plan(LIMITS.experiment, LIMITS.collect)
    assert sum(gather(store, running, plan, NOW + 400).absent.values()) == 2, "ada and bob have a history and no request yet"
    tombstones.write(store, ERASURE)
    assert sum(gather(store, running, plan, NOW + 400).absent.values()) == 1
