"""Register a candidate: upload its checkpoint and what engines fetch of it (shipped.py), complete its run in MLflow, create a
version with its lineage.

Every step may be repeated: the cycle's id identifies the checkpoint's key, the run and the version. MLflow's client takes
seconds to import, so it is imported inside the function.
"""

import logging
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.model.adapters import BASE_NAME, BaseVersion
from infra.model.showing import FILE
from infra.pages import figures
from infra.records import Decision, Manifest
from infra.registry.checkpoints import optimizer_prefix, prefix_of
from infra.registry.client import LAST_MOVE_TAG, ModelVersion, Registry
from infra.registry.lineage import BASE_TAG, CYCLE_TAG, DATASET_TAG, EVALUATION_TAG, PARENT_TAG, PROJECT_TAG
from infra.settings import Settings, masked
from infra.storage import cycles
from infra.storage.cycles import dataset_id
from infra.storage.store import CHECKSUMS, ObjectStore
from tasks.evaluation.evaluate import Evaluation
from tasks.labels.accounting import account_page
from tasks.labels.measures import measures_table
from tasks.showing import fit as showing
from tasks.showing import report
from tasks.showing.fit import FittedEstimate, Unfitted
from tasks.trainer.run import Candidate
from tasks.versions import review, shipped, tracking
from tasks.versions.shipped import ParentCopy

log = logging.getLogger(__name__)
SECRET = "**********"
OF_SERVING = ("sampling", "challenger_sampling", "showing")
"""Settings of serving that are parameters of a run: how completions were sampled and shown."""
MLFLOW_DIGEST = 32
"""Characters of a data set's id that MLflow stores; a tag of the run holds all of it."""


@dataclass(frozen=True)
class Registered:
    """A candidate in the registry."""

    version: str
    run: str
    """MLflow run id."""


def register(
    store: ObjectStore,
    registry: Registry,
    settings: Settings,
    manifest: Manifest,
    trained: Candidate,
    evaluation: Evaluation,
    parent: Path | None = None,
) -> Registered:
    """Upload, log and register the candidate of a cycle. A tag holds the verdict of the held-out gate.

    Args:
        parent: checkpoint of the manifest's parent, for the delta; None where it was removed.
    """
    existing = [v for v in registry.versions() if v.tags.get(CYCLE_TAG) == manifest.cycle]
    if existing:
        return Registered(existing[0].version, existing[0].tags.get("run", ""))
    prefix, base = upload_candidate(store, registry, manifest, trained), base_of(registry, manifest.parent)
    if trained.optimizer and not store.exists(f"{optimizer_prefix(prefix)}/{CHECKSUMS}"):
        store.put_directory(optimizer_prefix(prefix), trained.optimizer)
    if not trained.adapter:
        from_whole = parent is not None and base.version == manifest.parent
        earlier = ParentCopy(prefix_of(base.source, store.bucket), parent) if parent and from_whole else None
        shipped.ship(store, settings.serving, prefix, trained.checkpoint, earlier)
    dataset = dataset_id(store, manifest.cycle)
    versions = registry.versions()
    run = log_run(settings, store, manifest, dataset, trained, evaluation, versions)
    tags = {
        PARENT_TAG: manifest.parent,
        CYCLE_TAG: manifest.cycle,
        "run": run,
        "manifest": f"s3://{store.bucket}/cycles/{manifest.cycle}/manifest.json",
        DATASET_TAG: dataset,
        "judge": f"{evaluation.candidate['judged']:.3f}",
        EVALUATION_TAG: evaluation.verdict,
        "samples": str(manifest.samples.rows),
        **({BASE_TAG: base.version} if trained.adapter else {}),
        **({PROJECT_TAG: registry.project} if registry.project else {}),
    }
    source = f"s3://{store.bucket}/{prefix}"
    found = review.facts(store, settings, versions, manifest.cycle, run, None)
    return Registered(registry.create_version(source, tags, review.description(found), run).version, run)


