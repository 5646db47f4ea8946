"""Sets in the object store, and the sets that the settings name."""

import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from infra.cli import main
from infra.records import Case, HeldOutPlace, Program
from infra.settings.schema import Evaluate, HeldOut
from tasks.evaluation.heldout import sets
from tasks.evaluation.heldout.build import build, held_out_positions
from tasks.evaluation.heldout.sets import Places
from tests.tasks.made import MemoryStore

PROGRAM = Program(before="def f():\n    return", after="\n", cases=(Case(stdin="1", outputs=("2", "3")),))
PLACES = tuple(
    HeldOutPlace(id=str(n), file="a.go", prefix="x", suffix="y", truth=f"truth {n}", program=PROGRAM if n else None)
    for n in range(3)
)


def test_a_set_comes_back_from_the_store_and_its_key_is_its_content() -> None:
    store = MemoryStore()
    written = sets.write(store, Places("a", PLACES, {"short": 2, "nothing": 0}))
    assert sets.read(store, written) == Places("a", PLACES, {"short": 2})
    assert written.places.rows == 3 and written.places.sha256 in written.places.key
    assert sets.write(store, Places("b", PLACES)).places == written.places
    assert sets.write(store, Places("a", PLACES[:2])).places.key != written.places.key
    assert len(store.objects) == 2


def test_two_places_with_one_id_are_an_error() -> None:
    with pytest.raises(sets.DuplicateId, match="'1' occurs more than once"):
        sets.write(MemoryStore(), Places("a", (*PLACES, PLACES[1])))


def test_a_set_that_is_gone_is_an_error() -> None:
    store = MemoryStore()
    written = sets.write(store, Places("a", PLACES))
    store.objects.clear()
    with pytest.raises(sets.SetMissing, match=r"held-out set 'a': s3://.*3 places"):
        sets.read(store, written)


def test_the_default_set_holds_the_positions_of_the_held_out_packages() -> None:
    found = build(Evaluate().sets[0], Evaluate(samples=20))
    positions = held_out_positions(20, Evaluate().seed)
    assert [(p.file, p.offset, p.truth) for p in found.places[:20]] == [(p.file, p.offset, p.truth) for p in positions]
    assert [p.truth for p in found.places[20:]] == ["", ""], "where nothing should be written"
    assert {place.language for place in found.places} == {"py"}


def test_a_place_is_completed_as_a_position() -> None:
    place = HeldOutPlace(id="1", file="a.go", project="p", language="go", offset=7, prefix="x", suffix="y", truth="z")
    assert sets.place_of(sets.position_of(place), "p", "go") == place.model_copy(update={"id": "a.go:7"})


@pytest.mark.parametrize("fields", [{"kind": "directory"}, {"kind": "packages", "path": Path("code")}])
def test_a_set_has_a_path_exactly_where_its_kind_reads_files(fields: dict[str, object]) -> None:
    with pytest.raises(ValidationError, match="expected"):
        HeldOut.model_validate({"name": "a", **fields})


def test_the_command_shows_each_set_and_what_is_wrong_with_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code = Path(__file__).resolve().parents[3] / "data/code"
    given = [
        {"name": "shop", "kind": "directory", "path": str(code), "share": 1.0, "places": 40},
        {"name": "gone", "kind": "directory", "path": str(code / "gone")},
        {"name": "own", "kind": "team"},
    ]
    monkeypatch.setenv("TABLOOP_EVALUATE__SETS", json.dumps(given))
    monkeypatch.setenv("COLUMNS", "160")
    assert main(["sets"]) == 1
    output = capsys.readouterr()
    assert "shop" in output.out and "go " in output.out and "ts " in output.out and "own" not in output.out
    assert "set 'gone'" in output.err and "no directory" in output.err
