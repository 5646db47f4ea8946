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

from infra.settings import ROOT, Settings
from infra.settings.training import Train
from infra.storage.store import ObjectStore, sha256, to_parquet
from tasks.steps import training_job
from tasks.steps.context import Context
from tasks.trainer.cluster import order as orders
from tasks.trainer.cluster import state, update
from tasks.trainer.cluster.api import ClusterRefused
from tasks.trainer.cluster.order import Order, Stored
from tasks.trainer.cluster.template import ATTEMPT, Template, Wanted, WrongTemplate
from tasks.trainer.run import Candidate, PlaceLost, TrainerOutput, TrainingFailed, UpdateRefused, train
from tests.kubernetes import Cluster, serving
from tests.kubernetes_node import running_node
from tests.pod_security import unrestricted, validate
from tests.stack import free_ports
from tests.tasks.made import MemoryRegistry
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
import signal
import sys
from functools import partial
from pathlib import Path
from infra import settings
from infra.storage.store import ObjectStore
from tasks.trainer.cluster import order, update

update.LOOK_SECONDS = 0.1
order_file, template, folder = map(Path, sys.argv[1:4])
wanted = order.Order.model_validate_json(order_file.read_text())
say, waits = partial(print, flush=True), partial(print, "waits:", flush=True)
cancelled = len(sys.argv) == 4


class Terminated(BaseException):
    pass


def terminate(*_: object) -> None:
    raise Terminated  # as Prefect's own handler does


signal.signal(signal.SIGTERM, terminate)
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
    order = world.order(keep_optimizer=True, distributed_optimizer=True)
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
        Train(**RECIPE, processes=2, keep_optimizer=True, distributed_optimizer=True),
        TrainerOutput(tmp_path / "alone"),
    )
    assert isinstance(local, Candidate)
    there, here = (load_file(c.checkpoint / "model.safetensors") for c in (candidate, local))
    assert all((there[name] == here[name]).all() for name in here | there)
    there, here = (state_of(c) for c in (candidate, local))
    assert here and all((there[name] == here[name]).all() for name in here | there), "the optimizer's, of both pods"
    assert candidate.metrics.model_copy(update={"steps": (), "seconds": {}}) == local.metrics.model_copy(
        update={"steps": (), "seconds": {}}
    )
    # A run that is killed after this one takes what is stored, without a Job.
    again = world.train(order)
    assert isinstance(again, Candidate) and again.metrics == candidate.metrics
    orders.remove(world.store, order.cycle)
    assert not list(world.store.keys(orders.PREFIX))


def state_of(candidate: Candidate) -> dict[str, Any]:
    """Return the tensors of the optimizer's state, whichever ranks wrote them."""
    assert candidate.optimizer
    files = candidate.optimizer.glob("*.safetensors")
    return {f"{file.name.split('-')[0]} {name}": tensor for file in files for name, tensor in load_file(file).items()}


SLEEPS = "import time; print('step 1 of 9: {}', flush=True); time.sleep(600)"
"""A pod that trains for long, without torch."""


def one_job(world: World) -> dict[str, Any]:
    (job,) = world.cluster.objects["jobs"].values()
    return job


@pytest.mark.parametrize("stopped", ["cancelled", "its worker stops"])
def test_a_cancelled_flow_ends_its_job_and_that_of_a_worker_that_stops_goes_on(world: World, stopped: str) -> None:
    world.write(SLEEPS)
    with started_flow(world, world.order(), *([] if stopped == "cancelled" else ["worker"])) as flow:
        read_until(flow, "step 1 of 9")
        attempt, processes = one_job(world)["metadata"]["labels"][ATTEMPT], [*world.cluster.processes.values()]
        flow.send_signal(signal.SIGTERM)
        assert flow.wait(60) != 0
    if stopped == "cancelled":
        assert not world.cluster.objects["jobs"] and not world.cluster.objects["services"] and not world.cluster.objects["pods"]
        assert all(process.poll() is not None for process in processes)
    else:
        assert one_job(world)["metadata"]["labels"][ATTEMPT] == attempt
        assert len(processes) == 2 and all(process.poll() is None for process in processes)


def kill_the_second_pod(world: World) -> None:
    pod = world.cluster.pod(1)
    assert pod
    os.killpg(world.cluster.processes[pod["metadata"]["name"]].pid, signal.SIGKILL)


