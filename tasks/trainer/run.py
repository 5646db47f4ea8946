"""The training step of a cycle: starts the trainer's processes on the cycle's samples and follows their output.

When the flow is stopped or killed, all trainer processes end: the flow ends torchrun, and the workers end with torchrun.
"""

import os
import re
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from pydantic import ValidationError

from infra.model import architectures
from infra.records import Manifest
from infra.settings import ROOT
from infra.settings import path as settings_path
from infra.settings.training import Recipe, Train
from infra.storage.store import Corrupt, ObjectStore, sha256
from tasks.trainer import nodes
from tasks.trainer.job import (
    ADAPTER_NAME,
    CHECKPOINT_NAME,
    JOB_NAME,
    METRICS_NAME,
    OPTIMIZER_NAME,
    REFUSED_NAME,
    Job,
    Metrics,
)
from tasks.trainer.options import UpdateSettings
from tasks.trainer.worker import end_with_parent

LOG_NAME = "trainer.log"
TAIL_LINES, MOST_ERRORS = 40, 8
REPEATED_LINES = re.compile(r"^(step|trainer:|.*Error)")
"""Lines of the trainer's output that the flow repeats; the log file has all lines."""
STOP_SECONDS = 10.0
"""Seconds between SIGTERM and SIGKILL."""
WATCH_SECONDS = 1.0
"""Seconds between two looks at the other nodes of an update."""


class TrainingFailed(RuntimeError):
    """The trainer ended without writing a checkpoint."""


class PlaceLost(TrainingFailed):
    """The cluster took the place of an update's pods, which says nothing about the update."""


@dataclass(frozen=True)
class Candidate:
    """A trained checkpoint on this machine's disk, not registered yet."""

    checkpoint: Path
    """Folder in Hugging Face layout."""
    metrics: Metrics
    """The update's metrics."""
    seconds: float
    """Wall-clock time of the update."""
    optimizer: Path | None = None
    """Folder of the optimizer's state, with train.keep_optimizer."""
    adapter: Path | None = None
    """Folder of the adapter that the checkpoint has merged, with train.adapter_rank."""


@dataclass(frozen=True)
class UpdateInputs:
    """Inputs of an update beside its samples and its parent."""

    reference: Path | None = None
    """Checkpoint of the KL term's reference policy; none: the parent's."""
    optimizer: Path | None = None
    """Folder of the optimizer's state at the parent's checkpoint; none: the optimizer starts new."""
    base: Path | None = None
    """Checkpoint that the parent is an adapter of, with `adapter`."""
    adapter: Path | None = None
    """Folder of the parent's adapter, which the update trains on; none: a new adapter of the parent's weights."""
    weight_shares: Mapping[str, float] = field(default_factory=dict)
    """Largest share of the settled text's weight by the field that names the group (tasks/labels/shares.py); empty: no limit."""


NO_INPUTS = UpdateInputs()


@dataclass(frozen=True)
class TrainerOutput:
    """Destinations of an update's output."""

    folder: Path
    """Working folder of the cycle; gets samples, job, log and results."""
    say: Callable[[str], None] = print
    """Receives the lines of the trainer's output that the flow repeats."""


@dataclass(frozen=True)
class UpdateRefused:
    """The update is refused because these samples would harm the weights (tasks/trainer/update/safety.py)."""

    reason: str
    """Reason as the trainer states it."""


def train(
    store: ObjectStore, manifest: Manifest, parent: Path, settings: Train, output: TrainerOutput, inputs: UpdateInputs = NO_INPUTS
) -> Candidate | UpdateRefused:
    """Train the cycle's candidate from its parent's checkpoint; what an earlier run has made whole in this folder is taken.

    Args:
        parent: checkpoint of the manifest's parent.

    Raises:
        UnsupportedCheckpoint: the parent has another architecture, or tensors are missing or left over.
        Corrupt: the samples do not have the manifest's checksum.
        TrainingFailed: the trainer failed; the message has the end of its log.
    """
    folder = output.folder
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    samples = folder / "samples.parquet"
    body = store.get(manifest.samples.key)
    if (digest := sha256([body])) != manifest.samples.sha256:
        raise Corrupt(
            f"s3://{store.bucket}/{manifest.samples.key}: SHA-256 {digest}, the manifest says {manifest.samples.sha256}"
        )
    wanted = job_of(folder, parent, samples, manifest.parent, settings, inputs)
    if _is_made(wanted, digest):
        output.say(f"trainer: {folder} holds the update already, made by an earlier run")
        return _candidate(folder, settings)
    (folder / METRICS_NAME).unlink(missing_ok=True)  # of another job
    samples.write_bytes(body)
    architectures.check(parent)
    job = write_job(folder, parent, samples, manifest.parent, settings, inputs)
    refused = folder / REFUSED_NAME
    refused.unlink(missing_ok=True)
    try:
        _launch(job, settings, output)
    except TrainingFailed:
        # No retry: the same samples would be refused again.
        if refused.exists():
            return UpdateRefused(refused.read_text())
        raise
    checkpoint, metrics = folder / CHECKPOINT_NAME, folder / METRICS_NAME
    if not metrics.exists() or not checkpoint.is_dir():
        raise TrainingFailed(
            f"trainer: exit status 0, but no {metrics.name} or {checkpoint.name} in {folder}; see its log {folder / LOG_NAME}"
        )
    return _candidate(folder, settings)


