"""An update over several machines, by files in a folder that they share.

The flow announces an update in `train.folder`, and the command of the other nodes (node.py) joins it. torchrun's processes meet
at `train.rendezvous`. A machine's launcher sees its own processes only, and a process that waits for a lost one may wait long: so
a node whose processes fail reports it in the job's folder, and the flow ends the update with that report. Both sides send
heartbeats, by changing a file's time each second, so that a vanished machine is noticed too.

    train.folder/update.json      the update that runs, with the flow's beat
    JOB'S FOLDER/node-NAME.beat   a node that takes part
    JOB'S FOLDER/lost-NAME.txt    the error of a node whose processes failed
"""

import json
import os
import socket
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from infra.settings.training import Train
from infra.stack import files

ANNOUNCED_NAME = "update.json"
SILENT_SECONDS = 120.0
"""Seconds without a beat after which a machine counts as lost; file times of network disks are up to a minute old."""
JOIN_SECONDS, ALIVE_SECONDS = 600, 30
"""Seconds that a node's launcher waits for the others, and between its signs of life to them, of which three may be missing."""
REPORT_SECONDS = 15.0
"""Seconds that the flow waits for the other nodes' reports once its own processes have failed: one of them may be the cause."""


@dataclass(frozen=True)
class Update:
    """An announced update."""

    job: Path
    """Its job.json."""
    id: str
    """Different for each attempt, so that processes of an earlier attempt cannot join a later one."""


@contextmanager
def announced(folder: Path, job: Path) -> Iterator[Update]:
    """Announce an update to the other nodes until the context ends; reports of an earlier attempt are removed."""
    for left in (*job.parent.glob("lost-*.txt"), *job.parent.glob("node-*.beat")):
        left.unlink(missing_ok=True)
    update, file = Update(job.resolve(), uuid.uuid4().hex), folder / ANNOUNCED_NAME
    files.write(file, json.dumps({"job": str(update.job), "id": update.id}))
    try:
        yield update
    finally:
        file.unlink(missing_ok=True)


def announcement(folder: Path) -> Update | None:
    """Return the update that is announced; none without one."""
    try:
        found = json.loads((folder / ANNOUNCED_NAME).read_text())
    except FileNotFoundError:
        return None
    return Update(Path(found["job"]), found["id"])


def command(update: Update, settings: Train, *, flow: bool) -> tuple[str, ...]:
    """Return the command of a machine's processes.

    Args:
        flow: whether this is the flow's machine, which listens at `train.rendezvous` and prints the metrics.
    """
    conf = f"is_host={int(flow)},join_timeout={JOIN_SECONDS},read_timeout={JOIN_SECONDS},keep_alive_interval={ALIVE_SECONDS}"
    meeting = ("--rdzv_backend", "c10d", "--rdzv_endpoint", settings.rendezvous, "--rdzv_id", update.id, "--rdzv_conf", conf)
    size = ("--nnodes", str(settings.nodes), "--nproc_per_node", str(settings.processes), "--max_restarts", "0")
    worker = ("-m", "tasks.trainer.worker", "--job", str(update.job), *(() if flow else ("--silent",)))
    own = ("--local_addr", address_towards(settings.rendezvous))
    return (sys.executable, "-m", "torch.distributed.run", *size, *meeting, *own, *worker)


def address_towards(endpoint: str) -> str:
    """Return this machine's own address on the way to HOST:PORT, of IPv4 where the host has one; nothing is sent.

    Raises:
        ValueError: not HOST:PORT, or the host's name is unknown.
    """
    host, _, port = endpoint.rpartition(":")
    try:
        found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)
        family, *_, address = min(found, key=lambda each: each[0] != socket.AF_INET)
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except (OSError, ValueError) as error:
        raise ValueError(f"train.rendezvous = {endpoint!r}: expected HOST:PORT of the flow's machine ({error})") from error


class Beats:
    """When other machines' files last changed, by this machine's clock, since two machines' clocks differ."""

    def __init__(self) -> None:
        """Start without files."""
        self._seen: dict[Path, tuple[float, float]] = {}

    def changed(self, file: Path) -> bool:
        """Return whether a file has another time than at the last call; a missing one counts as time 0."""
        try:
            written = file.stat().st_mtime
        except FileNotFoundError:
            written = 0.0
        before, _ = self._seen.get(file, (written, 0.0))
        if file not in self._seen or before != written:
            self._seen[file] = written, time.monotonic()
        return before != written

    def silence(self, file: Path) -> float:
        """Return the seconds since a file was seen to change, or was first looked at."""
        self.changed(file)
        return time.monotonic() - self._seen[file][1]


def beat(file: Path) -> None:
    """Change a file's time; a missing file stays missing."""
    try:
        os.utime(file)
    except FileNotFoundError:
        return


class FlowWatch:
    """The flow's view of the other nodes while its own processes run."""

    def __init__(self, folder: Path, update: Update) -> None:
        """Watch the nodes of an update announced in `folder`."""
        self._announced, self._job_folder, self._beats = folder / ANNOUNCED_NAME, update.job.parent, Beats()

    def __call__(self) -> str:
        """Beat; return why the update must end, or nothing."""
        beat(self._announced)
        if reports := reports_in(self._job_folder):
            return reports
        for file in self._job_folder.glob("node-*.beat"):
            if self._beats.silence(file) > SILENT_SECONDS:
                return f"{file.stem}: no sign of life for {SILENT_SECONDS:.0f} s; see whether the machine runs"
        return ""


def reports_in(folder: Path) -> str:
    """Return the errors of the nodes whose processes failed; nothing if none has."""
    return "\n".join(file.read_text() for file in sorted(folder.glob("lost-*.txt")))


def awaited_reports(folder: Path, nodes: int) -> str:
    """Return the other nodes' errors, once all have reported one or REPORT_SECONDS have passed."""
    end = time.monotonic() + REPORT_SECONDS
    while len(list(folder.glob("lost-*.txt"))) < nodes - 1 and time.monotonic() < end:
        time.sleep(0.2)
    return reports_in(folder)