def evict_the_second_pod(world: World) -> None:
    pod = world.cluster.pod(1)
    assert pod
    reason = {"reason": "EvictionByEvictionAPI", "message": "Eviction API: evicting"}
    pod["status"]["conditions"].append({"type": "DisruptionTarget", "status": "True", **reason})
    kill_the_second_pod(world)


def delete_the_second_pod(world: World) -> None:
    pod = world.cluster.pod(1)
    assert pod
    world.cluster.end("pods", pod["metadata"]["name"])


def delete_the_job(world: World) -> None:
    world.cluster.end("jobs", one_job(world)["metadata"]["name"])


@pytest.mark.parametrize(
    ("loses", "expected", "still_set", "error"),
    [
        (kill_the_second_pod, r"pod tabloop-train-cycle-000012-\w+-1-\w+ on node-1: Error, exit code 137", True, TrainingFailed),
        (
            evict_the_second_pod,
            r"pod \S+ on node-1: EvictionByEvictionAPI: Eviction API: evicting; Error, exit code 137",
            True,
            PlaceLost,
        ),
        (
            delete_the_second_pod,
            r"the pod .*tabloop-train-cycle-000012-\w+-1-\w+ was deleted, by hand or with its node",
            False,
            TrainingFailed,
        ),
        (
            delete_the_job,
            r"the Job tabloop-train-cycle-000012-\w+ was deleted, by hand or with its namespace",
            False,
            TrainingFailed,
        ),
    ],
)
def test_what_is_lost_ends_the_update_at_once_and_the_next_run_trains_again(
    world: World, loses: Callable[[World], None], expected: str, still_set: bool, error: type[TrainingFailed]
) -> None:
    world.write(SLEEPS)
    both = iter([None, lambda: loses(world)])
    flow = update.Flow(world.folder / "flow", lambda line: (next(both, None) or (lambda: None))() if "step 1" in line else None)
    with pytest.raises(TrainingFailed, match=f"the update of the Job .* has ended: {expected}") as failed:
        update.train(world.store, world.order(), world.file, flow)
    assert type(failed.value) is error
    assert not world.cluster.objects["jobs"] and not world.cluster.objects["pods"], "no GPU is held"

    def stop(line: str) -> None:
        if "step 1" in line:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        update.train(world.store, world.order(), world.file, update.Flow(world.folder / "flow", stop, cancelled=lambda: False))
    assert len({sent["metadata"]["labels"][ATTEMPT] for sent in world.cluster.sent if sent["kind"] == "Job"}) == 2
    # Nobody waits for this one any more: the cycle has ended, is abandoned, or goes on without train.job.
    settings = Settings(train=Train(job=world.file if still_set else None))
    context = Context(settings, world.store, MemoryRegistry(v1={}).client, time.time)
    training_job.discard(context, "cycle-000011")
    assert one_job(world) and list(world.store.keys(orders.PREFIX)), "of another cycle"
    training_job.discard(context, "cycle-000012")
    assert not world.cluster.objects["jobs"] and not list(world.store.keys(orders.PREFIX))


LAUNCHER = """
import sys, time
from pathlib import Path

words = sys.argv
if words[words.index("--node_rank") + 1] == "1":
    work = Path(words[words.index("--job") + 1]).parent
    reason = WORDS
    if REFUSES:
        (work / "refused.txt").write_text(reason)
    print("noise\\ntrainer: " + reason, flush=True)
    sys.exit(1)
time.sleep(600)
"""
"""In torchrun's place: the processes of the second pod fail at once, and those of the first wait for them."""
OTHER_PRECISION = 'train.precision = "fastest": rank 0 on a bfloat16, rank 1 on b float32, expected one for all'


def planted(world: World, reason: str, refuses: bool) -> Order:
    """Return an order whose processes end so."""
    folder = world.folder / "planted"
    (folder / "torch" / "distributed").mkdir(parents=True)
    (folder / "torch" / "__init__.py").touch()
    (folder / "torch" / "distributed" / "__init__.py").touch()
    program = LAUNCHER.replace("WORDS", repr(reason)).replace("REFUSES", str(refuses))
    (folder / "torch" / "distributed" / "run.py").write_text(program)
    return world.order(environment={"PYTHONPATH": f"{folder}:{ROOT}"})


