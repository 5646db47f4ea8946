"""A pod of an update that is a Job of Kubernetes (tasks/trainer/cluster): python -m tasks.trainer.pod, with settings and
credentials of the object store.

It fetches the order and what it names, runs its `train.processes` processes by torchrun, and the pod of index 0 uploads what was
trained, the result last. Where it fails, the text of the error is the container's termination message.
"""

import argparse
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from infra import settings as configuration
from infra.model import adapters
from infra.registry import checkpoints
from infra.stack import files
from infra.storage.store import Corrupt, ObjectStore
from tasks.trainer.cluster import order as orders
from tasks.trainer.cluster.order import Order, Result, Stored
from tasks.trainer.job import ADAPTER_NAME, CHECKPOINT_NAME, METRICS_NAME, OPTIMIZER_NAME, REFUSED_NAME, Metrics
from tasks.trainer.run import LOG_NAME, TrainingFailed, UpdateInputs, command, follow, write_job

INDEX_VARIABLE = "JOB_COMPLETION_INDEX"
MEET_SECONDS = 1800
"""Seconds that a pod's launcher waits for those of the other pods, whose images may still be pulled."""
NAMES_SECONDS = 2.0
"""Seconds between two look-ups of the other pods' names."""
MOST_MESSAGE_BYTES = 4000
"""Kubernetes keeps 4,096 bytes of a container's termination message."""
Say = Callable[[str], None]


@dataclass(frozen=True)
class Place:
    """A pod's place in its Job."""

    index: int
    """Completion index: the number of the node, as torchrun counts."""
    meeting: str
    """HOST:PORT of the pod of an index, which stands for {}; empty with one pod."""
    attempt: str
    """Attempt of the Job; a part of the keys of its uploads."""


def run(store: ObjectStore, key: str, digest: str, place: Place, folder: Path, say: Say) -> None:
    """Take part in an update.

    Raises:
        TrainingFailed: the processes ended without a result, or refused the update, which is stored.
        Corrupt: an input has another checksum than the flow says.
    """
    order = orders.read(store, key, digest)
    work = folder / order.cycle
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    job = prepare(store, order, work, folder / "versions")
    say(f"pod {place.index} of {order.train.nodes}: has its inputs")
    target = f"{orders.folder_of(key)}{place.attempt}"
    try:
        follow(_launcher(order, job, place, say), work / LOG_NAME, order.train.environment, say, every_line=True)
    except TrainingFailed:
        if not (refused := work / REFUSED_NAME).exists():
            raise
        # It fails nevertheless, so that its Job ends the other pods at once: their processes wait for these.
        store.put(f"{target}/{orders.REFUSED}", refused.read_text().encode())
        raise
    if place.index == 0:
        _upload(store, target, work)
        say(f"{store.uri(target)}: stored")


def prepare(store: ObjectStore, order: Order, work: Path, versions: Path) -> Path:
    """Download what an order names, and write the trainer's job; return its path."""
    samples = work / "samples.parquet"
    samples.write_bytes(orders.verified(store, order.samples, order.samples_sha256))
    parent = _fetch(store, order.parent, versions)
    adapter = parent / adapters.FOLDER if order.continues_adapter else None
    inputs = UpdateInputs(
        reference=_fetch(store, order.reference, versions) if order.reference else None,
        optimizer=_fetch(store, order.optimizer, versions, "optimizer") if order.optimizer else None,
        base=checkpoints.fetch_base(store, adapter, versions) if adapter else None,
        adapter=adapter,
        weight_shares={str(name): share for name, share in order.weight_shares.items()},
    )
    return write_job(work, parent, samples, order.parent.version, order.train, inputs)


def _fetch(store: ObjectStore, stored: Stored, folder: Path, kind: str = "version") -> Path:
    if (found := store.directory_sha256(stored.prefix)) != stored.sha256:
        raise Corrupt(f"{store.uri(stored.prefix)}: its checksums have the SHA-256 {found}, the flow says {stored.sha256}")
    return checkpoints.fetch_stored(store, stored.prefix, folder, f"{kind}-{stored.version}")


