"""Retention removes expired weights, also after a kill at any moment, and keeps versions that may serve or be trained."""

from collections.abc import Mapping

import pytest
from hypothesis import example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from infra.records import CycleOutcome, Decision, ExperimentRecord, Manifest, ObjectReference, Verdict
from infra.registry.client import ANCHOR_TAG, EXPERIMENT_TAG, PREVIOUS_TAG, REMOVED_TAG, VERDICT_TAG
from infra.registry.lineage import BASE_TAG, lineage
from infra.settings import Settings
from infra.settings.schema import ProjectTerms, Retention, Serving, Terms, UserTerms
from infra.storage.cycles import experiment_id, name
from infra.storage.store import CHECKSUMS, Incomplete
from tasks.experiments.moves import manual
from tasks.labels.collect import NoChampion
from tasks.labels.parent import choose_parent
from tasks.steps.transaction import finish
from tasks.upkeep import checkpoint_gc
from tasks.upkeep.retention import DAY, retain
from tests.tasks.made import NOW, Killed, MemoryRegistry, MemoryStore, asked

FOLDERS = ("checkpoints", "optimizers")
LIMITS = Retention(checkpoints_days=30, champions_kept=0)
PROMISING = Verdict(verdict="reject", reason="no win", promising=True)
YES, NO = Verdict(verdict="promote", reason="better"), Verdict(verdict="reject", reason="worse")


class World:
    """A bucket and a registry. The base is version 1 and the champion; version N is the candidate of cycle N."""

    def __init__(self) -> None:
        self.store, self.registry = MemoryStore(), MemoryRegistry(v1={"parent": ""})
        self.registry.aliases["champion"] = "1"
        self.upload("base", folders=FOLDERS[:1])

    def upload(self, folder: str, *, whole: bool = True, folders: tuple[str, ...] = FOLDERS) -> None:
        for root in folders:
            self.store.put(f"{root}/{folder}/a.bin", b"a")
            self.store.put(f"{root}/{folder}/sub/b.bin", b"b")
            if whole:
                self.store.put_json(f"{root}/{folder}/{CHECKSUMS}", {"a.bin": "0", "sub/b.bin": "0"})

    def cycle(
        self,
        number: int,
        days: float,
        parent: str = "1",
        champion: str = "1",
        *,
        result: str = "registered",
        version: str = "",
        whole: bool = True,
    ) -> None:
        """Add a cycle that was sealed `days` ago, with its uploads. Without a result it is still running."""
        samples = ObjectReference(key="samples", sha256="0" * 64, rows=1)
        record = Manifest(
            cycle=name(number), created=NOW - days * DAY, champion=champion, parent=parent, since=0, until=0, completions=(),
            feedback=(), buckets={}, requests=0, samples=samples, settings_sha256="",
        )  # fmt: skip
        self.store.put_json(f"cycles/{name(number)}/manifest.json", record)
        self.upload(name(number), whole=whole)
        if result == "registered" or version:
            self.registry.versions[str(number)] = {"parent": parent, "cycle": name(number)}
        if result:
            finish(
                self.store,
                CycleOutcome.model_validate({"cycle": name(number), "result": result, "reason": "", "version": version}),
            )

    def decide(self, version: str, champion: str, verdict: Verdict, days: float, experiment: str = "") -> None:
        """Record the decision of an experiment that ended `days` ago. No alias changes."""
        experiment = experiment or experiment_id(name(int(version)), version)
        record = ExperimentRecord(id=experiment, champion=champion, challenger=version, share=0.5, started=0)
        self.store.put_json(
            f"decisions/{experiment}.json", Decision(experiment=record, verdict=verdict, decided=NOW - days * DAY, by="gate")
        )
        self.registry.versions[version][VERDICT_TAG] = f"{verdict.verdict}, by gate"

    def retain(self, limits: Retention = LIMITS, serving: Serving | None = None, *, dry_run: bool = False):
        settings = Settings(retention=limits, serving=serving or Serving())
        return retain(self.store, self.registry.client, settings, NOW, dry_run=dry_run).uploads

    def left(self, folder: str = "checkpoints") -> set[str]:
        """Return the names of the uploads that have a checksum file."""
        folders = {key.split("/")[1] for key in self.store.keys(f"{folder}/")}
        return {name for name in folders if self.store.exists(f"{folder}/{name}/{CHECKSUMS}")}

    def tagged(self) -> set[str]:
        return {version for version, tags in self.registry.versions.items() if tags.get(REMOVED_TAG)}


@pytest.fixture
def world() -> World:
    return World()