def test_a_node_without_the_models_precision_fails_the_update_once_with_its_ranks_line(world: World) -> None:
    with pytest.raises(TrainingFailed, match=re.escape(f"trainer: {OTHER_PRECISION}")) as failed:
        world.train(planted(world, OTHER_PRECISION, refuses=False))
    assert "noise" not in str(failed.value).split("its first errors:")[1].split("the end of")[0]
    assert f"pod 1: trainer: {OTHER_PRECISION}" in world.said
    assert "noise" in (world.folder / "flow" / "1-trainer.log").read_text()
    assert not world.cluster.objects["jobs"], "the next run makes another"


def test_an_update_that_a_rank_refuses_is_refused_though_the_other_pod_is_lost_with_it(world: World) -> None:
    order = planted(world, "advantage = 0 for each of 12 samples", refuses=True)
    assert world.train(order) == UpdateRefused("advantage = 0 for each of 12 samples")
    assert world.train(order) == UpdateRefused("advantage = 0 for each of 12 samples"), "from the bucket"


def test_inputs_of_another_checksum_are_refused_by_the_pod_whose_words_the_cycle_has(world: World) -> None:
    order = world.order(nodes=1)
    world.store.put("samples", b"changed")
    with pytest.raises(TrainingFailed, match=r"pod \S+-0-\S+ on node-1: Corrupt: s3://.*/samples: SHA-256 .* the flow says"):
        world.train(order)


@pytest.mark.parametrize("status", [403, 422])
def test_a_request_that_kubernetes_refuses_is_an_error_with_its_words(world: World, status: int) -> None:
    world.cluster.refuses = status, 'jobs.batch is forbidden: User "flows" cannot list resource "jobs"'
    next_step = "give the flow's service account a Role" if status == 403 else "correct the template"
    with pytest.raises(ClusterRefused, match=f'(?s)in the namespace tabloop: jobs.batch is forbidden: User "flows".*{next_step}'):
        world.train(world.order())


WANTED = Wanted("loop", "cycle-000012", "training/cycle-000012-a/order.json", "ab", 2, 8)


def shipped_job(**wanted: Any) -> dict[str, Any]:
    return Template(SHIPPED, 8).job(Wanted(**(vars(WANTED) | wanted)), "attempt")


def test_the_shipped_template_makes_a_job_that_a_restricted_namespace_takes() -> None:
    job, service = shipped_job(), Template(SHIPPED, 8).service(WANTED, "attempt", "uid")
    validate(job)
    validate(service)
    pod = job["spec"]["template"]["spec"]
    assert unrestricted(pod) == set()
    spec = {name: job["spec"][name] for name in ("completions", "parallelism", "completionMode", "backoffLimit")}
    assert spec == {"completions": 2, "parallelism": 2, "completionMode": "Indexed", "backoffLimit": 0}
    (container,) = pod["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "8" and "memory" in container["resources"]["limits"]
    assert "persistentVolumeClaim" not in json.dumps(pod) and pod["restartPolicy"] == "Never"
    assert pod["subdomain"] == service["metadata"]["name"] and service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"].items() <= job["spec"]["template"]["metadata"]["labels"].items()
    assert f"--meet={job['metadata']['name']}-{{}}.{pod['subdomain']}:29500" in container["args"]
    assert all("value" not in variable or "KEY" not in variable["name"] for variable in container["env"])
    assert "subdomain" not in shipped_job(nodes=1)["spec"]["template"]["spec"]


def test_a_job_is_found_by_a_name_that_another_order_or_template_does_not_have(tmp_path: Path) -> None:
    name = shipped_job()["metadata"]["name"]
    assert shipped_job()["metadata"]["name"] == name and len(f"{name}-15") < 63
    of_project = shipped_job(cycle=f"{'web' * 6}-q-cycle-000012")["metadata"]["name"]  # the longest name of a project
    assert re.fullmatch(r"tabloop-train-(web){4}-q-cycle-000012-[0-9a-f]{10}", of_project) and len(of_project) <= 52
    assert len({name, *(shipped_job(**{k: v})["metadata"]["name"] for k, v in (("sha256", "c"), ("loop", "d")))}) == 3
    (tmp_path / "job.json").write_text(SHIPPED.read_text().replace("tabloop-trainer:0.2.0", "tabloop-trainer:0.2.1"))
    assert Template(tmp_path / "job.json", 8).name(WANTED) != name


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (None, r"cannot be read: .*copy infra/settings/train_job\.json"),
        (("{", "["), "expected JSON or YAML"),
        (('"Job"', '"Pod"'), "expected a Job"),
        (("{{ gpus }}", "8"), r'expected "\{\{ gpus \}\}" as the limit of the container'),
        (('"name": "rendezvous", ', ""), "a port named rendezvous is missing"),
        (('"command": ["python", "-m", "tasks.trainer.pod"],', ""), "'command' is missing"),
        (('"tabloop-train"', '"Tabloop"'), "metadata.name = 'Tabloop': expected lower-case"),
        (('"tabloop-train"', f'"{"a" * 40}"'), "expected at most 52 characters"),
        (('"ttlSecondsAfterFinished": 86400', '"completions": 3'), "completions: expected none, since the flow sets it"),
        (('"ttlSecondsAfterFinished": 86400', '"backoffLimit": 6'), "backoffLimit = 6: expected 0"),
        (('"HOME", "value"', '"AWS_SECRET_ACCESS_KEY", "value"'), "AWS_SECRET_ACCESS_KEY stands there in plain text"),
    ],
)
def test_a_wrong_template_is_an_error_that_names_it(changes: tuple[str, str] | None, expected: str, tmp_path: Path) -> None:
    file = tmp_path / "job.json"
    if changes:
        old, new = changes
        assert old in SHIPPED.read_text()
        file.write_text(SHIPPED.read_text().replace(old, new, 1))
    with pytest.raises(WrongTemplate, match=f"(?s)train.job = .*job.json'?: .*{expected}"):
        Template(file, 8).name(WANTED)


