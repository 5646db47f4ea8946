"""A cycle's run in a real MLflow, on SQLite, holds its data set, its request accounting and its Data Docs."""

from dataclasses import replace
from pathlib import Path

import pytest

from infra.model.showing import Estimate
from infra.records import MeasuredGroup, Measures
from infra.settings import Settings
from infra.settings.schema import Registry
from infra.storage import cycles
from infra.storage.store import sha256, to_parquet
from tasks.evaluation.evaluate import Evaluation
from tasks.showing import fit as showing
from tasks.showing.fit import FittedEstimate, Unfitted, fit
from tasks.steps import transaction
from tasks.trainer.run import Candidate
from tasks.validation import quarantine
from tasks.versions.register import log_run, ship_estimate
from tests.tasks.made import NOW, MemoryStore, metrics, sample
from tests.tasks.showing.test_fit import made
from tests.tasks.steps.test_transaction import FIELDS

MEASURES = {"judged": 6.0}
GROUP = MeasuredGroup(by="all", name="", measures=Measures(requests=8, shown=4, accepted=1, kept_characters=20))


def test_the_run_names_the_data_set_and_holds_the_reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # MLflow writes artifacts into the working directory
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    settings = Settings(registry=Registry().model_copy(update={"uri": f"sqlite:///{tmp_path}/mlflow.db"}))
    store = MemoryStore()
    docs = quarantine.write_docs(store, "cycle-000001", {"samples": "<html>rows</html>", "batch": "<html>batch</html>"})
    fields = FIELDS | {
        "docs": docs,
        "code": "0.1.0+test",
        "buckets": {"trained": 1, "stale": 3},
        "requests": 4,
        "created": NOW,
        "measures": (GROUP,),
    }
    manifest = transaction.seal(store, "cycle-000001", fields, to_parquet([sample()]), settings)
    fitted = fit(made(400))
    assert isinstance(fitted, FittedEstimate)
    showing.write(store, "cycle-000001", manifest.samples.sha256, fitted)
    dataset = cycles.dataset_id(store, "cycle-000001")
    assert dataset == sha256([store.get("cycles/cycle-000001/manifest.json")])

    evaluation = Evaluation("reference", MEASURES, MEASURES, "passed", "fine")
    arguments = (settings, store, manifest, dataset, Candidate(tmp_path, metrics(samples=1, tokens=2), 1.0), evaluation)
    run_id = log_run(*arguments)
    assert log_run(*arguments) == run_id, "a cycle has one run"
    changed = settings.model_copy(update={"experiment": settings.experiment.model_copy(update={"share": 0.3})})
    assert log_run(changed, *arguments[1:]) == run_id, "a setting may change before a step is repeated"

    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=settings.registry.uri)
    logged = client.get_run(run_id)
    assert (logged.data.tags["manifest_sha256"], logged.data.tags["code"]) == (dataset, "0.1.0+test")
    assert (logged.info.status, logged.data.tags["reason"]) == ("FINISHED", "fine")
    assert logged.data.metrics["bucket.stale"] == 3
    assert logged.inputs
    assert {i.dataset.digest for i in logged.inputs.dataset_inputs} == {dataset[:32]}
    assert logged.data.metrics["showing.calibration_error"] == pytest.approx(fitted.reliability.error)
    names = ("requests.md", "measures.md", "data_docs/samples.html", "showing.md", "showing.svg")
    pages = {path: Path(client.download_artifacts(run_id, path)).read_text() for path in names}
    assert f"calibration error {fitted.reliability.error:.4f}" in pages["showing.md"]
    chart = pages["showing.svg"]
    assert (
        chart.startswith("<svg ")
        and ' xmlns="http://www.w3.org/2000/svg"' in chart
        and chart.count("<circle") == len(fitted.reliability.bins)
    )
    assert "| stale | 3 | 75.0% |" in pages["requests.md"]
    assert (logged.data.metrics["measure.accepted_per_request"], logged.data.metrics["measure.accepted_per_shown"]) == (
        0.125,
        0.25,
    )
    assert "measure.completed_share" not in logged.data.metrics, "what was typed is not known"
    assert "| all |  | 8 | 0.125 | 0.25 | 0.5 | 2.5 | - | 0 | 0 |" in pages["measures.md"]
    assert pages["data_docs/samples.html"] == "<html>rows</html>"

    refused = replace(evaluation, verdict="undecided", reason="worse")
    assert log_run(*arguments[:-1], refused) == run_id
    logged = client.get_run(run_id)
    assert (logged.info.status, logged.data.tags["reason"]) == ("FAILED", "worse")
    assert {a.path for a in client.list_artifacts(run_id)} == {
        "data_docs",
        "manifest.json",
        "measures.md",
        "requests.md",
        "review.md",
        "showing.md",
        "showing.svg",
    }


def test_a_checkpoint_has_the_estimate_of_its_own_cycle_and_never_its_parents(tmp_path: Path) -> None:
    fitted = fit(made(400))
    assert isinstance(fitted, FittedEstimate)
    file = tmp_path / "showing.json"
    file.write_text("the parent's")
    ship_estimate(tmp_path, fitted)
    assert Estimate.model_validate_json(file.read_text()) == fitted.estimate
    ship_estimate(tmp_path, Unfitted(reason="few"))
    assert not file.exists()
