"""An update as a Job of Kubernetes, on the stand-in of tests/kubernetes.py whose pods are processes of this machine."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import boto3
import pytest
from safetensors.torch import load_file

from infra.settings import ROOT
from infra.settings.training import Train
from infra.storage.store import CHECKSUMS, ObjectStore, sha256, to_parquet
from tasks.trainer.cluster import order as orders
from tasks.trainer.cluster import state, update
from tasks.trainer.cluster.api import ClusterRefused
from tasks.trainer.cluster.order import Order, Stored
from tasks.trainer.cluster.template import ATTEMPT, Template, Wanted, WrongTemplate
from tasks.trainer.run import Candidate, TrainerOutput, TrainingFailed, UpdateRefused, train
from tests.kubernetes import Cluster, serving
from tests.kubernetes_node import running_node
from tests.pod_security import unrestricted, validate
from tests.stack import free_ports
from tests.tasks.trainer import models
from tests.tasks.trainer.test_run import manifest_of

pytestmark = pytest.mark.stack

SHIPPED = ROOT / "infra/settings/train_job.json"
SECRET = "a-key-that-nobody-may-read"
KEYS = {"TABLOOP_STORE__ACCESS_KEY": "made-up", "TABLOOP_STORE__SECRET_KEY": SECRET}
RECIPE: dict[str, Any] = {"minibatch": 4, "epochs": 1, "learning_rate": 1e-3, "environment": {"OMP_NUM_THREADS": "1"}}
WAITS = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."


class World:
    """A bucket, a cluster, and the template of the Job that trains there."""

    def __init__(self, folder: Path, moto: str) -> None:
        self.folder, self.said, self.waited = folder, list[str](), list[str]()
        client = boto3.client("s3", endpoint_url=moto, aws_access_key_id="a", aws_secret_access_key="b", region_name="us-east-1")
        self.store = ObjectStore(client, f"training-{time.time_ns()}")
        self.store.ensure_bucket()
        self.place = {"TABLOOP_STORE__ENDPOINT": moto, "TABLOOP_STORE__BUCKET": self.store.bucket}
        text = f'[store]\nbucket = "{self.store.bucket}"\nendpoint = "{moto}"\n'
        self.cluster = Cluster(
            folder / "cluster", secrets={"tabloop": KEYS}, config_maps={"tabloop-settings": {"settings.toml": text}}
        )
        self.api_port, meeting = free_ports(2)
        self.file = folder / "train_job.json"
        self.template = json.loads(SHIPPED.read_text().replace("29500", str(meeting)))
        self.template["metadata"]["namespace"] = "tabloop"
        self.write()
        model = models.tiny()
        model.save_pretrained(folder / "parent")
        self.samples = to_parquet(models.samples(model, 0.0))
        self.store.put("samples", self.samples)
        self.store.put_directory("checkpoints/parent", folder / "parent")

    def write(self, command: str = "") -> None:
        """Write the template, with a program in place of the trainer if one is given."""
        if command:
            self.template["spec"]["template"]["spec"]["containers"][0]["command"] = ["python", "-c", command]
        self.file.write_text(json.dumps(self.template))

    def order(self, **changes: Any) -> Order:
        parent = Stored(version="7", prefix="checkpoints/parent", sha256=self.store.directory_sha256("checkpoints/parent"))
        wanted = Train(**RECIPE | {"nodes": 2, "job": self.file} | changes)
        return Order(cycle="cycle-000012", samples="samples", samples_sha256=sha256([self.samples]), parent=parent, train=wanted)

    def train(self, order: Order, cancelled: Callable[[], bool] = lambda: True) -> Candidate | UpdateRefused:
        flow = update.Flow(self.folder / "flow", self.said.append, self.waited.append, cancelled)
        return update.train(self.store, order, self.file, flow)


@pytest.fixture
def world(tmp_path: Path, moto: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    world = World(tmp_path, moto)
    monkeypatch.setattr(update, "LOOK_SECONDS", 0.1)
    with running_node(world.cluster, world.api_port), serving(world.cluster, world.api_port):
        monkeypatch.setenv("KUBECONFIG", str(world.cluster.kubeconfig))
        yield world


FLOW = """
import sys
from functools import partial
from pathlib import Path
from prefect.utilities.engine import capture_sigterm
from infra import settings
from infra.storage.store import ObjectStore
from tasks.trainer.cluster import order, update

