"""The training step: hands the samples to the trainer's processes and follows them.

A flow that is stopped, or killed, takes all of the trainer along: it ends torchrun, and torchrun's end is that of the workers.
"""

import os
import re
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from infra.records import Manifest
from infra.settings import ROOT
from infra.settings.training import Train
from infra.store import Corrupt, ObjectStore, sha256
from tasks.trainer.job import CHECKPOINT_NAME, JOB_NAME, METRICS_NAME, OPTIMIZER_NAME, REFUSED_NAME, Job, Metrics
from tasks.trainer.worker import end_with_parent

LOG_NAME = "trainer.log"
TAIL_LINES = 40
WORTH_SAYING = re.compile(r"^(step|trainer:|.*Error)")
"""Lines of the trainer's that the flow repeats; the log has all of them."""
STOP_SECONDS = 10.0


class TrainingFailed(RuntimeError):
    """The trainer ended without a checkpoint."""


@dataclass(frozen=True)
class Candidate:
    """A candidate on this machine's disk."""

    checkpoint: Path
    """Hugging Face layout."""
    metrics: Metrics
    seconds: float
    optimizer: Path | None = None
    """The optimizer's state, where it is kept."""


@dataclass(frozen=True)
class UpdateInputs:
    """What an update may lean on beside its samples and its parent."""

    reference: Path | None = None
    """Checkpoint that the KL is taken to; none: the parent's."""
    optimizer: Path | None = None
    """The optimizer's state at the parent's checkpoint; none: it starts from nothing."""


NO_INPUTS = UpdateInputs()


@dataclass(frozen=True)
class UpdateRefused:
    """No candidate: the trainer found that an update from these samples would harm the weights (tasks/trainer/update/safety.py)."""

    reason: str


def train(
    store: ObjectStore,
    manifest: Manifest,
    parent: Path,
    settings: Train,
    folder: Path,
    say: Callable[[str], None] = print,
    aids: UpdateInputs = NO_INPUTS,
) -> Candidate | UpdateRefused:
    """Train the cycle's candidate from its parent's checkpoint.

    Raises:
        Corrupt: the samples are not those of the manifest.
        TrainingFailed: with the end of the trainer's log.
    """
    folder.mkdir(parents=True, exist_ok=True)
    samples = folder / "samples.parquet"
    body = store.get(manifest.samples.key)
    if (found := sha256([body])) != manifest.samples.sha256:
        raise Corrupt(f"s3://{store.bucket}/{manifest.samples.key}: SHA-256 {found}, the manifest says {manifest.samples.sha256}")
    samples.write_bytes(body)
    job = write_job(folder, parent, samples, manifest.parent, settings, aids)
    refused = folder / REFUSED_NAME
    refused.unlink(missing_ok=True)
    try:
        follow(command(job, settings.processes), folder / LOG_NAME, settings.environment, say)
    except TrainingFailed:
        # The same samples would be refused again: trying once more is no use.
        if refused.exists():
            return UpdateRefused(refused.read_text())
        raise
    checkpoint, metrics = folder / CHECKPOINT_NAME, folder / METRICS_NAME
    if not metrics.exists() or not checkpoint.is_dir():
        raise TrainingFailed(
            f"trainer: ended well but left no {metrics.name} or {checkpoint.name} in {folder}; its log: {folder / LOG_NAME}"
        )
    result = Metrics.model_validate_json(metrics.read_text())
    optimizer = folder / OPTIMIZER_NAME
    return Candidate(checkpoint, result, sum(result.seconds.values()), optimizer if settings.keep_optimizer else None)


def write_job(folder: Path, parent: Path, samples: Path, version: str, settings: Train, aids: UpdateInputs = NO_INPUTS) -> Path:
    """The job's file: the training settings that the trainer knows, resolved."""
    shared = {name: value for name, value in settings.model_dump().items() if name in Job.model_fields}
    paths = {"checkpoint": parent, "samples": samples, "output": folder, "reference": aids.reference, "optimizer": aids.optimizer}
    job = Job(current_version=version, **paths, **shared)
    path = folder / JOB_NAME
    path.write_text(job.model_dump_json(indent=2))
    return path


def command(job: Path, processes: int) -> tuple[str, ...]:
    """What runs a job."""
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(processes))
    return (sys.executable, *launcher, "-m", "tasks.trainer.worker", "--job", str(job))


def follow(command: tuple[str, ...], log: Path, environment: dict[str, str], say: Callable[[str], None]) -> None:
    """Run a command in its own process group, copy its output to a log, and end all of the group with it.

    Raises:
        TrainingFailed: it did not end with 0.
    """
    tail: deque[str] = deque(maxlen=TAIL_LINES)
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", **environment}
    with log.open("w") as copy:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
            preexec_fn=partial(end_with_parent, signal.SIGTERM),
        )
        assert process.stdout is not None
        try:
            for line in process.stdout:
                copy.write(line)
                copy.flush()
                tail.append(line)
                if WORTH_SAYING.search(line):
                    say(line.rstrip("\n"))
            code = process.wait()
        finally:
            end_group(process)
    if code:
        again = " ".join(command)
        raise TrainingFailed(f"trainer: exit status {code}; the end of {log}:\n{''.join(tail)}\nto run it alone: {again}")


def end_group(process: "subprocess.Popen[str]") -> None:
    """Stop what is left of a process group: politely, then not."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    if process.poll() is None:
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
