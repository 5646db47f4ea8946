"""What the commands tell of the versions, from the object store alone."""

import math
import tarfile
from pathlib import Path

import pytest

from infra import cli as command
from infra.records import Change, CycleOutcome, Decision, Look, Manifest, Move, ObjectReference, RewardTotals, Stage, Verdict
from infra.storage import looks, moves
from infra.storage.scope import Scope
from infra.storage.store import ObjectStore
from tasks.experiments.counting.totals import gather
from tasks.experiments.moves import manual, release
from tasks.experiments.reports import recompute
from tasks.experiments.reports.explain import UnknownVersion, explain
from tasks.experiments.reports.history import UnknownTest, history, line
from tasks.experiments.stages import looks as recording
from tasks.experiments.verdict.decide import decide
from tests.tasks.experiments.test_export import world as bucket
from tests.tasks.experiments.test_manual import start_test, world
from tests.tasks.made import NOW, MemoryStore, asked, decision

PREVIOUS = Path(__file__).parents[2] / "data/previous/bucket.tar.gz"
WON = Verdict(
    verdict="promote",
    reason="accepted more",
    requests={"champion": 900, "challenger": 910},
    users={"champion": 20, "challenger": 21},
)


@pytest.fixture
def store() -> MemoryStore:
    """A store in which version 2 was made by a cycle, won its test, and was rolled back."""
    store, registry = world()
    manifest = Manifest(
        **{"cycle": "cycle-000001", "created": NOW - 9, "champion": "1", "parent": "1", "since": NOW - 99, "until": NOW - 20},
        **{"completions": (), "feedback": (), "buckets": {"trained": 6, "waiting": 0, "stale": 2}, "requests": 8},
        **{"settings_sha256": "", "code": "1.0+commit.abc", "returns": (RewardTotals(bits=1, samples=6, reward=1.5),)},
        samples=ObjectReference(key="cycles/cycle-000001/samples-1.parquet", sha256="1", rows=6),
    )
    store.put_json("cycles/cycle-000001/manifest.json", manifest)
    store.put_json("cycles/cycle-000001/settings.json", {"reward": {"accepted": 0.75, "rejected": -0.25}})
    store.put_json("cycles/cycle-000001/training.json", {"samples": 6, "steps": [{}], "notes": ["no optimizer state"]})
    store.put_json("cycles/cycle-000001/evaluation.json", {"passed": True, "reason": "judge reference 6.10 against 6.00"})
    opened = start_test(store, registry, "2")
    values = {"cycle": "cycle-000001", "result": "registered", "version": "2", "experiment": opened.id}
    store.put_json("cycles/cycle-000001/outcome.json", CycleOutcome(**values, reason="version 2 is the challenger"))
    release.conclude(store, registry.client, decision(opened, WON, NOW + 60))
    manual.rollback(store, registry.client, asked("roll_back", "", "ada", "it is slow", NOW + 120))
    return store


def test_an_unknown_test_is_named_with_the_latest(store: MemoryStore) -> None:
    (test,) = (key.partition("/")[2].removesuffix(".json") for key in store.keys("experiments/"))
    assert list(history(store, 3, test))
    with pytest.raises(UnknownTest, match=rf"^misspelt: no such A/B test in s3://.*; expected an id, the latest are {test}$"):
        list(history(store, 3, "misspelt"))


def test_the_history_lists_the_last_moves_oldest_first(store: MemoryStore) -> None:
    lines = list(history(store, 3))
    assert lines == [
        "    2  2027-01-15 08:00:00 UTC  open, by cycle-000001: version 2 candidate -> challenger, test at 50%: tested against "
        "version 1",
        "    3  2027-01-15 08:01:00 UTC  promote, by gate: version 2 challenger -> champion, version 1 champion -> retired: "
        "accepted more",
        "    4  2027-01-15 08:02:00 UTC  roll back, by ada: version 1 retired -> champion, version 2 champion -> rolled back: "
        "it is slow",
    ]
    assert len(list(history(store, 99))) == 4