def base_of(registry: Registry, version: str) -> BaseVersion:
    """Return the version whose weights a version is an adapter of: itself, if it has weights of its own."""
    found = registry.version(version)
    if base := found.tags.get(BASE_TAG):
        found = registry.version(base)
    return BaseVersion(version=found.version, source=found.source)


def upload_candidate(store: ObjectStore, registry: Registry, manifest: Manifest, trained: Candidate) -> str:
    """Upload what is stored of a cycle's candidate, its adapter or its checkpoint, and return the prefix."""
    if not trained.adapter:
        return upload(store, manifest, trained.checkpoint)
    base = base_of(registry, manifest.parent)
    (trained.adapter / BASE_NAME).write_text(base.model_dump_json(indent=1) + "\n")
    return upload(store, manifest, trained.adapter)


def upload(store: ObjectStore, manifest: Manifest, checkpoint: Path) -> str:
    """Upload a folder as the checkpoint of a cycle, if there is none in the store, and return its prefix."""
    prefix = f"checkpoints/{manifest.cycle}"
    ship_estimate(checkpoint, showing.read(store, manifest))
    if not store.exists(f"{prefix}/{CHECKSUMS}"):
        store.put_directory(prefix, checkpoint)
    return prefix


def describe_again(store: ObjectStore, registry: Registry, settings: Settings, decision: Decision) -> review.Facts | None:
    """Write the description of the version that a decision moves again, with the verdict on its own A/B test, and return what it
    stands on; None for a base, which no cycle made."""
    version = registry.version(decision.experiment.challenger)
    if not (cycle := version.tags.get(CYCLE_TAG)):
        return None
    tested = cycles.experiment_id(cycle, version.version)
    test = decision if decision.experiment.id == tested else cycles.decision_of(store, tested)
    last = version.tags.get(LAST_MOVE_TAG, "")
    found = review.facts(store, settings, registry.versions(), cycle, version.tags.get("run", ""), test, last)
    registry.describe_version(version.version, review.description(found))
    return found


def log_verdict(settings: Settings, found: review.Facts) -> None:
    """Write the review of a version's run again, and log the figures of its A/B test to the run."""
    if not found.run:
        return
    from mlflow.entities import Metric

    client = tracking.connect(settings.registry)
    client.log_text(found.run, review.page(found), review.ARTIFACT)
    if found.decision:
        at = int(found.decision.decided * 1000)
        metrics = [Metric(name, value, at, 0) for name, value in figures.metrics_of(found.decision.verdict)]
        client.log_batch(found.run, metrics=metrics)


def ship_estimate(checkpoint: Path, fitted: FittedEstimate | Unfitted) -> None:
    """Put the cycle's keep estimate into a checkpoint, in place of its parent's, which came with the tokenizer."""
    file = checkpoint / FILE
    file.unlink(missing_ok=True)
    if isinstance(fitted, FittedEstimate):
        file.write_text(fitted.estimate.model_dump_json(indent=1) + "\n")


def log_run(
    settings: Settings,
    store: ObjectStore,
    manifest: Manifest,
    dataset: str,
    trained: Candidate,
    evaluation: Evaluation,
    versions: Sequence[ModelVersion] = (),
) -> str:
    """Log settings, metrics, data set, accounting, review and the validation's pages to a cycle's run, end it, return its id."""
    from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, Param, RunTag

    client = tracking.connect(settings.registry)
    run = tracking.run_of(client, settings.registry.model, manifest.cycle)
    tracking.log_steps(client, run, trained.metrics.steps, manifest.created)
    now = int(manifest.created * 1000)
    figures = flat_metrics(manifest, trained, evaluation) | report.metrics(showing.read(store, manifest))
    metrics = [Metric(k, v, now, 0) for k, v in figures.items() if math.isfinite(v)]
    # MLflow changes no parameter of a run: one that an earlier attempt logged stays, also where its setting changed since.
    logged = client.get_run(run).data.params
    params = [Param(k, v[:500]) for k, v in flat_params(settings).items() if k not in logged]
    tags = [
        *(RunTag(PARENT_TAG, manifest.parent), RunTag("judge", evaluation.judge), RunTag(EVALUATION_TAG, evaluation.verdict)),
        *(RunTag(DATASET_TAG, dataset), RunTag("code", manifest.code)),
    ]
    for start in range(0, max(len(params), 1), 90):
        client.log_batch(run, metrics=metrics if start == 0 else [], params=params[start : start + 90], tags=tags)
    data = Dataset(
        name=manifest.cycle,
        digest=dataset[:MLFLOW_DIGEST],
        source_type="s3",
        source=f'{{"uri": "{manifest.samples.key}"}}',
    )
    client.log_inputs(run, [DatasetInput(data, [InputTag("mlflow.data.context", "training")])])
    try:
        whole = review.page(review.facts(store, settings, versions, manifest.cycle, run, None))
        for path, text in (run_artifacts(store, manifest) | {review.ARTIFACT: whole}).items():
            client.log_text(run, text, path)
    except Exception as error:  # monitoring must not stop the cycle
        log.warning("MLflow: artifacts of %s: %s", manifest.cycle, error)
    tracking.end(client, run, "FINISHED" if evaluation.passed else "FAILED", evaluation.reason)
    return run