def pod_of(name: str, place: dict[str, str], **container: Any) -> dict[str, Any]:
    status = {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "True"} | place]}
    if container:
        status["containerStatuses"] = [{"state": container}]
    return {"metadata": {"name": name, "annotations": {}}, "status": status}


JOB = {"metadata": {"name": "job"}, "status": {}}
RUNS = pod_of("a", {}, running={})
SUSPENDED = {"type": "Suspended", "status": "True", "message": "queue gpus is full"}


@pytest.mark.parametrize(
    ("job", "pods", "expected"),
    [
        (JOB, [RUNS, pod_of("b", {"status": "False", "message": WAITS})], (WAITS, "")),
        (
            JOB,
            [RUNS, pod_of("b", {}, waiting={"reason": "ImagePullBackOff", "message": "no such image"})],
            ("b: ImagePullBackOff: no such image", ""),
        ),
        (JOB, [RUNS], ("1 of 2 pods are made", "job")),
        (JOB | {"status": {"conditions": [SUSPENDED]}}, [], ("the Job is suspended: queue gpus is full", "")),
        (JOB, [RUNS, pod_of("b", {}, waiting={"reason": "ContainerCreating"})], ("b starts", "b")),
        (JOB, [RUNS, pod_of("b", {}, terminated={"exitCode": 0})], ("", "")),
    ],
)
def test_what_waits_is_said_in_the_words_of_kubernetes(job: Any, pods: list[Any], expected: tuple[str, str]) -> None:
    assert state.waiting(job, pods, 2) == expected


@pytest.mark.parametrize(
    ("reason", "suspended", "expected"),
    [("PreemptionByScheduler", False, True), ("TerminationByKubelet", False, False), ("", False, False), ("", True, True)],
)
def test_a_pod_whose_place_the_cluster_takes_is_known_by_its_condition_or_its_suspended_job(
    reason: str, suspended: bool, expected: bool
) -> None:
    pod = pod_of("b", {}, terminated={"exitCode": 137})
    if reason:
        pod["status"]["conditions"].append({"type": "DisruptionTarget", "status": "True", "reason": reason})
    assert state.displaced(JOB | {"spec": {"suspend": suspended}}, [RUNS, pod]) == expected
    assert state.displaced(None, "the Job was deleted") is False


def test_the_last_event_that_warns_says_more() -> None:
    said = [("Warning", "old"), ("Warning", "exceeded quota"), ("Normal", "made")]
    events = [{"type": kind, "message": message} for kind, message in said]
    assert state.warning(events) == "exceeded quota" and state.warning(events[2:]) == ""


def test_a_pod_that_has_its_gpus_and_never_starts_ends_the_update(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(update, "START_SECONDS", 0.3)
    monkeypatch.setattr(state, "started", lambda pod: False)
    world.write(SLEEPS)
    with pytest.raises(TrainingFailed, match=r"the pod \S+ has its GPUs, and has not started in 0 s"):
        world.train(world.order())
    assert not world.cluster.objects["jobs"]
