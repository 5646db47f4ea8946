"""The cycle as Prefect runs it: its steps and its early ends."""

import math
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from flows.cycle import cycle
from infra import settings as settings_
from infra.model.batches import BatchResult
from infra.model.showing import Estimate, Place
from infra.records import CycleOutcome, ExperimentRecord, Manifest, Quarantined, Sample
from infra.registry.lineage import lineage
from infra.settings.evaluation import MARGINS, UNSET
from infra.settings.schema import Gate, Groups
from infra.storage import cycle_progress, cycles, loop_runs
from infra.storage.store import sha256
from tasks.evaluation.evaluate import EvaluationBroken
from tasks.evaluation.models.base import Prompt
from tasks.evaluation.models.engine import EngineAway
from tasks.labels.parent import choose_parent
from tasks.showing import fit as showing
from tasks.showing.fit import FittedEstimate, Unfitted
from tasks.steps.transaction import MAX_RESUMES
from tasks.trainer.options import UpdateSettings
from tasks.trainer.update.targets import taught_by
from tasks.upkeep.forget import forget, request
from tasks.validation import suite
from tests.flows.conftest import World
from tests.tasks.evaluation.made_scores import scores
from tests.tasks.made import NOW, Killed, completion, feedback

pytestmark = pytest.mark.stack


def outcome(world: World, name: str = "cycle-000001") -> CycleOutcome:
    return CycleOutcome.model_validate(world.store.get_json(f"cycles/{name}/outcome.json"))


def prepare_next_cycle(world: World, monkeypatch: pytest.MonkeyPatch, promising: bool, outcome: str) -> None:
    """Reject the challenger, and ship three requests with feedback before the next cycle."""
    world.reject("no win", promising)
    completions = [completion(f"later {i}", prefix=f"later {i}", time=NOW + 150 + i) for i in range(3)]
    events = [feedback(f"later {i}", prefix=f"later {i}", time=NOW + 151 + i, outcome=outcome) for i in range(3)]
    world.ship("b", completions, events)
    monkeypatch.setattr(time, "time", lambda: NOW + 300)


def test_a_cycle_trains_and_registers_a_challenger(labelled: World) -> None:
    result = cycle()
    assert result == outcome(labelled)
    assert (result.result, result.version) == ("registered", "2")
    aliases = labelled.registry.client.aliases()
    assert (aliases.champion, aliases.challenger) == ("1", "2")
    assert aliases.experiment
    assert aliases.experiment.id == result.experiment
    assert labelled.registry.versions["2"]["parent"] == "1"
    assert labelled.store.exists("checkpoints/cycle-000001/checksums.json")
    manifest = labelled.store.get_json("cycles/cycle-000001/manifest.json")
    assert manifest["buckets"]["trained"] == manifest["requests"] == 6
    assert (manifest["profile"]["judged"], manifest["profile"]["accepted"]) == (6, 3)
    assert manifest["code"].startswith("0.2.0+")
    dataset = sha256([labelled.store.get("cycles/cycle-000001/manifest.json")])
    assert labelled.registry.versions["2"]["manifest_sha256"] == dataset
    advantages = [s.advantage for s in labelled.store.get_rows(manifest["samples"]["key"], Sample)]
    assert sorted(advantages) == [-0.25] * 3 + [0.75] * 3, "each is compared with silence"


def test_the_version_gets_the_estimate_that_its_cycle_fitted(world: World, tmp_path: Path) -> None:
    (tmp_path / "version-1").mkdir()
    completions = [
        completion(str(i), prefix=f"{i} = ", time=NOW - i / 10, logprobs=[-0.01 if i % 2 else -1.0] * 9) for i in range(400)
    ]
    events = [
        feedback(str(i), prefix=f"{i} = ", time=NOW + 1, outcome="accepted" if i % 2 and i % 20 > 1 else "rejected")
        for i in range(400)
    ]
    world.ship("a", completions, events)
    assert cycle().version == "2"
    estimate = Estimate.model_validate_json(world.store.get("checkpoints/cycle-000001/showing.json"))
    likely, unlikely = (estimate.at(Place("7 = ", "\n")).chances([p] * 8, range(1, 9))[-1] for p in (-0.01, -1.0))
    assert likely > 0.8 and unlikely < 0.1 and estimate.temperature == 0.8
    fitted = showing.read(world.store, cycles.manifest_of(world.store, "cycle-000001"))
    assert isinstance(fitted, FittedEstimate) and fitted.estimate == estimate and fitted.completions == 400


