"""A cycle of own code: sealed once, resumed after a kill, gated as any other, and without a trace in the windows of requests."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prefect.states import State

from flows.cycle import cycle
from infra import settings as settings_
from infra.records import CycleOutcome, HeldOutPlace, Manifest, OwnCode, Sample, Verdict
from infra.settings.schema import Serving
from infra.storage import cycles
from infra.storage.scope import scope_of
from tasks.experiments.moves import release
from tasks.own_code.report import newest
from tasks.showing import fit as showing
from tasks.showing.fit import Unfitted
from tasks.steps.train import weight_shares_of
from tasks.upkeep.forget import forget, request
from tests.flows.conftest import World
from tests.flows.test_cycle import outcome
from tests.tasks.evaluation.made_scores import scores
from tests.tasks.made import NOW, Killed, completion, decision, feedback
from tests.tasks.own_code.test_code import body, shop

__all__ = ["shop"]
pytestmark = pytest.mark.stack


def learn(*sources: Path, **fields: Any) -> State:
    return cycle(OwnCode(sources=tuple(map(str, sources)), **fields), return_state=True)


def manifest_of(world: World, name: str = "cycle-000001") -> Manifest:
    return Manifest.model_validate(world.store.get_json(f"cycles/{name}/manifest.json"))


def test_own_code_makes_a_challenger_that_passed_the_gate(world: World, shop: Path) -> None:
    state = learn(shop)
    assert state.name == "Learned" and state.message == "version 2 is the challenger"
    assert outcome(world).result == "registered"
    aliases = world.registry.client.aliases()
    assert (aliases.champion, aliases.challenger) == ("1", "2") and aliases.experiment
    manifest = manifest_of(world)
    (one,) = manifest.learned
    assert (one.name, manifest.requests, manifest.completions) == ("shop", 0, ()) and one.places == manifest.samples.rows
    rows = world.store.get_rows(manifest.samples.key, Sample)
    assert {(row.user, row.project, row.outcome) for row in rows} == {("", "shop", "unjudged")}
    (held_out,) = (one for one in manifest.held_out if one.name == "own-shop")
    assert held_out.places.key.startswith("cycles/cycle-000001/held-out-")
    assert isinstance(showing.read(world.store, manifest), Unfitted)
    assert weight_shares_of(manifest, settings_.load().collect) == {"project": 1.0}
    found = newest(world.store)
    assert found and found.outcome == outcome(world) and "shop: " in next(found.lines())


def test_a_killed_cycle_of_own_code_is_completed_by_the_next_run_from_the_same_samples(world: World, shop: Path) -> None:
    world.training = Killed()
    with pytest.raises(Killed):
        cycle(OwnCode(sources=(str(shop),)))
    world.training = None
    assert learn(shop).name == "CycleUnfinished", "first the other one"
    ended = cycle()
    assert isinstance(ended, CycleOutcome) and (ended.result, ended.version) == ("registered", "2")
    assert world.trained_on[0] == world.trained_on[1] and len(world.trained_on) == 2


def test_a_seal_that_is_repeated_goes_on_with_the_manifest_that_it_wrote(
    world: World, shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.lose_answer(monkeypatch, cycles.MANIFEST)
    state = learn(shop)
    assert state.is_completed() and outcome(world).result == "registered"
    assert cycles.sealed(cycles.index(world.store)) == ["cycle-000001"] and len(world.trained_on) == 1


def test_a_candidate_that_fails_the_gate_is_registered_and_meets_nobody(world: World, shop: Path) -> None:
    world.candidate = [replace(score, edit_similarity=score.edit_similarity - 0.3) for score in scores()]
    state = learn(shop)
    assert state.name == "NotLearned" and "is not tested" in str(state.message)
    assert world.registry.client.aliases().challenger is None


def test_while_a_test_runs_nothing_is_learnt(world: World, shop: Path) -> None:
    learn(shop)
    state = learn(shop)
    assert state.name == "ExperimentRunning" and "tabloop reject" in str(state.message)


def test_the_window_of_requests_is_the_same_after_own_code(labelled: World, shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    learn(shop)
    labelled.reject("no win")
    ended = cycle()
    assert isinstance(ended, CycleOutcome) and ended.cycle == "cycle-000002"
    assert manifest_of(labelled, "cycle-000002").buckets["trained"] == 6


def test_a_promoted_version_of_own_code_does_not_hide_requests(labelled: World, shop: Path) -> None:
    learn(shop)
    labelled.registry.aliases.update(champion="2")
    labelled.registry.aliases.pop("challenger")
    labelled.registry.tags.clear()
    ended = cycle()
    assert isinstance(ended, CycleOutcome), ended
    manifest = manifest_of(labelled, ended.cycle)
    assert (manifest.parent, manifest.buckets["trained"]) == ("2", 6)


def test_the_code_of_a_project_makes_a_challenger_of_its_loop_alone_and_hides_none_of_its_requests(
    world: World, shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Serving.model_validate({"adapters": 6, "projects": {"web": {"own_champion": True}}})
    loaded = settings_.load().model_copy(update={"serving": own})
    monkeypatch.setattr("infra.settings.load", lambda: loaded)
    web = scope_of(loaded, "web").view(world.store)
    for project in ("web", "docs"):
        served = [completion(f"{project}{i}", prefix=f"{i} = ", project=project) for i in range(6)]
        answers = [feedback(c.id, prefix=c.prefix, project=project, outcome="accepted", time=NOW + 1) for c in served]
        world.ship(project, served, answers)
    common = cycle()
    assert isinstance(common, CycleOutcome) and common.version == "3" and manifest_of(world).apart == ("web",)
    # The common champion is now of a cycle that left web's requests out, and web has none of its own.
    for store, registry in ((world.store, world.registry.client), (web, world.registry.client.of("web"))):
        running = registry.aliases().experiment
        assert running
        release.conclude(store, registry, decision(running, Verdict(verdict="reject", reason="no win"), NOW + 200))
    world.registry.aliases["champion"] = "3"
    state = cycle(OwnCode(sources=(str(shop),)), project="web", return_state=True)
    assert (state.name, state.message) == ("Learned", "version 4 is the challenger")
    manifest = manifest_of(world, "web-cycle-000002")
    assert ([each.name for each in manifest.learned], manifest.parent) == (["shop"], "3")
    assert world.registry.versions["4"]["project"] == "web"
    assert {each: world.registry.client.of(each).aliases().challenger for each in ("", "web")} == {"": None, "web": "4"}
    state = cycle(OwnCode(sources=(str(shop),)), project="web", return_state=True)
    assert state.name == "ExperimentRunning" and "`tabloop reject --project web --reason ...`" in str(state.message)
    world.registry.client.of("web").set_experiment(None)
    world.registry.aliases["champion-web"] = world.registry.aliases.pop("challenger-web")
    state = cycle(project="web", return_state=True)
    assert state.name == "TooFewNewSamples", "the rejected candidate has seen them"
    assert "0 of 6 samples are new" in str(state.message), "they are read again, as before the cycle of own code"


@pytest.mark.parametrize(
    ("files", "fields", "name", "said"),
    [
        (0, {}, "NoCode", "the directory has no file"),
        (3, {"languages": ("go",)}, "NoCode", "name one by --language"),
        (3, {"places": 3}, "TooFewPlaces", "collect.min_samples = 4"),
    ],
)
def test_too_little_code_begins_no_cycle(world: World, tmp_path: Path, files: int, fields: dict, name: str, said: str) -> None:
    root = tmp_path / "small"
    root.mkdir()
    for number in range(files):
        (root / f"{number}.py").write_text(body(f"word{'abc'[number]}"))
    state = learn(root, **fields)
    assert state.name == name and said in str(state.message)
    assert not list(world.store.keys("cycles/"))


def test_a_forgotten_project_leaves_neither_samples_nor_held_out_places(world: World, shop: Path) -> None:
    learn(shop)
    forget(world.store, world.registry.client, request("", "shop", NOW + 200, "test", ""), NOW + 200, dry_run=False)
    (samples,) = world.store.keys("cycles/cycle-000001/samples-")
    assert world.store.get_rows(samples, Sample) == []
    (held_out,) = world.store.keys("cycles/cycle-000001/held-out-")
    assert world.store.get_rows(held_out, HeldOutPlace) == []