def _is_made(wanted: Job, samples_sha256: str) -> bool:
    """Return whether a job was carried out whole on these samples: its run was killed since, or waits for the evaluation."""
    job, metrics = wanted.output / JOB_NAME, wanted.output / METRICS_NAME
    if not all(file.exists() for file in (job, wanted.samples, metrics, wanted.output / CHECKPOINT_NAME)):
        return False
    try:
        Metrics.model_validate_json(metrics.read_text())
    except ValidationError:  # of another release
        return False
    return job.read_text() == wanted.model_dump_json(indent=2) and sha256([wanted.samples.read_bytes()]) == samples_sha256


def _candidate(folder: Path, settings: Train) -> Candidate:
    """Return what an update has written into its folder."""
    result = Metrics.model_validate_json((folder / METRICS_NAME).read_text())
    optimizer = folder / OPTIMIZER_NAME if settings.keep_optimizer else None
    adapter = folder / ADAPTER_NAME if settings.adapter_rank else None
    return Candidate(folder / CHECKPOINT_NAME, result, sum(result.seconds.values()), optimizer, adapter)


def _launch(job: Path, settings: Train, output: TrainerOutput) -> None:
    """Run the processes of an update on this machine, and with `nodes` above 1 those of the other nodes.

    Raises:
        TrainingFailed: processes failed; with several nodes, the message has each node's own error.
    """
    log = output.folder / LOG_NAME
    if settings.nodes == 1:
        follow(command(job, settings.processes), log, settings.environment, output.say)
        return
    shared = settings_path(settings.folder)
    with nodes.announced(shared, job) as update:
        watch = nodes.FlowWatch(shared, update)
        try:
            follow(nodes.command(update, settings, flow=True), log, settings.environment, output.say, watch)
        except TrainingFailed as error:
            reports = nodes.awaited_reports(job.parent, settings.nodes)
            raise TrainingFailed(f"{error}\n{reports}" if reports not in str(error) else str(error)) from error


def write_job(
    folder: Path, parent: Path, samples: Path, version: str, settings: Recipe, inputs: UpdateInputs = NO_INPUTS
) -> Path:
    """Write job.json (`job_of`) into the output folder; return its path. Raises ValueError, as `job_of`."""
    path = folder / JOB_NAME
    path.write_text(job_of(folder, parent, samples, version, settings, inputs).model_dump_json(indent=2))
    return path


def job_of(folder: Path, parent: Path, samples: Path, version: str, settings: Recipe, inputs: UpdateInputs = NO_INPUTS) -> Job:
    """Return the job of an update, with the options of the settings and the defaults of all others.

    Raises:
        ValueError: train.megatron_arguments has an argument that the trainer sets itself.
    """
    known = type(settings).model_fields.keys() & UpdateSettings.model_fields.keys()
    options = {name: getattr(settings, name) for name in known}
    return Job(
        checkpoint=parent,
        samples=samples,
        output=folder,
        current_version=version,
        reference=inputs.reference,
        optimizer=inputs.optimizer,
        base=inputs.base,
        adapter=inputs.adapter,
        weight_shares=inputs.weight_shares,
        **options,
    )


def command(job: Path, processes: int) -> tuple[str, ...]:
    """Return the command that runs a job file."""
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(processes))
    return (sys.executable, *launcher, "-m", "tasks.trainer.worker", "--job", str(job))


def follow(
    command: tuple[str, ...],
    log: Path,
    environment: dict[str, str],
    say: Callable[[str], None],
    watch: Callable[[], str] | None = None,
    *,
    every_line: bool = False,
) -> None:
    """Run a command in its own process group, copy its output to a log, and end the whole group with it.

    Args:
        environment: variables added to this process's own.
        say: receives the lines that match REPEATED_LINES.
        watch: called each second; the group ends for the reason that it returns.
        every_line: `say` receives all lines.

    Raises:
        TrainingFailed: its exit status is not 0, or `watch` gave a reason.
    """
    tail: deque[str] = deque(maxlen=TAIL_LINES)
    errors: list[str] = []
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
        ended, reasons = threading.Event(), list[str]()
        watcher = threading.Thread(target=_watch, args=(process, watch, ended, reasons)) if watch else None
        if watcher:
            watcher.start()
        try:
            for line in process.stdout:
                copy.write(line)
                copy.flush()
                tail.append(line)
                repeated = REPEATED_LINES.search(line)
                if repeated or every_line:
                    say(line.rstrip("\n"))
                if repeated and not line.startswith("step") and len(errors) < MOST_ERRORS:
                    errors.append(line)
            code = process.wait()
        finally:
            ended.set()
            if watcher:
                watcher.join()
            end_group(process)
            process.stdout.close()
    if reasons:
        raise TrainingFailed(f"trainer: ended, because {reasons[0]}")
    if code:
        shown = " ".join(command)
        # torchrun's own report, many lines for each rank, comes after the rank's error.
        first = f"its first errors:\n{''.join(errors)}" if errors else ""
        end = f"the end of {log}:\n{''.join(tail)}"
        raise TrainingFailed(f"trainer: exit status {code}; {first}{end}\nto run it alone: {shown}")


def _watch(process: "subprocess.Popen[str]", watch: Callable[[], str], ended: threading.Event, reasons: list[str]) -> None:
    """Call `watch` each second until the process has ended; end its group for a reason."""
    while not ended.is_set():
        try:
            reason = watch()
        except OSError as error:  # without the shared disk, a lost process is never noticed
            reason = str(error)
        if reason:
            reasons.append(reason)
            end_group(process)
            return
        ended.wait(WATCH_SECONDS)


def end_group(process: "subprocess.Popen[str]") -> None:
    """End the remaining processes of a group: SIGTERM, then SIGKILL after STOP_SECONDS."""
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
