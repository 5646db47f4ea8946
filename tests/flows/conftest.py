"""Prefect's own server for the tests of the flows, and a store and a registry in memory for their steps."""

import pkgutil
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from prefect import Task
from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings
from prefect.testing.utilities import prefect_test_harness

from infra.records import Completion, Feedback, Verdict
from infra.settings import ROOT, Settings
from infra.settings.schema import Collect, Evaluate, Experiment, Orchestration
from infra.stack.parts import unused_services
from infra.storage.store import Unreachable
from tasks import steps
from tasks.evaluation import evaluate, training_overlap
from tasks.evaluation.cycle_sets import ScoredSet
from tasks.evaluation.heldout import build
from tasks.evaluation.scores import PositionScore
from tasks.evaluation.scoring import ScoredModels
from tasks.experiments.moves import release
from tasks.steps import context
from tasks.steps.context import Context
from tasks.trainer import run
from tasks.validation import suite
from tasks.versions import register, tracking
from tests.tasks.evaluation.made_scores import PLACES, scored_models, scores
from tests.tasks.made import NOW, MemoryRegistry, MemoryStore, completion, decision, feedback, metrics

PACKAGES, SHINGLES = cache(build._packages), cache(training_overlap.shingles_of_place)
"""The held-out places of the installed packages, and their shingles: the same in every cycle."""


@pytest.fixture(scope="package")
def prefect() -> Iterator[None]:
    start = subprocess.Popen

    def start_stacks_app(args: list[str], **options: Any) -> subprocess.Popen:
        args[args.index("prefect.server.api.server:create_app")] = "tests.flows.prefect_server:create_app"
        unused = unused_services(Settings(orchestration=Orchestration(webhook="http://127.0.0.1:1/")))
        options["env"] |= {f"PREFECT_SERVER_SERVICES_{service}_ENABLED": "false" for service in unused}
        return start(args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess, "Popen", start_stacks_app)
        with prefect_test_harness(server_startup_timeout=300), temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
            patch.undo()
            for step in every_step():
                patch.setattr(step, "retry_delay_seconds", 0.05)
            yield


def every_step() -> Iterator[Task[..., Any]]:
    """Return the steps of the flows, whose retries wait two seconds each."""
    for module in pkgutil.iter_modules(steps.__path__):
        yield from (value for value in vars(import_module(f"tasks.steps.{module.name}")).values() if isinstance(value, Task))


