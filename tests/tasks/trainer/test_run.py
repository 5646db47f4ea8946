"""The flow follows the output of the trainer's processes, and no process outlives the flow."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import load_file
from transformers import PreTrainedModel

from infra.model import adapters, architectures
from infra.model.adapter_files import merge
from infra.records import Manifest, ObjectReference, Sample
from infra.settings import ROOT
from infra.settings.training import Train
from infra.storage.store import Corrupt, sha256, to_parquet
from tasks.trainer.run import Candidate, TrainerOutput, TrainingFailed, UpdateInputs, UpdateRefused, follow, train, write_job
from tests.tasks.made import MemoryStore, metrics
from tests.tasks.trainer import models

pytestmark = pytest.mark.stack


def test_the_trainers_output_is_logged_and_its_steps_are_repeated(tmp_path: Path) -> None:
    repeated: list[str] = []
    program = "import os; print('noise'); print('step 1:', os.environ['WITH'])"
    follow((sys.executable, "-c", program), tmp_path / "log", {"WITH": "this"}, repeated.append)
    assert repeated == ["step 1: this"]
    assert (tmp_path / "log").read_text() == "noise\nstep 1: this\n"


def test_a_failure_shows_the_end_of_the_log_and_the_command(tmp_path: Path) -> None:
    program = "print('before'); raise SystemExit(3)"
    with pytest.raises(TrainingFailed, match=r"(?s)exit status 3.*before.*to run it alone: .*-c"):
        follow((sys.executable, "-c", program), tmp_path / "log", {}, print)


@pytest.fixture(scope="module")
def endless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job of two processes that trains until it is stopped."""
    folder = tmp_path_factory.mktemp("endless")
    model = models.tiny()
    model.save_pretrained(folder / "parent")
    (folder / "samples.parquet").write_bytes(to_parquet(models.samples(model, 0.0)))
    settings = Train(epochs=100_000, learning_rate=1e-9)
    return write_job(folder, folder / "parent", folder / "samples.parquet", models.CURRENT, settings)


FLOW = """
import sys
from functools import partial
from pathlib import Path
from prefect.utilities.engine import capture_sigterm
from tasks.trainer.run import command, follow

job = Path(sys.argv[1])
with capture_sigterm():  # as Prefect runs a flow
    follow(command(job, 2), job.with_name("trainer.log"), {}, partial(print, flush=True))
"""


@pytest.mark.parametrize("stopped", ["flow cancelled", "flow killed", "launcher killed"])
def test_no_trainer_process_remains_after_its_flow_or_launcher_is_stopped(endless: Path, stopped: str) -> None:
    processes: list[psutil.Process] = []
    with subprocess.Popen((sys.executable, "-c", FLOW, str(endless)), cwd=ROOT, stdout=subprocess.PIPE, text=True) as flow:
        assert flow.stdout
        try:
            lines = [flow.stdout.readline() for _ in range(3)]
            processes = psutil.Process(flow.pid).children(recursive=True)
            assert len(processes) == 3
            (launcher,) = psutil.Process(flow.pid).children()
            victim = launcher if stopped == "launcher killed" else flow
            victim.send_signal(signal.SIGTERM if stopped == "flow cancelled" else signal.SIGKILL)
            assert all(wait_for_end(process.pid) for process in processes)
            assert flow.wait(60) != 0
        finally:
            flow.kill()
            for process in processes:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
    taken = [line.partition(" of ")[0] for line in lines]
    assert taken == ["step 1", "step 2", "step 3"], "only one of the two processes prints"


def wait_for_end(pid: int) -> bool:
    """Wait until a process has ended; return whether it has."""
    for _ in range(1200):
        try:
            os.kill(pid, 0)
            if Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z":
                return True
        except (ProcessLookupError, FileNotFoundError):
            return True
        time.sleep(0.05)
    return False


def manifest_of(key: str, digest: str) -> Manifest:
    return Manifest(
        cycle="c", created=0, champion="1", parent="1", since=0, until=0, completions=(), feedback=(), buckets={}, requests=0,
        samples=ObjectReference(key=key, sha256=digest, rows=1), settings_sha256="",
    )  # fmt: skip


def test_samples_without_the_manifests_checksum_are_refused(tmp_path: Path) -> None:
    store = MemoryStore()
    store.put("samples", b"changed")
    with pytest.raises(Corrupt, match="the manifest says"):
        train(store, manifest_of("samples", "0" * 64), tmp_path, Train(), TrainerOutput(tmp_path))


def trained(folder: Path, model: PreTrainedModel, samples: list[Sample], settings: Train) -> Candidate | UpdateRefused:
    """Run the training step of a cycle from a model that it saves as `parent`; the working folder is `work`."""
    model.save_pretrained(folder / "parent")
    store, body = MemoryStore(), to_parquet(samples)
    store.put("samples", body)
    return train(store, manifest_of("samples", sha256([body])), folder / "parent", settings, TrainerOutput(folder / "work"))


