"""Runs the stand-in cluster in a thread, and gives helm and kubectl, which come from a package of the pinned lists."""

import asyncio
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from tests.cluster.api import Api
from tests.cluster.node import Cluster, Node
from tests.cluster.place import kubeconfig
from tests.infra.chart import helm


@dataclass(frozen=True)
class Shell:
    """Where an operator's commands run: with helm, kubectl and tabloop, a folder, and the cluster's administrator."""

    folder: Path
    cluster: Cluster

    def run(self, command: str, seconds: float = 3600) -> helm.Ended:
        """Run a line of a shell."""
        variables = {"PATH": f"{helm.program().parent}:{self.cluster.python.parent}:{os.environ['PATH']}"}
        variables |= {"HOME": str(self.folder), "KUBECONFIG": str(self.cluster.kubeconfig)}
        variables["PYTHONPATH"] = str(helm.ROOT)
        ended = subprocess.run(
            command, shell=True, cwd=self.folder, env=variables, capture_output=True, text=True, timeout=seconds, check=False
        )
        return helm.Ended(ended.returncode, ended.stdout, ended.stderr)


@contextmanager
def running(cluster: Cluster, port: int) -> Iterator[None]:
    """Run a cluster's API server at a port of this machine, its controllers and its node; end its pods at the end."""
    cluster.folder.mkdir(parents=True, exist_ok=True)
    cluster.api = f"http://127.0.0.1:{port}"
    cluster.kubeconfig = kubeconfig(cluster.api, cluster.folder / "kubeconfig")
    api, node, loop, ready = Api(cluster), Node(cluster), asyncio.new_event_loop(), threading.Event()
    failed: list[BaseException] = []

    async def serve() -> None:
        runner = web.AppRunner(api.app, shutdown_timeout=1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        ready.set()
        try:
            await node.run()
        finally:
            api.closing = True
            await runner.cleanup()

    task = loop.create_task(serve())

    def run() -> None:
        with suppress(asyncio.CancelledError):
            try:
                loop.run_until_complete(task)
            except Exception as error:  # shown at the end
                failed.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert ready.wait(10)
    try:
        yield
    finally:
        loop.call_soon_threadsafe(task.cancel)
        thread.join()
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
        for name in list(cluster.objects["pods"]):
            cluster.end("pods", name)
        if failed:
            raise failed[0]