@dataclass
class World:
    """Store and registry in memory; stand-ins replace training, held-out scores and MLflow's runs."""

    store: MemoryStore = field(default_factory=MemoryStore)
    registry: MemoryRegistry = field(default_factory=lambda: MemoryRegistry(v1={}))
    trained_on: list[str] = field(default_factory=list)
    """Checksum of the samples of each training."""
    trained_from: list[str] = field(default_factory=list)
    """Name of the folder of each training's parent checkpoint."""
    training: BaseException | None = None
    """Exception that training raises."""
    refusal: str = ""
    """Reason for which the trainer refuses every update; empty: it refuses none."""
    candidate: Sequence[PositionScore] = field(default_factory=scores)
    """Scores of candidates; the champion's are `scores()`."""
    evaluation: BaseException | None = None
    """Exception that the held-out evaluation raises."""
    logged: list[tuple[str, bool, str]] = field(default_factory=list)
    """MLflow's runs that have ended: cycle, whether it has a candidate, reason."""

    def scored(self, held_out: Sequence[ScoredSet]) -> ScoredModels:
        """Return the scores of candidate and champion."""
        if self.evaluation:
            raise self.evaluation
        return scored_models(self.candidate, sum(len(one.scored) for one in held_out))

    def ship(self, segment: str, completions: list[Completion], events: list[Feedback]) -> None:
        """Put completions and feedback into the store, in the hour of NOW."""
        self.store.put_rows(f"events/completions/date=2027-01-15/hour=08/{segment}.parquet", completions)
        self.store.put_rows(f"events/feedback/date=2027-01-15/hour=08/{segment}.parquet", events)

    def lose_answer(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        """Let the store go away once it has written an object of this name."""
        put_new = self.store.put_new

        def unanswered(key: str, body: bytes) -> str:
            digest = put_new(key, body)
            if key.endswith(f"/{name}"):
                raise Unreachable("it is written, and no answer came")
            return digest

        monkeypatch.setattr(self.store, "put_new", unanswered)

    def reject(self, reason: str, promising: bool = False) -> None:
        """End the running experiment with a rejection."""
        running = self.registry.client.aliases().experiment
        assert running
        verdict = Verdict(verdict="reject", reason=reason, promising=promising)
        release.conclude(self.store, self.registry.client, decision(running, verdict, NOW + 200))


@pytest.fixture
def world(prefect: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> World:
    world = World()
    world.registry.aliases["champion"] = "1"
    monkeypatch.setattr(
        context, "connect", lambda settings: Context(settings, world.store, world.registry.client, lambda: time.time())
    )
    monkeypatch.setattr(time, "time", lambda: NOW + 100)
    monkeypatch.setattr(build, "_packages", PACKAGES)
    monkeypatch.setattr(training_overlap, "shingles_of_place", SHINGLES)
    settings = Settings(
        collect=Collect(settle_seconds=10, min_samples=4, max_user_share=1, max_user_weight=1),
        train=Settings().train.model_copy(update={"folder": tmp_path}),
        evaluate=Evaluate(samples=PLACES),
        experiment=Experiment(min_requests=50, min_users=5, min_history_requests=0, shadow_requests=0, ramp=(), watch_seconds=0),
    )
    monkeypatch.setattr("infra.settings.load", lambda: settings)

    def trainer(store, manifest, parent, train_settings, output, inputs):
        world.trained_on.append(manifest.samples.sha256)
        world.trained_from.append(parent.name)
        if world.training:
            raise world.training
        if world.refusal:
            return run.UpdateRefused(world.refusal)
        output.folder.mkdir(parents=True, exist_ok=True)
        checkpoint = output.folder / "checkpoint"
        checkpoint.mkdir(exist_ok=True)
        (checkpoint / "model.safetensors").write_text(f"weights {len(world.trained_on)}")
        return run.Candidate(checkpoint, metrics(), 1.0)

    monkeypatch.setattr(run, "train", trainer)

    def checkpoint(context, version):
        folder = tmp_path / f"version-{version}"
        folder.mkdir(exist_ok=True)
        (folder / "model.safetensors").write_text(f"version {version}")
        shutil.copy(ROOT / context.settings.model.base / "tokenizer.json", folder)
        return folder

    monkeypatch.setattr(Context, "checkpoint", checkpoint)
    monkeypatch.setattr(evaluate, "score", lambda *given: world.scored(given[-1].held_out))
    monkeypatch.setattr(suite, "validate", lambda samples, *_: suite.Validation(len(samples), 0, {}, ()))

    def log_run(settings, store, manifest, dataset, trained, evaluation, versions):
        world.logged.append((manifest.cycle, evaluation.passed, evaluation.reason))
        return "run"

    monkeypatch.setattr(register, "log_run", log_run)
    monkeypatch.setattr(tracking, "log_steps_live", lambda settings, cycle, say, warn: nullcontext(say))
    monkeypatch.setattr(tracking, "give_up", lambda settings, cycle, reason: world.logged.append((cycle, False, reason)))
    return world


@pytest.fixture
def labelled(world: World) -> World:
    """Six requests, all with feedback."""
    completions = [completion(str(i), prefix=f"{i} = ") for i in range(6)]
    events = [feedback(str(i), prefix=f"{i} = ", outcome="accepted" if i % 2 else "rejected") for i in range(6)]
    world.ship("a", completions, events)
    return world
