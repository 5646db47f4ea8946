"""Two nodes on this machine: an update over both, a lost rank whose own error ends it at once, and the same update run again."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import ValidationError
from safetensors.torch import load_file

from infra.settings import ROOT, TEAM, load
from infra.settings.training import Train
from infra.storage.store import sha256, to_parquet
from tasks.trainer import node, nodes
from tasks.trainer.run import Candidate, TrainerOutput, TrainingFailed, train
from tests.stack import free_ports
from tests.tasks.made import MemoryStore
from tests.tasks.trainer import models
from tests.tasks.trainer.test_run import manifest_of

DIES_ONCE = """
import os, sys
from pathlib import Path

mark = Path(__file__).with_name("died")

def on_event(event, arguments):
    if event == "open" and str(arguments[0]).endswith("parent/config.json") and not mark.exists():
        mark.touch()
        raise OSError("this rank has lost its disk")

if "RANK" in os.environ:
    sys.addaudithook(on_event)
"""
"""Of the second node's processes: the first that reads the model's configuration fails, and none after it."""


@pytest.fixture
def rendezvous(tmp_path: Path) -> Iterator[str]:
    """Start the command of the second node, whose first rank fails once; return where it meets the flow."""
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "sitecustomize.py").write_text(DIES_ONCE)
    endpoint = f"127.0.0.1:{free_ports(1)[0]}"
    values = {
        "TABLOOP_TRAIN__NODES": "2",
        "TABLOOP_TRAIN__PROCESSES": "1",
        "TABLOOP_TRAIN__RENDEZVOUS": endpoint,
        "TABLOOP_TRAIN__FOLDER": str(tmp_path),
        "TABLOOP_TRAIN__ENVIRONMENT": f'{{"PYTHONPATH": "{ROOT}:{tmp_path / "broken"}", "OMP_NUM_THREADS": "1"}}',
    }
    command = [sys.executable, "-m", "tasks.trainer.node"]
    with subprocess.Popen(command, cwd=ROOT, env=os.environ | values, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout and "waits for updates in" in process.stdout.readline()
        yield endpoint
        process.kill()


@pytest.mark.stack
def test_a_lost_rank_of_another_node_ends_the_update_with_its_error_and_the_next_attempt_trains(
    tmp_path: Path, rendezvous: str
) -> None:
    model = models.tiny()
    model.save_pretrained(tmp_path / "parent")
    store, body = MemoryStore(), to_parquet(models.samples(model, 0.0))
    store.put("samples", body)
    shared = {"minibatch": 4, "epochs": 1, "learning_rate": 1e-3, "environment": {"OMP_NUM_THREADS": "1"}}
    both = Train(nodes=2, rendezvous=rendezvous, folder=tmp_path, distributed_optimizer=True, **shared)
    said: list[str] = []

    def trained(settings: Train, folder: str) -> Candidate:
        output = TrainerOutput(tmp_path / folder, said.append)
        candidate = train(store, manifest_of("samples", sha256([body])), tmp_path / "parent", settings, output)
        assert isinstance(candidate, Candidate)
        return candidate

    with pytest.raises(TrainingFailed, match="this rank has lost its disk"):
        trained(both, "cycle")
    assert (tmp_path / "broken" / "died").exists()
    assert not (tmp_path / nodes.ANNOUNCED_NAME).exists(), "no node joins an update that has ended"
    said.clear()
    over_two, alone = trained(both, "cycle"), trained(Train(**shared), "alone")
    steps = [line.split(":")[0] for line in said if line.startswith("step")]
    assert steps == ["step 1 of 3", "step 2 of 3", "step 3 of 3"] * 2, "one of the two nodes' processes prints"
    weights, expected = (load_file(c.checkpoint / "model.safetensors") for c in (over_two, alone))
    # Adam's first steps are nearly signs, which rounding turns where a gradient is near zero.
    moved = load_file(tmp_path / "parent" / "model.safetensors")
    apart = sum((weights[name] - expected[name]).square().sum().item() for name in expected)
    assert apart < 1e-4 * sum((moved[name] - expected[name]).square().sum().item() for name in expected)
    assert not list((tmp_path / "cycle").glob("lost-*"))


def test_a_node_ends_its_part_when_the_flow_takes_the_announcement_back(tmp_path: Path) -> None:
    (tmp_path / "cycle").mkdir()
    with nodes.announced(tmp_path, tmp_path / "cycle" / "job.json") as update:
        watch = node.NodeWatch(tmp_path, update, tmp_path / "cycle" / "node-a.beat")
        assert watch() == ""
        assert (tmp_path / "cycle" / "node-a.beat").exists()
        flow = nodes.FlowWatch(tmp_path, update)
        assert flow() == ""
        (tmp_path / "cycle" / "lost-a.txt").write_text("node a: its error")
        assert flow() == "node a: its error"
    assert watch() == "the flow has ended the update"
    with nodes.announced(tmp_path, update.job) as next_update:
        assert watch() == "the flow has ended the update", "another attempt is not the one that the node runs"
        assert next_update.job == update.job
        assert not list((tmp_path / "cycle").iterdir()), "reports of the earlier attempt are gone"


def test_silence_counts_as_lost_and_a_dead_flows_announcement_has_no_beat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cycle").mkdir()
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with nodes.announced(tmp_path, tmp_path / "cycle" / "job.json") as update:
        file = tmp_path / nodes.ANNOUNCED_NAME
        beats = nodes.Beats()
        assert not beats.changed(file) and not beats.changed(file), "a first look is no beat"
        os.utime(file, (1, 1))
        assert beats.changed(file) and not beats.changed(file)
        beat = tmp_path / "cycle" / "node-a.beat"
        beat.touch()
        flow, other = nodes.FlowWatch(tmp_path, update), node.NodeWatch(tmp_path, update, beat)
        assert flow() == other() == ""
        now[0] += nodes.SILENT_SECONDS + 1
        os.utime(beat, (2, 2))
        assert flow() == "", "the beat of the other node is new"
        now[0] += nodes.SILENT_SECONDS + 1
        assert "node-a: no sign of life" in flow()
        os.utime(file, (3, 3))
        assert other() == ""
        now[0] += nodes.SILENT_SECONDS + 1
        assert "no sign of life from the flow" in other()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"nodes": 2}, r"nodes = 2, rendezvous = \"\": expected HOST:PORT .* or job, whose pods find each other"),
        ({"nodes": 2, "rendezvous": "here"}, r'rendezvous = "here": expected HOST:PORT'),
        ({"nodes": 2, "rendezvous": "::1:29500"}, r'rendezvous = "::1:29500": expected HOST:PORT'),
        ({"sequence_parallel": True}, "expected false with tensor_parallel = 1"),
        ({"recompute": "full", "frozen_layers": 1}, 'expected "none" or "selective" with frozen_layers = 1'),
        ({"tensor_parallel": 2}, "processes = 1, nodes = 1: 1 trainer processes, expected a multiple of 2"),
        (
            {"processes": 2, "nodes": 3, "rendezvous": "a:1", "pipeline_parallel": 4},
            "6 trainer .*expected a multiple of 4",
        ),
        ({"adapter_rank": 1000}, "less than or equal to 256"),
    ],
)
def test_settings_that_cannot_work_together_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Train(**changes)


@pytest.mark.parametrize(("endpoint", "own"), [("127.0.0.1:1", "127.0.0.1"), ("localhost:1", "127.0.0.1"), ("[::1]:1", "::1")])
def test_a_machine_has_an_address_on_the_way_of_either_kind(endpoint: str, own: str) -> None:
    if own == "::1" and not Path("/proc/net/if_inet6").exists():
        pytest.skip("the kernel has no IPv6")
    assert nodes.address_towards(endpoint) == own


def test_an_endpoint_of_ipv6_in_a_variable_is_no_list() -> None:
    assert load(TEAM, {"TABLOOP_TRAIN__RENDEZVOUS": "[fd00::2]:29500"}).train.rendezvous == "[fd00::2]:29500"


def test_an_endpoint_without_a_port_is_refused() -> None:
    with pytest.raises(ValueError, match=r"train.rendezvous = 'here': expected HOST:PORT of the flow's machine"):
        nodes.address_towards("here")