def names(*numbers: int) -> set[str]:
    return {"base", *map(name, numbers)}


def test_an_old_rejected_candidate_loses_its_weights_and_keeps_its_version(world: World) -> None:
    world.cycle(2, days=31)
    world.cycle(3, days=29)
    world.cycle(4, days=2)
    before, tags = dict(world.store.objects), dict(world.registry.versions["2"])
    planned = world.retain(dry_run=True)
    assert (world.store.objects, world.tagged()) == (before, set()), "a dry run changes nothing"
    assert planned == world.retain()
    assert [(upload.cycle, upload.versions, upload.folders) for upload in planned] == [
        ("cycle-000002", ("2",), FOLDERS),
        ("cycle-000003", ("3",), ("optimizers",)),
    ]
    assert (world.left(), world.left("optimizers")) == (names(3, 4), {name(4)})
    assert not [key for key in world.store.objects if name(2) in key and not key.startswith("cycles/")]
    assert world.registry.versions["2"] == {**tags, REMOVED_TAG: "2027-01-15T08:00:00+00:00"}
    assert world.tagged() == {"2"}
    with pytest.raises(manual.CheckpointRemoved):
        manual.rollback(world.store, world.registry.client, asked("roll_back", "2", "ada", "", NOW))
    with pytest.raises(Incomplete, match="retention"):
        world.store.directory_sha256("checkpoints/cycle-000002")


def test_versions_with_an_alias_or_in_an_experiment_and_the_previous_champion_stay(world: World) -> None:
    for number in range(2, 9):
        world.cycle(number, days=300)
    running = ExperimentRecord(id="e", champion="5", challenger="6", share=0.5, started=NOW)
    anchor = ExperimentRecord(id="a", champion="8", challenger="2", share=0.5, started=NOW)
    world.registry.aliases = {"champion": "2", "challenger": "3", "of-a-person": "4"}
    world.registry.tags = {
        **{EXPERIMENT_TAG: running.model_dump_json(), ANCHOR_TAG: anchor.model_dump_json()},
        PREVIOUS_TAG: "7",
    }
    world.cycle(9, days=300)
    world.retain()
    assert world.left() == names(2, 3, 4, 5, 6, 7, 8)
    assert world.left("optimizers") == names(2, 3, 4, 5, 6, 7, 8) - {"base"}


def test_a_running_cycle_keeps_its_parent_and_champion_at_any_age(world: World) -> None:
    for number in (2, 3, 4):
        world.cycle(number, days=300)
    world.cycle(5, days=200, parent="2", champion="3", result="", whole=False)
    objects = {key for key in world.store.objects if name(5) in key}
    world.retain()
    assert world.left() == names(2, 3)
    assert objects <= world.store.objects.keys()


def test_uploads_of_cycles_without_a_version_expire(world: World) -> None:
    world.cycle(2, days=31, result="refused")
    world.cycle(3, days=31, result="abandoned", whole=False)
    world.cycle(4, days=1, result="abandoned")
    world.upload("of-a-person")
    world.upload(name(9))
    assert [upload.versions for upload in world.retain()] == [(), ()]
    assert world.left() == {"of-a-person", *names(4, 9)}, "uploads without a manifest have no age"
    assert not any(key.startswith("checkpoints/cycle-000003/") for key in world.store.objects)


def test_a_version_that_did_not_pass_the_offline_gate_expires_as_any_other(world: World) -> None:
    world.cycle(2, days=31, result="refused", version="2")
    world.cycle(3, days=31, result="refused", version="3")
    del world.registry.versions["3"]
    assert [upload.versions for upload in world.retain()] == [("2",)]
    assert (world.left(), world.tagged()) == (names(3), {"2"}), "version 3 may belong to another registry"


def test_weights_of_a_version_missing_in_the_registry_stay(world: World) -> None:
    world.cycle(2, days=300)
    del world.registry.versions["2"]
    assert world.retain() == ()


def test_weights_shared_with_a_needed_version_stay(world: World) -> None:
    world.cycle(2, days=300)
    world.registry.versions["3"] = {"cycle": name(2)}
    world.registry.aliases["champion"] = "3"
    assert world.retain() == ()


def test_possible_parents_stay(world: World) -> None:
    for number in (2, 3, 4):
        world.cycle(number, days=300)
    world.decide("2", "1", PROMISING, days=299)
    world.decide("3", "1", NO, days=298)
    world.cycle(5, days=300, parent="4", champion="4")
    world.decide("5", "4", PROMISING, days=297)
    world.registry.tags[PREVIOUS_TAG] = "4"
    world.retain()
    assert world.left() == names(2, 4, 5), "2 is the next parent; 5 is, after a rollback to 4"
    assert world.left("optimizers") == {name(n) for n in (2, 4, 5)}


