"""Prefect's own server for the flows' tests, and a small world in memory for their steps."""

import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings
from prefect.testing.utilities import prefect_test_harness

from infra.records import Completion, Feedback, Verdict
from infra.settings import Settings
from infra.settings.schema import Collect, Experiment
from tasks.experiments import release
from tasks.steps import clients
from tasks.trainer import run
from tasks.validation import suite
from tasks.versions import evaluate, register, tracking
from tests.tasks.made import NOW, MemoryRegistry, MemoryStore, completion, decision, feedback, metrics
from tests.tasks.versions.test_evaluate import scores


@pytest.fixture(scope="session")
def prefect() -> Iterator[None]:
    with prefect_test_harness(server_startup_timeout=300), temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
        yield


@dataclass
class World:
    """Store and registry in memory; training, held-out scores and MLflow's runs are played."""

    store: MemoryStore = field(default_factory=MemoryStore)
    registry: MemoryRegistry = field(default_factory=lambda: MemoryRegistry(v1={}))
    trained_on: list[str] = field(default_factory=list)
    """Checksums of the samples that each training was given."""
    trained_from: list[str] = field(default_factory=list)
    """Names of the folders that each training began with."""
    training: BaseException | None = None
    """What training raises."""
    refused: str = ""
    """Why the trainer refuses every update."""
    judged: float = 6.0
    """The judge's score of candidates; the champion's is 6."""
    logged: list[tuple[str, bool, str]] = field(default_factory=list)
    """MLflow's runs that have ended: cycle, whether it has a candidate, reason."""

    def ship(self, segment: str, served: list[Completion], told: list[Feedback]) -> None:
        """Put events of the hour of NOW into the store."""
        self.store.put_rows(f"events/completions/date=2027-01-15/hour=08/{segment}.parquet", served)
        self.store.put_rows(f"events/feedback/date=2027-01-15/hour=08/{segment}.parquet", told)

    def reject(self, reason: str, promising: bool = False) -> None:
        """End the experiment that runs."""
        running = self.registry.client.aliases().experiment
        assert running
        verdict = Verdict(verdict="reject", reason=reason, promising=promising)
        release.conclude(self.store, self.registry.client, decision(running, verdict, NOW + 200))


@pytest.fixture
def world(prefect: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> World:
    made = World()
    made.registry.aliases["champion"] = "1"
    monkeypatch.setattr(clients, "store_of", lambda settings: made.store)
    monkeypatch.setattr(clients, "registry_of", lambda settings: made.registry.client)
    monkeypatch.setattr(time, "time", lambda: NOW + 100)
    settings = Settings(
        collect=Collect(settle_seconds=10, min_samples=4, max_user_share=1, max_user_weight=1),
        train=Settings().train.model_copy(update={"folder": tmp_path}),
        experiment=Experiment(min_requests=50, min_users=5, min_history_requests=0),
    )
    monkeypatch.setattr("infra.settings.load", lambda: settings)

    def trainer(store, manifest, parent, wanted, folder, say, aids):
        made.trained_on.append(manifest.samples.sha256)
        made.trained_from.append(parent.name)
        if made.training:
            raise made.training
        if made.refused:
            return run.UpdateRefused(made.refused)
        folder.mkdir(parents=True, exist_ok=True)
        checkpoint = folder / "checkpoint"
        checkpoint.mkdir(exist_ok=True)
        (checkpoint / "model.safetensors").write_text(f"weights {len(made.trained_on)}")
        return run.Candidate(checkpoint, metrics(), 1.0)

    monkeypatch.setattr(run, "train", trainer)

    def served(settings, version):
        folder = tmp_path / f"version-{version}"
        folder.mkdir(exist_ok=True)
        (folder / "model.safetensors").write_text(f"version {version}")
        return folder

    monkeypatch.setattr(clients, "checkpoint_of", served)
    monkeypatch.setattr(evaluate, "score", lambda settings, path: scores(made.judged if path.name == "checkpoint" else 6.0))
    monkeypatch.setattr(suite, "validate", lambda samples, *_: suite.Validation(len(samples), 0, {}, ()))

    def log_run(settings, store, manifest, dataset, trained, evaluation):
        made.logged.append((manifest.cycle, evaluation.passed, evaluation.reason))
        return "run"

    monkeypatch.setattr(register, "log_run", log_run)
    monkeypatch.setattr(tracking, "log_steps_live", lambda settings, cycle, say, warn: nullcontext(say))
    monkeypatch.setattr(tracking, "give_up", lambda settings, cycle, reason: made.logged.append((cycle, False, reason)))
    return made


@pytest.fixture
def labelled(world: World) -> World:
    """Six requests, all judged."""
    served = [completion(str(i), prefix=f"{i} = ") for i in range(6)]
    told = [feedback(str(i), prefix=f"{i} = ", outcome="accepted" if i % 2 else "rejected") for i in range(6)]
    world.ship("a", served, told)
    return world