def _launcher(order: Order, job: Path, place: Place, say: Say) -> tuple[str, ...]:
    """Return the command of this pod's processes, once the names of all pods are known: until then others wait for GPUs."""
    train = order.train
    if train.nodes == 1:
        return command(job, train.processes)
    host, _, port = place.meeting.rpartition(":")
    first, *_ = [awaited_address(host.format(index), int(port), say) for index in range(train.nodes)]
    size = ("--nnodes", str(train.nodes), "--nproc_per_node", str(train.processes), "--max_restarts", "0")
    # A static rendezvous gives a pod the rank of its index, so that the first rank is in the pod that uploads.
    at = ("--rdzv_backend", "static", "--node_rank", str(place.index), "--master_addr", first, "--master_port", port)
    of_attempt = ("--rdzv_id", place.attempt, "--rdzv_conf", f"timeout={MEET_SECONDS}")
    worker = ("-m", "tasks.trainer.worker", "--job", str(job), *(("--silent",) if place.index else ()))
    return (sys.executable, "-m", "torch.distributed.run", *size, *at, *of_attempt, *worker)


def awaited_address(host: str, port: int, say: Say) -> str:
    """Return the address of a pod, once its name is known; an IPv6 address stays a name, which torchrun needs."""
    said = False
    while True:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            return next((str(address[0]) for family, *_, address in found if family == socket.AF_INET), host)
        except socket.gaierror as error:
            if not said:
                say(f"waits for {host}: {error}")
            said = True
            time.sleep(NAMES_SECONDS)


def _upload(store: ObjectStore, target: str, work: Path) -> None:
    metrics = work / METRICS_NAME
    if not metrics.exists():
        raise TrainingFailed(f"trainer: exit status 0, but no {metrics.name} in {work}")
    folders = [name for name in (CHECKPOINT_NAME, OPTIMIZER_NAME, ADAPTER_NAME) if (work / name).is_dir()]
    for name in folders:
        store.put_directory(f"{target}/{name}", work / name)
    digests = {name: store.directory_sha256(f"{target}/{name}") for name in folders}
    result = Result(metrics=Metrics.model_validate_json(metrics.read_text()), folders=digests)
    store.put(f"{target}/{orders.RESULT}", result.model_dump_json(indent=2).encode())


def message_of(error: Exception) -> bytes:
    """Return the text of an error, as much as Kubernetes keeps: its beginning, which has the ranks' own errors."""
    name = "" if isinstance(error, TrainingFailed) else f"{type(error).__name__}: "
    return f"{name}{error}".encode()[:MOST_MESSAGE_BYTES]


def main() -> None:
    """Take part in the update of the command line."""
    os.umask(files.PRIVATE)
    # The first process of a container ignores a signal without a handler.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    parser = argparse.ArgumentParser(prog="python -m tasks.trainer.pod", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--order", required=True, help="key of the order in the bucket")
    parser.add_argument("--sha256", required=True, help="SHA-256 of the order")
    parser.add_argument("--attempt", required=True, help="attempt of the Job")
    parser.add_argument("--meet", default="", help="HOST:PORT of the pod of an index, which stands for {}")
    parser.add_argument("--message", type=Path, required=True, help="file of the container's termination message")
    options = parser.parse_args()
    place = Place(int(os.environ.get(INDEX_VARIABLE, "0")), options.meet, options.attempt)
    try:
        settings = configuration.load()
        folder = configuration.path(settings.train.folder)
        run(ObjectStore.connect(settings.store), options.order, options.sha256, place, folder, _say)
    except Exception as error:
        options.message.write_bytes(message_of(error))
        sys.exit(f"{type(error).__name__}: {error}")


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    main()
