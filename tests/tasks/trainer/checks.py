"""Runs the checks in trainer processes. The tests start it with torchrun and assert on the numbers that it writes.

torchrun --standalone --nproc_per_node 2 -m tests.tasks.trainer.checks --work FOLDER --states FOLDER

The trainer's compatibility patches apply to a whole process, so the tests' own process never imports Megatron. It imports only
`models` and `processes` of the helpers here.
"""

import argparse
import json
import os
from pathlib import Path
from typing import Any

import torch.distributed as dist
from transformers import Qwen2ForCausalLM

from tasks.trainer.model.process_group import Parallel, parallel_state, start, stop
from tasks.trainer.update import ppo
from tests.tasks.trainer import learning, memory, parity, refusals, state
from tests.tasks.trainer.models import OTHERS, tiny
from tests.tasks.trainer.trained_models import JOB, LAYOUTS, write_job


def all_checks(model: Qwen2ForCausalLM, work: Path, states: Path) -> dict[str, Any]:
    """Run every check that fits the number of processes, in every layout."""
    directory = work / "model"
    answers: dict[str, Any] = {}
    if os.environ["WORLD_SIZE"] == "1":
        model.save_pretrained(directory)
        job = write_job(work, model).model_copy(update={"output": work / "killed", "keep_optimizer": True})
        job.output.mkdir()
        answers["killed"] = state.check_killed(job)
    start(Parallel(), 0)
    others = {name: tiny(**changes) for name, changes in OTHERS.items()} if dist.get_world_size() < 4 else {}
    if dist.get_rank() == 0:
        for name, saved in {"model": model, **others}.items():
            saved.save_pretrained(work / name)
    dist.barrier()
    for name, parallel in LAYOUTS[dist.get_world_size()].items():
        parallel_state.destroy_model_parallel()
        start(parallel, 0)
        if dist.get_world_size() >= 4:
            answers[name] = parity.check_parity(directory, model, parallel)
            continue
        answers[name] = in_layout(directory, model, parallel, states / name)
        answers[name]["others"] = {
            other: parity.check_parity(work / other, other_model, parallel)
            for other, other_model in others.items()
            if name != "data" and other_model.config.num_hidden_layers % parallel.pipeline == 0
        }
        if name == "pipeline":
            answers[name]["nothing_left"] = refusals.nothing_left(directory, parallel)
        if name in ("tensor", "pipeline"):
            answers[name]["pretraining"] = refusals.pretraining(directory, parallel)
    if dist.get_world_size() == 1:
        answers |= in_one_process(directory, model)
    elif dist.get_world_size() == 2:
        answers["moved"] = state.check_moves(model, states)
    return answers


def in_layout(directory: Path, model: Qwen2ForCausalLM, parallel: Parallel, states: Path) -> dict[str, Any]:
    """Run the checks of a layout of one or two processes; `states` gets the states for other layouts."""
    precisions = (False, True)  # computing in bfloat16 or not
    return {
        "logprobs": parity.check_logprobs(directory, model, parallel),
        "round_trip": parity.check_round_trip(directory, parallel),
        "gathered": state.check_gathered(directory, parallel),
        "shares": state.check_shares(directory, parallel),
        "gradients": {
            objective: parity.check_gradients(directory, model, parallel, JOB.model_copy(update=changes))
            for objective, changes in parity.OBJECTIVES.items()
        },
        "refusals": refusals.check_refusals(directory, model, parallel),
        "resumed": [state.check_resumed(directory, model, parallel, bf16, states / str(bf16)) for bf16 in precisions],
        "frozen": [state.check_frozen(directory, model, parallel, bf16) for bf16 in precisions],
        "reference": parity.check_reference(directory, parallel),
        "ceilings": parity.check_ceilings(directory, model, parallel),
        "step_metrics": parity.check_step_metrics(directory, model, parallel),
    }


def in_one_process(directory: Path, model: Qwen2ForCausalLM) -> dict[str, Any]:
    """Run the checks of one process. The update that the command's is compared with, and that of the early end, come last."""
    answers = {
        "muon": learning.check_muon(directory),
        "selected": parity.check_selected(),
        "stretched_rotary": refusals.stretched_rotary(directory),
        "with_transformer_engine": refusals.with_transformer_engine(directory),
        "bandit": learning.check_bandit(directory, Parallel()),
        "grouped_bandit": learning.check_bandit(directory, Parallel(), group=8),
        "caps": learning.check_caps(directory, Parallel()),
        "unlikely": learning.check_unlikely(directory, directory.parent),
        "rejections": learning.check_rejections(directory, model),
        "peaks": memory.check_peaks(),
        "memory": memory.check_refused(directory),
    }
    job = write_job(directory.parent, model)
    ppo.run(job)
    return answers | {"ended": refusals.check_ended(job), "megatron_arguments": refusals.megatron_arguments(directory, job)}


def on_device(model: Qwen2ForCausalLM, work: Path) -> dict[str, Any]:
    """Run the checks that depend on the device, and one update in bfloat16."""
    directory = work / "model"
    model.save_pretrained(directory)
    start(Parallel(), 0)
    answers = {"logprobs": parity.check_logprobs(directory, model, Parallel()), **parity.check_device(directory, model)}
    ppo.run(write_job(work, model).model_copy(update={"precision": "bfloat16"}))
    return answers


def resume_moved(model: Qwen2ForCausalLM, states: Path) -> dict[str, Any]:
    """Resume from the states of other layouts."""
    start(Parallel(), 0)
    return {"moved": state.check_moves(model, states)}


def main() -> None:
    """Run the checks of the command line and write their numbers to answers.json."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--states", type=Path, required=True, help="folder of the states for other layouts")
    parser.add_argument("--moves", action="store_true", help="only resume from the states of other layouts")
    parser.add_argument("--device", action="store_true", help="only the checks of the device, and one update in bfloat16")
    options = parser.parse_args()
    # Not from_pretrained: under the trainer's patches transformers 5.19 loads a model whose rotary embedding does nothing.
    model = tiny()
    if options.moves:
        answers = resume_moved(model, options.states)
    elif options.device:
        answers = on_device(model, options.work)
    else:
        answers = all_checks(model, options.work, options.states)
    if dist.get_rank() == 0:
        (options.work / "answers.json").write_text(json.dumps(answers, indent=1))
    stop()


if __name__ == "__main__":
    main()