def test_a_version_is_explained_from_its_data_to_its_state(store: MemoryStore) -> None:
    sections = dict(explain(store, "2"))
    assert list(sections) == ["cycle", "data", "reward", "training", "evaluation", "experiment", "verdict", "moves", "state"]
    text = "\n".join(line for section in sections.values() for line in section)
    for words in (
        "cycle-000001, sealed 2027-01-15 07:59:51 UTC\ntrained from version 1 to beat version 1",
        "code 1.0+commit.abc",
        "8 requests from 2027-01-15 07:58:21 UTC to 2027-01-15 07:59:40 UTC: 6 trained, 2 stale",
        "6 samples in s3://tabloop/cycles/cycle-000001/samples-1.parquet",
        "accepted 0.75, rejected -0.25\nmean reward +0.2500 over 6 samples",
        "1 steps: samples 6\nno optimizer state",
        "passed: judge reference 6.10 against 6.00",
        "cycle-000001-version-2: against version 1, 50% of users, since 2027-01-15 08:00:00 UTC",
        "promote, by gate, 2027-01-15 08:01:00 UTC: accepted more",
        "champion v1: 900 requests of 20 users\nchallenger v2: 910 requests of 21 users",
        "rolled back, since 2027-01-15 08:02:00 UTC",
    ):
        assert words in text, words


def test_a_base_has_moves_and_no_cycle_and_an_unknown_version_is_an_error(store: MemoryStore) -> None:
    sections = dict(explain(store, "1"))
    assert list(sections) == ["cycle", "moves", "state"]
    assert sections["state"] == ["champion, since 2027-01-15 08:02:00 UTC"]
    with pytest.raises(UnknownVersion, match=r"version 9: no cycle .*`tabloop history`"):
        dict(explain(store, "9"))


def test_a_common_version_is_explained_with_its_moves_in_the_loops_of_projects(store: MemoryStore) -> None:
    web, newest = Scope("web").view(store), next(moves.backwards(store))
    assert moves.append(web, newest.model_copy(update={"number": 1, "reason": "web went back"}))
    seen_by_all = Scope(apart=frozenset({"shop", "web"})).view(store)
    sections = dict(explain(seen_by_all, "1"))
    assert list(sections) == ["cycle", "moves", "state", "moves of project web", "state of project web"]
    assert "web went back" in sections["moves of project web"][0] and sections["moves"] == dict(explain(store, "1"))["moves"]
    assert dict(explain(seen_by_all, "2"))["state of project web"] == ["rolled back, since 2027-01-15 08:02:00 UTC"]


def test_a_version_of_an_earlier_release_is_explained_without_moves() -> None:
    store = MemoryStore()
    with tarfile.open(PREVIOUS) as archive:
        for member in archive.getmembers():
            if body := archive.extractfile(member):
                store.objects[member.name] = body.read()
    sections = dict(explain(store, "2"))
    assert "promote, by operator" in sections["verdict"][0] and sections["moves"] == ["none in the log"]