def test_a_cycle_with_an_adapter_gives_a_checkpoint_as_any_other(tmp_path: Path) -> None:
    model = models.tiny()
    layout = {"processes": 2, "tensor_parallel": 2, "sequence_parallel": True}
    settings = Train(adapter_rank=4, learning_rate=1e-2, stored_mantissa=15, minibatch=4, **layout)
    candidate = trained(tmp_path, model, models.samples(model, 0.0), settings)
    assert isinstance(candidate, Candidate) and candidate.adapter == tmp_path / "work" / "adapter"
    assert candidate.metrics.samples == 12
    architectures.check(candidate.checkpoint)
    merge(tmp_path / "parent", candidate.adapter, tmp_path / "merged")
    stored, merged, parent = (
        load_file(place / "model.safetensors") for place in (candidate.checkpoint, tmp_path / "merged", tmp_path / "parent")
    )
    assert stored.keys() == merged.keys() == parent.keys()
    assert all(torch.equal(stored[name], merged[name]) for name in stored), "and not rounded: no delta is made of it"
    assert max((merged[name] - parent[name]).abs().max().item() for name in merged) > 1e-3, "the adapter has learnt"

    inputs = UpdateInputs(base=tmp_path / "parent", adapter=candidate.adapter)
    store, body = MemoryStore(), to_parquet(models.samples(model, 0.0))
    store.put("samples", body)
    slow, output = Train(adapter_rank=4, learning_rate=1e-9, minibatch=12), TrainerOutput(tmp_path / "next")
    child = train(store, manifest_of("samples", sha256([body])), candidate.checkpoint, slow, output, inputs)
    assert isinstance(child, Candidate) and child.adapter
    first, second = (load_file(folder / adapters.WEIGHTS_NAME) for folder in (candidate.adapter, child.adapter))
    assert all(torch.allclose(first[name], second[name], rtol=0, atol=1e-7) for name in first), "it trains the parent's on"
    merge(tmp_path / "parent", child.adapter, tmp_path / "merged child")


def test_an_update_that_is_made_is_not_made_again_and_another_one_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run may be killed after the update, or wait for the evaluation's engine; the next one goes on with the same candidate."""
    launched: list[str] = []

    def launch(job: Path, settings: Train, output: TrainerOutput) -> None:
        launched.append(f"{settings.learning_rate:g}")
        assert not (job.parent / "metrics.json").exists(), "a run that is killed here leaves no metrics of another job"
        if settings.epochs == 9:
            raise KeyboardInterrupt
        (job.parent / "checkpoint").mkdir(exist_ok=True)
        (job.parent / "metrics.json").write_text(metrics(samples=len(launched)).model_dump_json())

    monkeypatch.setattr("tasks.trainer.run._launch", launch)
    model, slow, fast = models.tiny(), Train(learning_rate=1e-6), Train(learning_rate=1e-4)
    rows = models.samples(model, 0.0)
    first, second = (trained(tmp_path, model, rows, slow) for _ in range(2))
    assert first == second and launched == ["1e-06"]
    assert trained(tmp_path, model, rows, fast) != first and launched == ["1e-06", "0.0001"]
    trained(tmp_path, model, rows[:-1], fast)
    assert launched == ["1e-06", "0.0001", "0.0001"], "other samples"
    (tmp_path / "work" / "metrics.json").write_text('{"of another release": 1}')
    trained(tmp_path, model, rows[:-1], fast)
    assert len(launched) == 4
    killed = Train(learning_rate=1e-4, epochs=9)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            trained(tmp_path, model, rows, killed)
    assert len(launched) == 6


SLOW_FIRST_RANK = """
import os, sys, time

def on_event(event, arguments):
    if event == "os.remove" and str(arguments[0]).endswith(".arrow"):
        time.sleep(60)

if os.environ.get("RANK") == "0":
    sys.addaudithook(on_event)
"""
"""The first rank stands still once all ranks have read the samples: no barrier is left before an update is refused."""


@pytest.mark.parametrize("processes", [1, 2])
def test_a_refused_update_is_not_retried(tmp_path: Path, processes: int) -> None:
    """With two processes torchrun ends the slower one, the first rank, as soon as the other one exits."""
    (tmp_path / "sitecustomize.py").write_text(SLOW_FIRST_RANK)
    settings = Train(processes=processes, environment={"PYTHONPATH": f"{ROOT}:{tmp_path}"} if processes == 2 else {})
    model = models.tiny()
    samples = [sample.model_copy(update={"advantage": 0.0}) for sample in models.samples(model, 0.0)]
    result = trained(tmp_path, model, samples, settings)
    assert isinstance(result, UpdateRefused) and "advantage = 0 for each of 12 samples" in result.reason
    assert not (tmp_path / "work" / "checkpoint").exists()