def run_artifacts(store: ObjectStore, manifest: Manifest) -> dict[str, str]:
    """Return the run's artifacts by path: the manifest, its requests by bucket, its measures, its estimate with the
    reliability diagram, the pages of the validation, the evaluation.
    """
    pages = {f"data_docs/{cycles.docs_name(key)}": store.get(key).decode() for key in manifest.docs if store.exists(key)}
    key, fitted = cycles.key(manifest.cycle, "evaluation.json"), showing.read(store, manifest)
    if store.exists(key):
        pages["evaluation.json"] = store.get(key).decode()
    return {
        "manifest.json": manifest.model_dump_json(indent=2),
        "requests.md": account_page(manifest),
        "measures.md": f"# {manifest.cycle}: what completions were worth\n\n{measures_table(manifest)}",
        "showing.md": report.page(fitted),
        **({"showing.svg": report.chart(fitted)} if isinstance(fitted, FittedEstimate) else {}),
        **pages,
    }


def flat_metrics(manifest: Manifest, trained: Candidate, evaluation: Evaluation) -> dict[str, float]:
    """Return a cycle's metrics by name."""
    metrics: dict[str, float] = {f"bucket.{name}": float(count) for name, count in manifest.buckets.items() if count}
    metrics["requests"] = float(manifest.requests)
    of_all = next((group.measures.ratios() for group in manifest.measures if group.by == "all"), {})
    metrics |= {f"measure.{name}": value for name, value in of_all.items() if value is not None}
    metrics |= {f"candidate.{name}": value for name, value in evaluation.candidate.items()}
    metrics |= {f"champion.{name}": value for name, value in evaluation.champion.items()}
    if manifest.acceptance:
        metrics |= {f"acceptance.{name}": float(value) for name, value in manifest.acceptance.model_dump().items()}
    figures = trained.metrics.model_dump(exclude={"steps", "notes", "seconds"})
    metrics |= {f"train.{name}": float(value) for name, value in figures.items() if value is not None}
    metrics |= {f"gate.{metric_name(f.name)}": f.difference for f in evaluation.findings if f.difference is not None}
    return metrics | {f"train.seconds.{name}": value for name, value in trained.metrics.seconds.items()}


def metric_name(name: str) -> str:
    """Return a name of the characters that MLflow allows in metrics."""
    return re.sub(r"[^\w .:/-]", "", name)


def flat_params(settings: Settings) -> dict[str, str]:
    """Return the resolved settings by dotted name that a version depends on: no secrets, addresses and limits of servers."""

    def walk(prefix: str, value: Any) -> dict[str, str]:
        if isinstance(value, dict) and value:
            return {k: v for name, inner in value.items() for k, v in walk(f"{prefix}.{name}" if prefix else name, inner).items()}
        return {} if value == SECRET else {prefix: masked(str(value))}

    found = settings.model_dump(mode="json", exclude={"stack", "store", "orchestration", "registry", "retention"})
    found["serving"] = {name: found["serving"][name] for name in OF_SERVING}
    return walk("", found)