def test_pinned_versions_stay(world: World) -> None:
    for number in (2, 3, 4, 5):
        world.cycle(number, days=300)
    serving = Serving(
        terms=Terms(version="2"), projects={"p": ProjectTerms(version="3")}, users={"a" * 32: UserTerms(version="4")}
    )
    world.retain(serving=serving)
    assert world.left() == names(2, 3, 4)
    assert world.left("optimizers") == set()


@pytest.mark.parametrize(("kept", "left"), [(0, ()), (1, (6,)), (2, (6, 3)), (3, (6, 3, 4)), (4, (6, 3, 4, 2))])
def test_the_last_champions_keep_their_weights(world: World, kept: int, left: tuple[int, ...]) -> None:
    for number in range(2, 8):
        world.cycle(number, days=300, champion="6" if number == 7 else "1")
    world.decide("2", "1", YES, days=90)
    world.decide("4", "2", YES, days=80)
    world.decide("3", "4", YES, days=70, experiment="manual-1.000-version-3")
    world.decide("5", "3", YES, days=60)
    world.store.put_json(
        "cycles/cycle-000007/manifest.json",
        world.store.get_json("cycles/cycle-000007/manifest.json") | {"created": NOW - 50 * DAY},
    )
    world.registry.aliases["champion"] = "5"
    world.retain(LIMITS.model_copy(update={"champions_kept": kept}))
    assert world.left() == names(5, *left), "6 became champion in MLflow, and the manifest of a cycle names it"


def test_an_optimizers_state_does_not_outlive_its_checkpoint(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_gc, "OPTIMIZERS_DAYS", 90.0)
    world.cycle(2, days=31)
    world.retain(LIMITS)
    assert (world.left(), world.left("optimizers")) == ({"base"}, set())


def test_without_a_champion_nothing_is_removed(world: World) -> None:
    world.cycle(2, days=300)
    world.registry.aliases.clear()
    objects = dict(world.store.objects)
    with pytest.raises(NoChampion, match=r"nothing was removed.*run retention again"):
        world.retain()
    assert world.store.objects == objects


def test_a_version_that_gets_an_alias_before_its_removal_stays(world: World) -> None:
    world.cycle(2, days=300)
    expired = checkpoint_gc.find(world.store, world.registry.client, Settings(retention=LIMITS), NOW)
    manual.promote(world.store, world.registry.client, asked("promote", "2", "ada", "", NOW))
    assert checkpoint_gc.remove(world.store, world.registry.client, expired, NOW) == ()
    assert (world.left(), world.tagged()) == (names(2), set())


def test_the_base_of_an_adapter_that_gets_an_alias_before_its_removal_stays(world: World) -> None:
    world.cycle(2, days=300)
    world.cycle(3, days=300)
    world.registry.versions["3"][BASE_TAG] = "2"
    expired = checkpoint_gc.find(world.store, world.registry.client, Settings(retention=LIMITS), NOW)
    assert {version for upload in expired for version in upload.versions} == {"2", "3"}
    manual.promote(world.store, world.registry.client, asked("promote", "3", "ada", "", NOW))
    assert checkpoint_gc.remove(world.store, world.registry.client, expired, NOW) == ()
    assert (world.left(), world.tagged()) == (names(2, 3), set())


@pytest.mark.parametrize("deletions", range(12))
def test_a_removal_killed_at_any_deletion_leaves_no_partial_upload_that_looks_whole(deletions: int) -> None:
    class DyingStore(MemoryStore):
        left = deletions

        def delete(self, key: str) -> None:
            if not self.left:
                raise Killed
            self.left -= 1
            super().delete(key)

    world, expected = World(), World()
    for each in (world, expected):
        each.cycle(2, days=300)
        each.cycle(3, days=300, result="refused")
    expected.retain()
    store, dying = world.store, DyingStore()
    dying.objects, world.store = store.objects, dying
    with pytest.raises(Killed):
        world.retain()
    for folder in FOLDERS:
        for each in world.left(folder):
            assert {f"{folder}/{each}/a.bin", f"{folder}/{each}/sub/b.bin"} <= store.objects.keys()
    assert name(2) in world.left() or world.tagged() == {"2"}, "the tag is written before any deletion"
    world.store = store
    world.retain()
    assert (store.objects, world.tagged()) == (expected.store.objects, expected.tagged())


