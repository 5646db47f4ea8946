"""The comparison of models: by command with real checkpoints, its report, its run in MLflow, and what it keeps."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from rich.console import Console

from evals.compare import inputs, mlflow_run, report
from evals.compare.checkpoint import scores_table
from evals.compare.comparison import Comparison, compare
from evals.compare.in_process import InProcess
from evals.compare.inputs import UnknownModel, UnknownSet, find_models, named_sets
from infra import settings as configuration
from infra.cli import main
from infra.model.fim import Renderer
from infra.settings import Settings
from infra.settings.schema import Evaluate, Gate, HeldOut, Model, Registry, Sampling, Serving
from tasks.evaluation.gate.verdict import gate_candidate
from tasks.evaluation.heldout.build import held_out_positions
from tasks.evaluation.models.base import NoWeights, weights_sha256
from tasks.evaluation.models.completions import Conditions, completions_of, drifts_of, set_of, set_sha256
from tasks.evaluation.models.generation import Generator
from tasks.evaluation.positions import Position
from tasks.evaluation.scores import summarise
from tasks.evaluation.scoring import Contestant, score_models
from tasks.versions import tracking
from tests.tasks.evaluation import fake_models
from tests.tasks.evaluation.checkpoints import write_checkpoint
from tests.tasks.evaluation.fake_models import FixedText
from tests.tasks.evaluation.made_scores import PLACES, scored_models, scores
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


def test_the_scores_of_a_checkpoint_have_intervals_by_file() -> None:
    """Ten copies of a file's places are no further files: the interval stays as wide, where a standard error would be a third."""
    few, console = scores(), Console(width=100, record=True)
    for rows in (few, few * 10):
        console.print(scores_table(summarise(tuple(rows), "reference", 0.0), "model"))
    shown = [line for line in console.export_text().splitlines() if "edit similarity" in line]
    assert shown[0] == shown[1] and re.search(r"\d%? \[[\d.]+%, [\d.]+%\]", shown[0])


def test_the_values_hold_the_same_figures_as_json() -> None:
    comparison = compared()
    found = json.loads(json.dumps(report.values(comparison), allow_nan=False))
    assert [row["measure"] for row in found["measures"]] == [row.measure.name for row in comparison.rows]
    for row, given in zip(found["measures"], comparison.rows, strict=True):
        base, other = (row["models"][name] for name in comparison.models)
        assert base["difference"] is None and base["mean"]["estimate"] == given.cells[0].mean.estimate
        assert given.cells[1].difference and other["difference"]["estimate"] == given.cells[1].difference.estimate
    assert found["verdicts"].keys() == comparison.verdicts.keys()


def test_the_page_escapes_and_names_every_guardrail() -> None:
    page = report.page(compared())
    assert "&lt;b&gt;&amp;" in page and "<b>&<" not in page and "a &lt; b" in page
    assert all(finding.name in page for finding in compared().verdicts["candidate"].findings)


