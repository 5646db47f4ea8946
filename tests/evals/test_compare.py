"""The comparison of models: by command with real checkpoints, its report, its run in MLflow, and what it keeps."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from evals import completions
from evals.compare import models, report, runs
from evals.compare.__main__ import main
from evals.compare.comparison import Comparison, compare
from evals.compare.models import UnknownModel, find_models
from evals.compare.scoring import score_models
from evals.completions import Conditions, NoWeights, completions_of, set_sha256
from evals.drift import drifts_of
from evals.evaluation import held_out_positions
from evals.gate import judge_candidate
from evals.positions import Position
from infra import settings as configuration
from infra.settings import Settings
from infra.settings.schema import Evaluate, Gate, GateMargins, Model, Registry, Sampling, Serving
from tests.evals.checkpoints import write_checkpoint
from tests.evals.made_scores import PLACES, scored_models, scores
from tests.tasks.made import MemoryRegistry, MemoryStore

MODEL = Model(fim_order="spm", max_prefix_tokens=40, max_suffix_tokens=12)
CONDITIONS = Conditions(Sampling(temperature=0.7, max_tokens=5), MODEL, 1)


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("models")
    return [write_checkpoint(folder / f"model_{seed}", seed) for seed in (0, 1)]


def compared() -> Comparison:
    """Return a champion beside a model that is worse at every second place, with a text that HTML must escape."""
    worse = [replace(s, edit_similarity=0.0, completion="<b>&") if i % 2 else s for i, s in enumerate(scores())]
    places = [Position(s.file, s.offset, "if a < b:\n    ", "", s.truth) for s in scores()]
    return compare(scored_models(worse), places, Gate(min_places=PLACES), examples=2)


def test_a_comparison_has_means_paired_differences_a_verdict_and_examples() -> None:
    found = compared()
    row = next(row for row in found.rows if row.measure.name == "edit_similarity")
    ours, theirs = ([s.edit_similarity for s in rows] for rows in (scores(), scores()[::2]))
    assert row.cells[0].mean.estimate == pytest.approx(sum(ours) / PLACES)
    difference = row.cells[1].difference
    assert row.cells[0].difference is None and difference
    assert difference.estimate == pytest.approx((sum(theirs) - sum(ours)) / PLACES)
    assert difference.low < difference.estimate < difference.high < 0
    assert "drift" not in {row.measure.name for row in found.rows}, "a measure without values has no row"
    assert found.verdicts["candidate"].verdict == "failed"
    assert [e.completion for e in found.examples] == ["<b>&"] * 2, "there is no gain to show"
    assert found.examples[0].change == -max(s.edit_similarity for s in scores()[1::2])


def test_the_page_escapes_and_names_every_guardrail() -> None:
    page = report.page(compared())
    assert "&lt;b&gt;&amp;" in page and "<b>&<" not in page and "a &lt; b" in page
    assert all(finding.name in page for finding in compared().verdicts["candidate"].findings)


def test_the_command_compares_directories(
    checkpoints: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(
        model=MODEL, serving=Serving(sampling=Sampling(max_tokens=5)), registry=Registry(uri=(tmp_path / "runs").as_uri())
    )
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setattr(configuration, "load", lambda: settings)
    arguments = [*map(str, checkpoints), "--samples", "24", "--html", str(tmp_path / "report.html"), "--mlflow"]
    assert main(arguments) == 0
    output = capsys.readouterr().out
    assert "edit_similarity" in output and "model_1 as a candidate: undecided; 24 places" in output
    assert "<h1>" in (tmp_path / "report.html").read_text()
    client = runs.connect(settings.registry)
    experiment = client.get_experiment_by_name("tabloop-comparisons")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.data.params["verdict.1"] == "undecided" and run.data.params["places"] == "24"
    assert "model_1.edit_similarity.difference.low" in run.data.metrics
    table = json.loads(Path(client.download_artifacts(run.info.run_id, runs.TABLE, str(tmp_path))).read_text())
    assert len(table["data"]) == 24 and "model_1: completion" in table["columns"]


def test_one_model_and_unknown_names_are_errors_that_say_what_was_expected(tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        main(["infra/base_model"])
    with pytest.raises(UnknownModel, match=r"expected a directory in Hugging Face layout"):
        find_models([str(tmp_path)], Settings(), None)
    with pytest.raises(UnknownModel, match="named twice"):
        find_models(["infra/base_model", "infra/base_model"], Settings(), None)
    with pytest.raises(NoWeights, match=r"no \*\.safetensors"):
        completions.weights_sha256(tmp_path)


def test_versions_and_aliases_are_downloaded(checkpoints: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, registry = MemoryStore(), MemoryRegistry(v1={"cycle": "one"})
    store.put_directory("checkpoints/one", checkpoints[0])
    registry.aliases["champion"] = "1"
    monkeypatch.setattr(models.Registry, "connect", lambda settings: registry.client)
    settings = Settings(train=Settings().train.model_copy(update={"folder": tmp_path}))
    found = find_models(["champion", "1"], settings, store)
    assert found["champion"] == found["1"] and (found["1"] / "model.safetensors").is_file()
    with pytest.raises(UnknownModel, match="no such alias"):
        find_models(["challenger"], settings, store)


def test_a_champion_is_completed_once_per_weights_set_and_sampling(
    checkpoints: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, places, made = MemoryStore(), held_out_positions(8, 1), []
    complete = completions.complete
    monkeypatch.setattr(completions, "complete", lambda *arguments: made.append(1) or complete(*arguments))
    first = completions_of(checkpoints[0], places, CONDITIONS, store)
    done: list[int] = []
    assert completions_of(checkpoints[0], places, CONDITIONS, store, done.append) == first
    assert (len(made), done, len(store.objects)) == (1, [8], 1)
    warmer = replace(CONDITIONS, sampling=Sampling(temperature=0.9, max_tokens=5))
    others = [
        completions_of(checkpoints[1], places, CONDITIONS, store),
        completions_of(checkpoints[0], places[:7], CONDITIONS, store),
        completions_of(checkpoints[0], places, warmer, store),
        completions_of(checkpoints[0], places, replace(CONDITIONS, seed=2), store),
        completions_of(checkpoints[0], places, replace(CONDITIONS, model=Model(fim_order="psm")), store),
    ]
    assert len(made) == 1 + len(others) == len(store.objects)
    moved = [replace(places[0], truth="another text"), *places[1:]]
    assert set_sha256(moved) != first.places == set_sha256(places)


def test_models_are_scored_at_the_same_places_and_drift_is_computed_where_it_has_a_margin(checkpoints: list[Path]) -> None:
    settings = Settings(
        model=MODEL,
        serving=Serving(sampling=Sampling(max_tokens=5)),
        evaluate=Evaluate(gate=Gate(min_places=24, margins=GateMargins(drift=0.2))),
    )
    places = held_out_positions(24, 1)
    scored = score_models({"a": checkpoints[0], "b": checkpoints[1]}, places, settings)
    assert list(scored.scores) == ["a", "b"] and scored.places == set_sha256(places)
    assert scored.calibration.counts and scored.calibration.auc == 1.0
    drifts = [s.drift for s in scored.scores["b"].by_position]
    assert drifts == pytest.approx(drifts_of(checkpoints[1], checkpoints[0], scored.made["b"], places, MODEL), abs=1e-5)
    assert sum(drifts) / len(drifts) > 0.1, "another model finds these completions less likely"
    candidate, champion = scored.scores["b"].by_position, scored.scores["a"].by_position
    findings = {f.guardrail: f for f in judge_candidate(candidate, champion, settings.evaluate.gate).findings}
    assert findings["drift"].places == 24 and findings["drift"].verdict == "failed", findings["drift"].reason
    own = drifts_of(checkpoints[0], checkpoints[0], scored.made["a"], places, MODEL)
    assert own == pytest.approx([0.0] * len(places), abs=1e-6)