CYCLES = st.fixed_dictionaries(
    {
        "parent": st.integers(1, 9),
        "champion": st.integers(1, 9),
        "days": st.sampled_from([1, 10, 50]),
        "result": st.sampled_from(["registered", "registered", "registered", "refused", "abandoned", ""]),
        "verdict": st.sampled_from([None, YES, NO, PROMISING]),
    }
)


OLD = {"parent": 0, "days": 50, "result": "registered", "verdict": None}


@hypothesis_settings(max_examples=300, deadline=None)
@example(  # a former champion that only a cycle's manifest names; the upload of that cycle expires
    cycles=[{**OLD, "champion": 0}, {**OLD, "champion": 1}],
    roles=dict.fromkeys(("champion", "challenger", "previous", "of-a-person", "pinned"), 0),
    kept=1,
)
@given(
    cycles=st.lists(CYCLES, max_size=8),
    roles=st.fixed_dictionaries(
        {role: st.integers(0, 9) for role in ("champion", "challenger", "previous", "of-a-person", "pinned")}
    ),
    kept=st.integers(0, 3),
)
def test_needed_versions_stay_and_all_others_expire_for_any_history(
    cycles: list[Mapping], roles: Mapping[str, int], kept: int
) -> None:
    world = World()
    versions = ["1"]

    def pick(number: int) -> str:
        return versions[number % len(versions)]

    for number, cycle in enumerate(cycles, 2):
        parent, champion = pick(cycle["parent"]), pick(cycle["champion"])
        world.cycle(number, cycle["days"], parent, champion, result=cycle["result"])
        if cycle["result"] == "registered":
            versions.append(str(number))
            if cycle["verdict"]:
                world.decide(str(number), champion, cycle["verdict"], days=cycle["days"] / 2)
    role_versions = {role: pick(number) for role, number in roles.items() if number or role == "champion"}
    world.registry.aliases = {
        role: role_versions[role] for role in ("champion", "challenger", "of-a-person") if role in role_versions
    }
    world.registry.tags[PREVIOUS_TAG] = role_versions.get("previous", "")
    serving = Serving(terms=Terms(version=role_versions.get("pinned", "")))
    limits = LIMITS.model_copy(update={"champions_kept": kept})

    before = dict(world.store.objects)
    world.retain(limits, serving)

    folder_of = {version: tags.get("cycle", "base") for version, tags in world.registry.versions.items()}
    left = world.left()
    needed = set(role_versions.values())
    for number, cycle in enumerate(cycles, 2):
        if cycle["days"] <= 30 or not cycle["result"]:
            assert name(number) in left, "young or running cycles keep their uploads"
        if not cycle["result"]:
            manifest = Manifest.model_validate(world.store.get_json(f"cycles/{name(number)}/manifest.json"))
            needed |= {manifest.parent, manifest.champion}
    assert {folder_of[version] for version in needed} <= left
    assert {version for version in folder_of if folder_of[version] not in left} == world.tagged()
    assert {key for key in before if not key.startswith(FOLDERS)} <= world.store.objects.keys()

    versions_tree = lineage(world.registry.client.versions())
    serving_pairs = [(role_versions["champion"], role_versions.get("previous"))]
    serving_pairs += [(role_versions["previous"], role_versions["champion"])] if "previous" in role_versions else []
    serving_pairs += [(role_versions["challenger"], role_versions["champion"])] if "challenger" in role_versions else []
    for champion, previous in serving_pairs:
        parent = choose_parent(world.store, versions_tree, champion, previous)
        assert folder_of[parent] in left, "the parent has its weights, for any next champion"

    young = {name(n) for n, cycle in enumerate(cycles, 2) if cycle["days"] <= 30 or not cycle["result"]} | {"base"}
    needed |= {choose_parent(world.store, versions_tree, *cycle) for cycle in serving_pairs[:2]}
    surplus = left - young - {folder_of[version] for version in needed}
    assert len(surplus) <= kept, "all other remaining uploads are of former champions"
    after = dict(world.store.objects)
    assert world.retain(limits, serving) == () and world.store.objects == after


def test_the_base_of_a_remaining_adapter_stays(world: World) -> None:
    world.cycle(2, days=100)
    world.cycle(3, days=99, parent="2")
    world.cycle(4, days=1, parent="3")
    for version in ("3", "4"):
        world.registry.versions[version][BASE_TAG] = "2"
    world.retain()
    assert world.left("checkpoints") >= {name(2), name(4)} and name(3) not in world.left("checkpoints")