def test_a_cycle_with_few_labels_makes_a_version_without_an_estimate(labelled: World) -> None:
    assert cycle().version == "2"
    assert not labelled.store.exists("checkpoints/cycle-000001/showing.json")
    fitted = showing.read(labelled.store, cycles.manifest_of(labelled.store, "cycle-000001"))
    assert isinstance(fitted, Unfitted) and fitted.reason.startswith("6 completions")


class FakeEngine:
    """Draws what was written, three wrong texts that are equal, and silence with a chance of a tenth."""

    def __init__(self) -> None:
        self.drawn: list[str] = []
        self.away = False

    def __call__(self, *_: object) -> nullcontext["FakeEngine"]:
        if self.away:
            raise EngineAway("http://127.0.0.1:18102/health: HTTP 503")
        return nullcontext(self)

    def score(self, checkpoint: Path, rows: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[tuple[float, ...]]:
        self.drawn.append(checkpoint.name)
        return [(math.log(0.1),) for _ in rows]

    def results(self, checkpoint: Path, prompts: Sequence[Prompt], *_: object, with_logprobs: bool) -> list[BatchResult]:
        assert with_logprobs
        tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
        texts = [tuple(tokenizer.encode(text, add_special_tokens=False).ids) for text in ("written()\nmore()", "wrong")]
        drawn = [texts[number % 4 > 0] for number in range(len(prompts))]
        return [BatchResult(row, tokens, (-0.5,) * len(tokens)) for row, tokens in enumerate(drawn)]


@pytest.fixture
def drawing(world: World, monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    """Settings that draw groups of four at ten places."""
    settings, engine = settings_.load(), FakeEngine()
    train = settings.train.model_copy(update={"groups": Groups(places=10, size=4), "actions": ("written", "drawn")})
    changed = settings.model_copy(update={"train": train})
    monkeypatch.setattr("infra.settings.load", lambda: changed)
    monkeypatch.setattr("tasks.steps.reward.engine_models", engine)
    return engine


def manifest_and_samples(world: World) -> tuple[Manifest, list[Sample]]:
    manifest = Manifest.model_validate(world.store.get_json("cycles/cycle-000001/manifest.json"))
    return manifest, world.store.get_rows(manifest.samples.key, Sample)


def test_groups_are_sealed_with_the_samples_and_a_resumed_cycle_draws_none_anew(world: World, drawing: FakeEngine) -> None:
    """A drawn row is one of the user whose place it is, who is forgotten with it."""
    ship_settled(world, 120)
    world.training = Killed()
    with pytest.raises(Killed):
        cycle()
    world.training = None
    assert cycle().version == "2"
    assert drawing.drawn == ["version-1"] and world.trained_on[0] == world.trained_on[1]
    manifest, sealed = manifest_and_samples(world)
    groups = [s for s in sealed if s.outcome == "judged"]
    assert len(groups) == 30 and {s.policy_version for s in groups} == {"1"}
    assert all((s.advantage > 0) == s.completion_id.endswith("drawn-1") for s in groups)
    assert not any(s.advantage for s in sealed if s.outcome != "judged"), "served actions do not teach"
    assert manifest.acceptance and manifest.acceptance.verdicts == 120 and not manifest.notes
    of_place = {s.completion_id: s.user for s in sealed}
    assert all(s.user == of_place[s.completion_id.split("/")[0]] for s in groups)
    gone = groups[0].user
    forget(world.store, world.registry.client, request(gone, "", NOW + 200, "test", ""), NOW + 200, dry_run=False)
    (left,) = (key for key in world.store.keys("cycles/cycle-000001/samples-"))
    assert gone not in {s.user for s in world.store.get_rows(left, Sample)}


def test_without_enough_verdicts_the_written_text_alone_is_trained_on_and_the_manifest_notes_it(
    world: World, drawing: FakeEngine
) -> None:
    ship_settled(world, 60)
    assert cycle().version == "2"
    manifest, sealed = manifest_and_samples(world)
    assert drawing.drawn == [] and not [s for s in sealed if s.outcome == "judged"] and manifest.acceptance is None
    (note,) = manifest.notes
    assert note.startswith("no drawn text teaches, since 20 of 60 judged completions with a settled text are accepted")
    assert [s for s in sealed if s.settled_token_ids] == list(taught_by(sealed, UpdateSettings(actions=("written", "drawn"))))


@pytest.mark.parametrize(
    ("actions", "rest"),
    [
        (("written", "drawn"), "written texts alone do"),
        (("drawn", "served"), "served texts alone do"),
        (("written", "served", "drawn"), "written and served texts alone do"),
        (("drawn",), "nothing else does by train.actions"),
    ],
)
def test_the_note_on_texts_that_are_not_drawn_names_the_actions_that_teach(
    world: World, drawing: FakeEngine, monkeypatch: pytest.MonkeyPatch, actions: tuple[str, ...], rest: str
) -> None:
    settings = settings_.load()
    wanted = settings.train.model_copy(update={"actions": actions})
    monkeypatch.setattr("infra.settings.load", lambda: settings.model_copy(update={"train": wanted}))
    ship_settled(world, 60)
    cycle()
    assert manifest_and_samples(world)[0].notes[0].endswith(f"or more of either; {rest}")


def test_a_cycle_waits_for_the_engine_that_draws_and_seals_nothing(world: World, drawing: FakeEngine) -> None:
    ship_settled(world, 120)
    drawing.away = True
    state = cycle(return_state=True)
    assert state.name == "WaitingForEngine" and "HTTP 503" in state.message
    assert not world.store.exists("cycles/cycle-000001/manifest.json")
    drawing.away = False
    assert cycle().version == "2"


def ship_settled(world: World, count: int) -> None:
    """Ship requests of ten users, every third accepted, each with the text that its editor reports to stand there."""
    completions = [
        completion(str(i), user=f"{i % 10:032x}", prefix=f"{i} = ", text="written()" if i % 3 == 0 else "wrong()")
        for i in range(count)
    ]
    events = [
        feedback(
            str(i),
            user=f"{i % 10:032x}",
            prefix=f"{i} = ",
            shown="written()" if i % 3 == 0 else "wrong()",
            outcome="rejected" if i % 3 else "accepted",
            settled="written()",
        )
        for i in range(count)
    ]
    world.ship("a", completions, events)


@pytest.mark.parametrize("blank", [False, True])
@pytest.mark.parametrize("actions", [("written",), ("written", "served", "drawn")])
def test_a_team_whose_editors_are_silent_trains_on_settled_text(
    world: World, monkeypatch: pytest.MonkeyPatch, actions: tuple[str, ...], blank: bool
) -> None:
    """Nobody reports anything; the next request of each file shows what was written. A blank completion changes nothing."""
    settings = settings_.load()
    wanted = settings.train.model_copy(update={"actions": actions})
    monkeypatch.setattr("infra.settings.load", lambda: settings.model_copy(update={"train": wanted}))
    completions = []
    for number in range(12):
        who = {"user": f"{number % 6:032x}", "file": f"{number}.py"}
        start = "".join(f"line_{number}_{i} = {i}\n" for i in range(8))
        text = "" if blank and not number else "written()" if number % 2 else "nonsense"
        completions.append(completion(str(number), prefix=f"{start}x = ", text=text, time=NOW - 60, **who))
        later = f"{start}x = written()\ny = "
        completions.append(completion(f"later {number}", prefix=later, text="wrong()", time=NOW - 30, **who))
    world.ship("a", completions, [])
    assert cycle().version == "2"
    _, sealed = manifest_and_samples(world)
    assert {row.outcome for row in sealed if row.token_ids} <= {"unjudged", "nothing"}
    assert any(row.advantage < 0 for row in sealed) == ("served" in actions)
    options = UpdateSettings.model_validate({"actions": actions})
    taught = taught_by(sealed, options)
    assert [row for row in sealed if row.settled_token_ids] == [row for row in taught if row.settled_token_ids] != []


def test_a_candidate_that_fails_is_registered_as_failed_and_meets_nobody(labelled: World) -> None:
    labelled.candidate = [replace(s, completion="") if i % 2 else s for i, s in enumerate(scores())]
    result = cycle()
    assert (result.result, result.version, result.experiment) == ("refused", "2", "")
    assert "empty: surely empty more often" in result.reason
    assert labelled.logged == [("cycle-000001", False, result.reason.removeprefix("version 2 is not tested: "))]
    assert labelled.registry.aliases == {"champion": "1"}
    assert labelled.registry.client.aliases().experiment is None
    assert labelled.registry.versions["2"]["evaluation"] == "failed"
    assert labelled.store.exists("checkpoints/cycle-000001/checksums.json")
    stored = labelled.store.get_json("cycles/cycle-000001/evaluation.json")
    assert (stored["verdict"], stored["passed"]) == ("failed", False)
    assert choose_parent(labelled.store, lineage(labelled.registry.client.versions()), "1", None) == "1"


def test_an_undecided_candidate_meets_nobody(labelled: World) -> None:
    labelled.candidate = scores(noise=3.0)
    result = cycle()
    assert (result.result, labelled.registry.versions["2"]["evaluation"]) == ("refused", "undecided")
    assert labelled.registry.client.aliases().experiment is None


def test_an_error_in_the_evaluation_leaves_the_candidate_unjudged_and_the_cycle_resumable(labelled: World) -> None:
    labelled.evaluation = EvaluationBroken("judge 'j' failed on 40.0% of the candidate's places")
    with pytest.raises(EvaluationBroken):
        cycle()
    assert list(labelled.registry.versions) == ["1"]
    assert not labelled.store.exists("cycles/cycle-000001/outcome.json")
    assert not labelled.store.exists("cycles/cycle-000001/evaluation.json")
    labelled.evaluation = None
    result = cycle()
    assert (result.cycle, result.result, result.version) == ("cycle-000001", "registered", "2")


def test_an_engine_that_is_away_uses_up_no_resume(labelled: World) -> None:
    labelled.evaluation = EngineAway("http://127.0.0.1:18102/health: HTTP 503")
    for _ in range(MAX_RESUMES + 2):
        state = cycle(return_state=True)
        assert state.name == "WaitingForEngine" and "HTTP 503" in state.message
    assert not labelled.store.exists("cycles/cycle-000001/outcome.json")
    assert not [key for key in labelled.store.objects if key.startswith("cycles/cycle-000001/attempts/")]
    assert list(labelled.registry.versions) == ["1"]
    labelled.evaluation = None
    assert (cycle().version, outcome(labelled).result) == ("2", "registered")


def test_a_cycle_that_goes_on_is_judged_by_the_gate_that_it_was_sealed_with(
    labelled: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    labelled.candidate = [replace(s, completion="") if i % 2 else s for i, s in enumerate(scores())]
    labelled.evaluation = EngineAway("away")
    assert cycle(return_state=True).name == "WaitingForEngine"
    labelled.evaluation, settings = None, settings_.load()
    lax = settings.evaluate.model_copy(update={"gate": Gate(margins=dict.fromkeys((*MARGINS, *UNSET), 9.0))})
    monkeypatch.setattr("infra.settings.load", lambda: settings.model_copy(update={"evaluate": lax}))
    result = cycle()
    assert result.result == "refused" and "empty: surely empty more often" in result.reason
    stored = labelled.store.get_json("cycles/cycle-000001/evaluation.json")
    assert stored["gate"]["margins"]["empty"] == settings.evaluate.gate.margins["empty"]


def test_a_refused_update_ends_the_cycle_and_its_run_with_the_reason(labelled: World) -> None:
    labelled.refusal = "all advantages are 0"
    result = cycle()
    assert (result.result, result.reason) == ("refused", "the update was refused: all advantages are 0")
    assert labelled.logged == [("cycle-000001", False, result.reason)]


@pytest.mark.parametrize(("promising", "parent", "samples"), [(True, "2", 3), (False, "1", 9)])
def test_training_continues_from_a_promising_candidate_with_the_labels_that_it_has_not_seen(
    labelled: World, monkeypatch: pytest.MonkeyPatch, promising: bool, parent: str, samples: int
) -> None:
    cycle()
    prepare_next_cycle(labelled, monkeypatch, promising, "accepted")
    settings = settings_.load()
    monkeypatch.setattr(
        "infra.settings.load",
        lambda: settings.model_copy(update={"collect": settings.collect.model_copy(update={"min_samples": 3})}),
    )
    assert cycle().version == "3"
    assert labelled.trained_from[1] == f"version-{parent}"
    assert labelled.registry.versions["3"]["parent"] == parent
    manifest = Manifest.model_validate(labelled.store.get_json("cycles/cycle-000002/manifest.json"))
    assert (manifest.champion, manifest.parent, manifest.samples.rows) == ("1", parent, samples)
    experiment = labelled.registry.client.aliases().experiment
    assert experiment
    assert (experiment.champion, experiment.challenger) == ("1", "3"), "every candidate is compared with the champion"


def test_a_refused_batch_writes_its_quarantined_rows_and_does_not_train(labelled: World, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = suite.Validation(6, 2, {"1": "logprobs_are_finite"}, ("clocks_agree: clock_skew_seconds is 99",))
    monkeypatch.setattr(suite, "validate", lambda *_: failed)
    with pytest.raises(suite.BatchRefused, match=r"clock_skew_seconds is 99.*s3://tabloop/cycles/cycle-000001/quarantined-"):
        cycle()
    (key,) = labelled.store.keys("cycles/")
    assert [q.completion_id for q in labelled.store.get_rows(key, Quarantined)] == ["1"]
    assert not labelled.trained_on


def test_a_window_of_too_few_users_waits_and_begins_nothing(labelled: World, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settings_.load()
    strict = settings.model_copy(update={"collect": settings.collect.model_copy(update={"max_user_share": 0.5})})
    monkeypatch.setattr("infra.settings.load", lambda: strict)
    state = cycle(return_state=True)
    assert state.name == "WaitingForUsers"
    assert "max_user_share = 0.5 asks for 2 users" in str(state.message)
    light = settings.model_copy(update={"collect": settings.collect.model_copy(update={"max_user_weight": 0.5})})
    monkeypatch.setattr("infra.settings.load", lambda: light)
    state = cycle(return_state=True)
    assert (state.name, labelled.trained_on) == ("WaitingForUsers", [])
    assert "1 users for 2 or more" in str(state.message)
    assert not list(labelled.store.keys("cycles/"))


def test_with_too_few_samples_no_cycle_starts(world: World) -> None:
    state = cycle(return_state=True)
    assert state.name == "TooFewSamples"
    assert set(world.store.objects) == {loop_runs.key("cycle"), cycle_progress.KEY}
    noted = loop_runs.read(world.store)["cycle"]
    assert (noted.state, noted.message, bool(noted.ended), bool(noted.run)) == ("TooFewSamples", state.message, True, True)


def test_a_run_that_trains_notes_its_outcome(labelled: World) -> None:
    cycle(return_state=True)
    assert loop_runs.read(labelled.store)["cycle"].state == "registered"


def test_a_run_that_fails_notes_its_error(world: World) -> None:
    world.registry.aliases.clear()
    assert cycle(return_state=True).is_failed()
    noted = loop_runs.read(world.store)["cycle"]
    assert noted.state == "Failed" and "no alias champion" in noted.message
    assert cycle(return_state=True).is_failed()
    assert loop_runs.read(world.store)["cycle"].failures == 2


def test_no_cycle_starts_during_an_experiment(labelled: World) -> None:
    running = ExperimentRecord(id="e", champion="1", challenger="1", share=0.5, started=NOW)
    labelled.registry.client.set_experiment(running)
    assert cycle(return_state=True).name == "ExperimentRunning"
    assert not labelled.trained_on