def test_the_commands_print_them(store: MemoryStore, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(ObjectStore, "connect", lambda _: store)
    assert command.main(["history", "--count", "1"]) == 0
    assert "roll back, by ada" in (out := capsys.readouterr().out) and out.count("\n") == 1
    assert command.main(["explain", "2"]) == 0
    assert "evaluation\n  passed: judge" in capsys.readouterr().out
    assert command.main(["explain", "9"]) == 1
    assert "version 9" in capsys.readouterr().err
    monkeypatch.setattr(ObjectStore, "connect", lambda _: MemoryStore())
    assert command.main(["history"]) == 0
    assert "no moves in s3://tabloop/moves/ yet" in capsys.readouterr().out


def test_the_history_lists_looks_between_the_moves(store: MemoryStore) -> None:
    opened = Decision.model_validate(store.get_json("decisions/cycle-000001-version-2.json")).experiment
    undecided = WON.model_copy(update={"verdict": "undecided", "reason": "not sure yet"})
    recording.record(store, opened, undecided, NOW + 30)
    recording.record(store, opened, WON, NOW + 60)
    said = list(history(store, 99))
    assert [line[:5].strip() for line in said] == ["1", "2", "", "3", "", "4"]
    assert said[2] == (
        "       2027-01-15 08:00:30 UTC  cycle-000001-version-2, look 1, test at 50%, 1810 requests of 41 users: undecided: "
        "not sure yet"
    )
    assert list(history(store, 99, looks=False)) == [line for line in said if line[:5].strip()]
    assert list(history(store, 3)) == said[-3:]
    assert list(history(store, 99, opened.id)) == said[1:5]


def test_a_decision_is_computed_again_bit_by_bit(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    store, test = bucket()
    assert test.plan
    totals = gather(store, test, test.plan, NOW + 60)
    verdict = decide(test, test.plan, totals, NOW + 60)
    made = Decision(experiment=test, verdict=verdict, decided=NOW + 60, by="gate", evidence=totals.evidence())
    store.put_json("decisions/e.json", made)
    assert list(recompute.differences(recompute.read(store, "e"))) == []
    assert verdict.metrics[0].low is not None
    changed = verdict.metrics[0].model_copy(update={"low": math.nextafter(verdict.metrics[0].low, 1)})
    wrong = verdict.model_copy(update={"metrics": (changed, *verdict.metrics[1:])})
    store.put_json("decisions/wrong.json", made.model_copy(update={"verdict": wrong}))
    store.put_json("decisions/hand.json", made.model_copy(update={"by": "ada", "evidence": None}))
    monkeypatch.setattr(ObjectStore, "connect", lambda _: store)
    assert command.main(["recompute", "e"]) == 0
    assert "the same, bit by bit" in capsys.readouterr().out
    assert command.main(["recompute", "wrong"]) == 1, "one bit differs"
    assert "metrics: recorded" in capsys.readouterr().out
    for unknown, words in (("hand", "by ada: expected one of the gate"), ("missing", "the latest are e, hand, wrong")):
        assert command.main(["recompute", unknown]) == 1
        assert words in capsys.readouterr().err


def test_the_stages_of_a_version_are_explained_by_their_last_looks(store: MemoryStore) -> None:
    opened = Decision.model_validate(store.get_json("decisions/cycle-000001-version-2.json")).experiment
    stages = (("shadow", 0.0, 0), ("ramp", 0.1, 10), ("ramp", 0.25, 20), ("test", 0.5, 30), ("watch", 0.9, 60))
    begun = [Stage.model_validate({"name": name, "share": share, "started": NOW + at}) for name, share, at in stages]
    staged = opened.model_copy(update={"stages": tuple(begun)})
    for at in (1, 2, 11, 12, 21, 31, 32, 33, 61):
        seen = WON.model_copy(update={"verdict": "undecided", "reason": f"seen after {at} s", "requests": {"challenger": at}})
        looks.append(
            store,
            Look(
                experiment=opened.id,
                number=looks.newest_number(store, opened.id) + 1,
                time=NOW + at,
                stage=staged.stage_at(NOW + at).name,
                share=0.5,
                verdict=seen,
            ),
        )
    sections = dict(explain(store, "2"))
    assert list(sections)[5:] == ["experiment", "shadow", "ramp", "test", "verdict", "watch", "moves", "state"]
    last = {name: sections[name][0].rpartition(": ")[2] for name in ("shadow", "ramp", "test", "watch")}
    assert last == {name: f"seen after {at} s" for name, at in (("shadow", 2), ("ramp", 21), ("test", 33), ("watch", 61))}


def test_a_move_to_another_stage_tells_the_stage_and_its_share() -> None:
    staying = Change(version="2", before="challenger", after="challenger")
    values = {"number": 7, "kind": "advance", "changes": (staying,), "by": "gate", "time": NOW, "stage": "ramp", "share": 0.1}
    said = line(Move.model_validate({**values, "reason": "200 copies"}))
    assert said == "    7  2027-01-15 08:00:00 UTC  advance, by gate: version 2 challenger, ramp at 10%: 200 copies"
