"""The trainer's command writes a checkpoint, and refuses wrong arguments."""

import json
import subprocess
import sys

import pytest
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from infra.settings import ROOT
from tasks.trainer.job import Metrics
from tests.tasks.trainer.processes import launch

pytestmark = pytest.mark.stack


def test_the_command_writes_a_checkpoint_that_transformers_reads(work, answers):
    launch(1, "-m", "tasks.trainer.worker", "--job", str(work / "job.json"))
    metrics = Metrics.model_validate_json((work / "command" / "metrics.json").read_text())
    assert (metrics.samples, len(metrics.steps)) == (12, 6)
    assert metrics.skipped == 0
    assert metrics.logprob_difference_max is not None and metrics.logprob_difference_max < 1e-5
    assert all(step.gradient_norm > 0 for step in metrics.steps)
    trained = AutoModelForCausalLM.from_pretrained(work / "command" / "checkpoint").state_dict()
    before = load_file(work / "model" / "model.safetensors")
    assert all((trained[name] != before[name]).any() for name in before)
    assert not list((work / "command").glob("*.partial"))
    assert len(list((work / "sharded").glob("*.safetensors"))) > 1
    index = "model.safetensors.index.json"
    assert (work / "sharded" / index).exists()
    assert not (work / "command" / "checkpoint" / index).exists(), "vLLM would look for the files that it names"

    # A cycle that is killed and run again must end in the same candidate.
    repeated = load_file(work / "direct" / "checkpoint" / "model.safetensors")
    assert all((trained[name] == repeated[name]).all() for name in before)


def test_an_unknown_megatron_argument_ends_the_worker_at_once(work, answers, tmp_path):
    job = json.loads((work / "job.json").read_text()) | {"megatron_arguments": {"weight_decoy": 0.1}, "checkpoint": "nowhere"}
    (tmp_path / "job.json").write_text(json.dumps(job))
    command = [sys.executable, "-m", "tasks.trainer.worker", "--job", str(tmp_path / "job.json")]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert process.returncode == 1
    assert "trainer: train.megatron_arguments.weight_decoy = 0.1: no such argument, expected a field of" in process.stderr