def test_the_command_compares_directories(
    checkpoints: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = Registry().model_copy(update={"uri": (tmp_path / "runs").as_uri()})  # MLflow's files, in place of a server
    settings = Settings(model=MODEL, serving=Serving(sampling=Sampling(max_tokens=5)), registry=registry)
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setattr(configuration, "load", lambda: settings)
    arguments = [
        *map(str, checkpoints),
        "--samples",
        "24",
        "--html",
        str(tmp_path / "report.html"),
        "--mlflow",
        "--set",
        "packages",
    ]
    assert main(["compare", *arguments]) == 0
    output = capsys.readouterr().out
    assert "edit_similarity" in output and "model_1 as a candidate: undecided; 24 places" in output
    assert "<h1>" in (tmp_path / "report.html").read_text()
    client = tracking.connect(settings.registry)
    experiment = client.get_experiment_by_name("tabloop-comparisons")
    assert experiment
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.data.params["verdict.1"] == "undecided" and run.data.params["places"] == "26"
    assert "model_1.edit_similarity.difference.low" in run.data.metrics
    table = json.loads(Path(client.download_artifacts(run.info.run_id, mlflow_run.TABLE, str(tmp_path))).read_text())
    assert len(table["data"]) == 26 and "model_1: completion" in table["columns"], "two places are for silence"
    assert run.inputs
    (dataset,) = run.inputs.dataset_inputs
    assert dataset.dataset.name == "packages" and len(dataset.dataset.digest) == mlflow_run.DIGEST


CODE = Path(__file__).resolve().parents[1] / "data"


def test_the_places_of_a_comparison_are_those_of_the_settings_sets_by_name_and_language() -> None:
    shop = HeldOut(name="shop", kind="directory", path=CODE / "code", share=1.0, places=30)
    fim = HeldOut(name="fim", kind="humaneval_infilling", path=CODE / "benchmarks/humaneval_infilling.jsonl")
    evaluate = Evaluate(sets=(shop, fim, HeldOut(name="own", kind="team")))
    assert [one.name for one in named_sets(evaluate, [], [], None)] == ["shop", "fim"]
    (go,) = named_sets(evaluate, ["shop"], ["go"], 20)
    assert {place.language for place in go.places} == {"go"} and sum(bool(place.truth) for place in go.places) == 20
    for names, said in ((["own"], "'own'"), (["nothing"], r"expected one of \['fim', 'shop'\]")):
        with pytest.raises(UnknownSet, match=said):
            named_sets(evaluate, names, [], None)
    with pytest.raises(UnknownSet, match="no place in the languages"):
        named_sets(evaluate, ["fim"], ["cobol"], None)


def test_one_model_and_unknown_names_are_errors_that_say_what_was_expected(tmp_path: Path) -> None:
    assert main(["compare", "infra/base_model"]) == 2
    with pytest.raises(UnknownModel, match=r"expected a directory in Hugging Face layout"):
        find_models([str(tmp_path)], Settings(), None)
    with pytest.raises(UnknownModel, match="named twice"):
        find_models(["infra/base_model", "infra/base_model"], Settings(), None)
    with pytest.raises(NoWeights, match=r"no \*\.safetensors"):
        weights_sha256(tmp_path)


def test_versions_and_aliases_are_downloaded(checkpoints: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, registry = MemoryStore(), MemoryRegistry(v1={"cycle": "one"})
    store.put_directory("checkpoints/one", checkpoints[0])
    registry.aliases["champion"] = "1"
    monkeypatch.setattr(inputs.Registry, "connect", lambda settings: registry.client)
    settings = Settings(train=Settings().train.model_copy(update={"folder": tmp_path}))
    found = find_models(["champion", "1"], settings, store)
    assert found["champion"] == found["1"] and (found["1"] / "model.safetensors").is_file()
    with pytest.raises(UnknownModel, match="no such alias"):
        find_models(["challenger"], settings, store)


def test_a_champion_is_completed_once_per_weights_set_and_sampling(tmp_path: Path) -> None:
    store, places, models = MemoryStore(), set_of(held_out_positions(8, 1)), FixedText(lambda *_: "text")
    champion, other = (fake_models.write(tmp_path / name, name) for name in ("champion", "other"))
    first = completions_of(models, champion, places, CONDITIONS, store)
    done: list[int] = []
    assert completions_of(models, champion, places, CONDITIONS, store, done.append).rows == first.rows
    assert (len(models.sampled), done, len(store.objects)) == (1, [8], 1)
    fewer = set_of(places.places[:7])
    others = [
        (other, places, CONDITIONS),
        (champion, fewer, CONDITIONS),
        (champion, places, replace(CONDITIONS, sampling=Sampling(temperature=0.9, max_tokens=5))),
        (champion, places, replace(CONDITIONS, seed=2)),
        (champion, places, replace(CONDITIONS, stop=("\n",))),
        (champion, places, replace(CONDITIONS, truths=True)),
        (champion, places, replace(CONDITIONS, model=Model(fim_order="psm"))),
    ]
    for folder, one, conditions in others:
        completions_of(models, folder, one, conditions, store)
    completions_of(FixedText(lambda *_: "text", name="another engine"), champion, places, CONDITIONS, store)
    assert len(models.sampled) == 1 + len(others) and len(store.objects) == 2 + len(others)
    moved = [replace(places.places[0], truth="another text"), *places.places[1:]]
    assert set_sha256(moved) != set_sha256(places.places) == places.sha256


def test_models_are_scored_at_the_same_places_and_drift_is_computed_where_it_has_a_margin(checkpoints: list[Path]) -> None:
    settings = Settings(
        model=MODEL,
        serving=Serving(sampling=Sampling(max_tokens=5)),
        evaluate=Evaluate(gate=Gate(min_places=24, margins={"drift": 0.2})),
    )
    places, models = set_of(held_out_positions(24, 1)), InProcess(MODEL)
    contestants = {name: Contestant(folder, settings.serving.sampling) for name, folder in zip("ab", checkpoints, strict=True)}
    scored = score_models(contestants, [places], settings, models)
    assert list(scored.scores) == ["a", "b"] and scored.sets == {"held_out": places.sha256}
    assert scored.calibration.counts and scored.calibration.auc == 1.0
    drifts = [s.drift for s in scored.scores["b"].by_position]
    assert sum(cast(list[float], drifts)) / len(drifts) > 0.1, "another model finds these completions less likely"
    assert [s.drift for s in scored.scores["a"].by_position] == [0.0] * 24
    candidate, champion = scored.scores["b"].by_position, scored.scores["a"].by_position
    findings = {f.guardrail: f for f in gate_candidate(candidate, champion, settings.evaluate.gate).findings}
    assert findings["drift"].places == 24 and findings["drift"].verdict == "failed", findings["drift"].reason
    made = completions_of(models, checkpoints[0], places, CONDITIONS)
    own = drifts_of(models, checkpoints[0], checkpoints[0], made, places.places, MODEL, CONDITIONS.sampling)
    assert own == pytest.approx([0.0] * 24, abs=1e-6)


def test_the_true_text_is_scored_by_its_tokens(checkpoints: list[Path]) -> None:
    places, generator = held_out_positions(6, 1), Generator(checkpoints[0], MODEL)
    made = completions_of(InProcess(MODEL), checkpoints[0], set_of(places), replace(CONDITIONS, truths=True))
    renderer = Renderer(generator._tokenizer, "spm", 40, 12)
    for place, row in zip(places, made.rows, strict=True):
        tokens = renderer.encode(place.truth)[:4]  # one less than the most that are sampled
        (logprobs,) = generator.score([(renderer.render(place.prefix, place.suffix), tokens)])
        assert row.truth_logprob == pytest.approx(sum(logprobs) / len(logprobs), abs=1e-4)
