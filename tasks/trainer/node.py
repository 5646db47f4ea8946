"""A node: a further machine that trains together with the flow's: python -m tasks.trainer.node, with the flow's settings and its
disk of train.folder.

It waits for updates, runs its `train.processes` processes of each, and ends them when the update ends. It runs until it is
stopped: it reports a failed update to the flow, and waits for the next one.
"""

import os
import socket
import sys
import time
from pathlib import Path

from infra import settings as configuration
from infra.settings.training import Train
from infra.stack import files
from tasks.trainer import nodes
from tasks.trainer.run import TrainingFailed, follow

POLL_SECONDS = 1.0


class NodeWatch:
    """A node's view of the flow while the node's processes run."""

    def __init__(self, folder: Path, update: nodes.Update, own: Path) -> None:
        """Watch the flow that announced `update` in `folder`; `own` is this node's beat."""
        self._folder, self._update, self._own, self._beats = folder, update, own, nodes.Beats()

    def __call__(self) -> str:
        """Beat; return why the update must end, or nothing."""
        if nodes.announcement(self._folder) != self._update:
            return "the flow has ended the update"
        self._own.touch()
        if self._beats.silence(self._folder / nodes.ANNOUNCED_NAME) > nodes.SILENT_SECONDS:
            return f"no sign of life from the flow for {nodes.SILENT_SECONDS:.0f} s"
        return ""


def take_part(folder: Path, update: nodes.Update, settings: Train, name: str) -> None:
    """Run this machine's processes of an update; report their failure while the update is still announced."""
    work = update.job.parent
    watch = NodeWatch(folder, update, work / f"node-{name}.beat")
    command = nodes.command(update, settings, flow=False)
    try:
        follow(command, work / f"trainer-{name}.log", settings.environment, lambda line: print(line, flush=True), watch)
        print(f"{work}: done", flush=True)
    except TrainingFailed as error:
        print(f"{work}: {error}", flush=True)
        if nodes.announcement(folder) == update:
            files.write(work / f"lost-{name}.txt", f"node {name}: {error}")


def main() -> None:
    """Take part in one update after the other."""
    os.umask(files.PRIVATE)
    settings = configuration.load_for("node").train
    if settings.nodes == 1:
        sys.exit("node: train.nodes = 1, expected at least 2, with train.rendezvous: the flow's machine trains alone")
    folder, name = configuration.path(settings.folder), f"{socket.gethostname()}-{os.getpid()}"
    try:
        nodes.address_towards(settings.rendezvous)
    except ValueError as error:
        sys.exit(f"node: {error}")
    print(f"{name}: waits for updates in {folder}", flush=True)
    done, beats = "", nodes.Beats()
    while True:
        update = nodes.announcement(folder)
        # The announcement of a dead flow has no heartbeat.
        if beats.changed(folder / nodes.ANNOUNCED_NAME) and update and update.id != done:
            done = update.id
            take_part(folder, update, settings, name)
        time.sleep(POLL_SECONDS)


if __name__ == "__main__":
    main()