update.LOOK_SECONDS = 0.1
order_file, template, folder = map(Path, sys.argv[1:4])
wanted = order.Order.model_validate_json(order_file.read_text())
say, waits = partial(print, flush=True), partial(print, "waits:", flush=True)
cancelled = len(sys.argv) == 4
with capture_sigterm():  # as Prefect runs a flow
    update.train(ObjectStore.connect(settings.load().store), wanted, template, update.Flow(folder, say, waits, lambda: cancelled))
"""


def started_flow(world: World, order: Order, *words: str) -> "subprocess.Popen[str]":
    """Start a flow in a process of its own."""
    (world.folder / "order.json").write_text(order.model_dump_json())
    command = (sys.executable, "-c", FLOW, str(world.folder / "order.json"), str(world.file), str(world.folder / "flow"), *words)
    variables = os.environ | world.place | KEYS
    return subprocess.Popen(command, cwd=ROOT, env=variables, stdout=subprocess.PIPE, text=True)


def read_until(process: "subprocess.Popen[str]", wanted: str) -> None:
    assert process.stdout
    for line in process.stdout:
        if wanted in line:
            return
    raise AssertionError(f"{wanted!r} never came")


def wait_for(condition: Callable[[], object], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_job_waits_for_gpus_outlives_its_flow_and_the_api_server_and_trains_the_same_weights(
    tmp_path: Path, moto: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, moto)
    order = world.order()
    monkeypatch.setattr(update, "LOOK_SECONDS", 0.1)
    world.cluster.gpus = 1  # the pods need two
    with running_node(world.cluster, world.api_port), ExitStack() as server:
        server.enter_context(serving(world.cluster, world.api_port))
        monkeypatch.setenv("KUBECONFIG", str(world.cluster.kubeconfig))
        with started_flow(world, order) as flow:
            read_until(flow, f"waits: {WAITS}")
            flow.kill()
        assert len(world.cluster.objects["jobs"]) == 1

        def turn() -> None:
            """Take the API server away as the next flow waits, give the GPUs meanwhile, and bring it back."""
            server.close()
            world.cluster.gpus = 2
            wait_for(lambda: "waits for" in world.cluster.log(0) or "has its inputs" in world.cluster.log(0))
            server.enter_context(serving(world.cluster, world.api_port))

        waits = iter([turn])
        said = world.waited

        def take(words: str) -> None:
            said.append(words)
            next(waits, lambda: None)()

        candidate = update.train(world.store, order, world.file, update.Flow(tmp_path / "flow", world.said.append, take))
    assert isinstance(candidate, Candidate)
    assert [sent["kind"] for sent in world.cluster.sent] == ["Job", "Service"], "the second flow finds the first one's"
    assert said[0] == WAITS and said[-1] == ""
    assert any("finds the Job tabloop-train-cycle-000012-" in line for line in world.said)
    assert [line.split(":")[0] for line in world.said if line.startswith("step")] == ["step 1 of 3", "step 2 of 3", "step 3 of 3"]
    assert SECRET not in json.dumps(world.cluster.sent) and SECRET not in world.cluster.log(0) + world.cluster.log(1)

    local = train(
        world.store,
        manifest_of("samples", order.samples_sha256).model_copy(update={"parent": "7"}),
        tmp_path / "parent",
        Train(**RECIPE, processes=2),
        TrainerOutput(tmp_path / "alone"),
    )
    assert isinstance(local, Candidate)
    there, here = (load_file(c.checkpoint / "model.safetensors") for c in (candidate, local))
    assert all((there[name] == here[name]).all() for name in here | there)
    assert candidate.metrics.model_copy(update={"steps": (), "seconds": {}}) == local.metrics.model_copy(
        update={"steps": (), "seconds": {}}
    )
    found = json.loads((candidate.checkpoint / CHECKSUMS).read_text()) if (candidate.checkpoint / CHECKSUMS).exists() else {}
    assert found == {}, "checksums stay in the bucket"

    # A run that is killed after this one takes what is stored, without a Job.
    again = world.train(order)
    assert isinstance(again, Candidate) and again.metrics == candidate.metrics
    orders.remove(world.store, order.cycle)
    assert not list(world.store.keys(orders.PREFIX))
