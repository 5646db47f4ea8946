"""Runs the checks in trainer processes. The tests start it and assert on the numbers that it writes.

python -m tests.tasks.trainer.checks --work FOLDER

The trainer's compatibility patches apply to a whole process, so the tests' own process never imports Megatron. It imports only
`models` and `processes` of the helpers here. The libraries are imported once: all layouts' processes are forked from this one.
"""

import argparse
import json
import os
import signal
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch.distributed as dist
from transformers import PreTrainedModel, Qwen2ForCausalLM

from tasks.trainer.model.process_group import Parallel, start, stop
from tasks.trainer.update import ppo
from tests.tasks.trainer import adapters, learning, memory, parity, refusals, state
from tests.tasks.trainer.models import OTHERS, samples, tiny
from tests.tasks.trainer.trained_models import JOB, LAYOUTS, SHARING, VARIANTS, Variant, restart, trained_model, write_job

Models = Mapping[str, PreTrainedModel]
ADAPTED = ("tensor and pipeline", "one, selective", "tensor, sequence, full", "data and pipeline, distributed, full")
"""Layouts of four processes, and means to need less memory, in which adapters are checked, too."""
NAMES = {1: "one", 2: "two", 4: "four", 8: "eight"}


def forked(processes: int, work: Path, name: str, task: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Run a task in forked ranks of a process group; return what it returns on the first one.

    Raises:
        RuntimeError: a rank failed; the others are ended.
    """
    pids = {_fork(rank, processes, work, name, task): rank for rank in range(processes)}
    while pids:
        pid, status = os.wait()
        rank = pids.pop(pid)
        if status:
            for other in pids:
                os.kill(other, signal.SIGKILL)
            raise RuntimeError(f"{name}: rank {rank} of {processes} ended with status {os.waitstatus_to_exitcode(status)}")
    return json.loads((work / f"{name}.json").read_text())


def _fork(rank: int, processes: int, work: Path, name: str, task: Callable[[], dict[str, Any]]) -> int:
    if pid := os.fork():
        return pid
    try:
        size = str(processes)
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
        if processes > 1:
            store = dist.FileStore(str(work / f"{name}.store"), processes)
            dist.init_process_group("gloo", store=store, rank=rank, world_size=processes)
            keep_groups()
        answers = task()
        if rank == 0:
            (work / f"{name}.json").write_text(json.dumps(answers, indent=1))
        stop()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def keep_groups() -> None:
    """Make one group of each set of ranks for all layouts: each has a thread that spins once a peer has left the group."""
    made, new_group = {}, dist.new_group

    def kept(ranks: list[int] | None = None, **options: Any) -> Any:
        key = tuple(ranks) if ranks else None
        if key not in made:
            made[key] = new_group(ranks, **options)
        return made[key]

    dist.new_group = kept


def in_layouts(models: Models, work: Path) -> dict[str, Any]:
    """Run every check that fits the number of processes, in every layout."""
    size, model, directory = dist.get_world_size(), models["model"], work / "model"
    answers: dict[str, Any] = {}
    for name, parallel in LAYOUTS[size].items():
        restart(parallel)
        if size >= 4:
            answers[name] = parity.check_parity(directory, model, Variant(parallel))
            if name in ADAPTED:
                answers[name]["adapter"] = adapters.check_adapter(directory, model, Variant(parallel))
            continue
        answers[name] = in_layout(directory, model, parallel, work / "states" / name, name in SHARING)
        answers[name]["adapter"] = adapters.check_adapter(directory, model, Variant(parallel, name in SHARING))
        answers[name]["resumed adapter"] = adapters.check_resumed(directory, model, Variant(parallel, name in SHARING))
        answers[name]["others"] = {
            other: parity.check_parity(work / other, models[other], Variant(parallel))
            | ({"adapter": adapters.check_adapter(work / other, models[other], Variant(parallel))} if name == "one" else {})
            for other in OTHERS
            if name in ("one", "tensor", "pipeline") and models[other].config.num_hidden_layers % parallel.pipeline == 0
        }
        if name == "pipeline":
            answers[name]["nothing_left"] = refusals.nothing_left(directory, parallel)
        if name in ("tensor", "pipeline"):
            answers[name]["pretraining"] = refusals.pretraining(directory, parallel)
    return answers | {"variants": in_variants(models, work)}


def in_variants(models: Models, work: Path) -> dict[str, Any]:
    """Compare the layouts with Megatron's means, for a model of each family where two processes split the states by tokens."""
    answers: dict[str, Any] = {}
    for name, variant in VARIANTS[dist.get_world_size()].items():
        restart(variant.parallel)
        families = ("model", "Qwen3", "Llama with biases") if name == "tensor, sequence, full" else ("model",)
        answers |= {f"{name}, {family}": parity.check_parity(work / family, models[family], variant) for family in families}
        if name in ADAPTED:
            answers[f"{name}, model"]["adapter"] = adapters.check_adapter(work / "model", models["model"], variant)
    return answers


def in_layout(directory: Path, model: Qwen2ForCausalLM, parallel: Parallel, states: Path, distributed: bool) -> dict[str, Any]:
    """Run the checks of a layout of one or two processes; `states` gets the states for other layouts."""
    precisions = (False, True)  # computing in bfloat16 or not
    of_state = {
        "gathered": state.check_gathered(directory, parallel, distributed),
        "shares": state.check_shares(directory, parallel, distributed),
        "resumed": [
            state.check_resumed(directory, model, parallel, bf16, states / str(bf16), distributed) for bf16 in precisions
        ],
        "frozen": [state.check_frozen(directory, model, parallel, bf16, distributed) for bf16 in precisions],
    }
    if distributed:
        return of_state | {"stays": memory.check_stays()}
    trained = trained_model(directory, parallel)
    return of_state | {
        "logprobs": parity.check_logprobs(directory, model, parallel),
        "round_trip": parity.check_round_trip(directory, parallel),
        "gradients": {
            objective: parity.check_gradients(directory, model, trained, JOB.model_copy(update=changes))
            for objective, changes in parity.OBJECTIVES.items()
        },
        "refusals": refusals.check_refusals(directory, model, parallel),
        "reference": parity.check_reference(directory, parallel),
        "ceilings": parity.check_ceilings(directory, model, parallel),
        "step_metrics": parity.check_step_metrics(directory, model, parallel),
    }


def in_one_process(models: Models, work: Path) -> dict[str, Any]:
    """Run the checks of one process. The update that the command's is compared with, and that of the early end, come last."""
    model, directory = models["model"], work / "model"
    job = write_job(work, model)
    # It forks, so it runs before the process group starts.
    killed = state.check_killed(job.model_copy(update={"output": work / "killed", "keep_optimizer": True, "epochs": 1}))
    start(Parallel(), 0)
    answers = in_layouts(models, work) | {
        "killed": killed,
        "muon": learning.check_muon(directory),
        "selected": parity.check_selected(),
        "stretched_rotary": refusals.stretched_rotary(directory),
        "with_transformer_engine": refusals.with_transformer_engine(directory),
        "bandit": learning.check_bandit(directory, Parallel()),
        "grouped_bandit": learning.check_bandit(directory, Parallel(), group=8),
        "caps": learning.check_caps(directory, Parallel()),
        "part": learning.check_part(directory, Parallel()),
        "rejections": learning.check_rejections(directory, model),
        "peaks": memory.check_peaks(),
        "memory": memory.check_refused(directory),
        "adapter_bf16": adapters.check_bf16(directory, model),
    }
    answers |= {"adapter_updates": adapters.check_updates(job), "halfway": state.check_halfway(job)}
    ppo.run(job)
    return answers | {"ended": refusals.check_ended(job), "megatron_arguments": refusals.megatron_arguments(directory, job)}


def in_several(models: Models, work: Path) -> dict[str, Any]:
    """Run the checks of several processes."""
    start(Parallel(), 0)
    answers = in_layouts(models, work)
    return answers | ({"moved": state.check_moves(models["model"], work / "states")} if dist.get_world_size() == 2 else {})


def moved_back(models: Models, work: Path) -> dict[str, Any]:
    """Resume in one process from the states of several."""
    start(Parallel(), 0)
    return {"moved": state.check_moves(models["model"], work / "states")}


def on_device(model: Qwen2ForCausalLM, work: Path) -> dict[str, Any]:
    """Run the checks that depend on the device, and one update in bfloat16."""
    work.mkdir(exist_ok=True)
    directory = work / "model"
    model.save_pretrained(directory)
    start(Parallel(), 0)
    answers = {"logprobs": parity.check_logprobs(directory, model, Parallel()), **parity.check_device(directory, model)}
    ppo.run(write_job(work, model).model_copy(update={"precision": "bfloat16"}))
    return answers


def on_cpus(model: Qwen2ForCausalLM, work: Path) -> dict[str, Any]:
    """Run all checks on CPUs, one number of processes after the other."""
    models = {"model": model} | {name: tiny(**changes) for name, changes in OTHERS.items()}
    for name, saved in models.items():
        saved.save_pretrained(work / name)
        for drift in (0.0, 0.4):
            samples(saved, drift)  # the ranks have transformers' log-probabilities from here
    answers = forked(1, work, NAMES[1], partial(in_one_process, models, work))
    of_several = [forked(count, work, NAMES[count], partial(in_several, models, work)) for count in (2, 4, 8)]
    back = forked(1, work, "back", partial(moved_back, models, work))
    device = forked(1, work, "device", partial(on_device, model, work / "cpu"))
    merged = {"moved": of_several[0]["moved"] | back["moved"], "cpu": device}
    merged["variants"] = {name: found for part in (answers, *of_several) for name, found in part["variants"].items()}
    for part in of_several:
        answers |= part
    return answers | merged


def main() -> None:
    """Run the checks of the command line and write their numbers to answers.json."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--device", action="store_true", help="only the checks of the device, and one update in bfloat16")
    options = parser.parse_args()
    # Not from_pretrained: under the trainer's patches transformers 5.19 loads a model whose rotary embedding does nothing.
    model = tiny()
    if options.device:
        answers = on_device(model, options.work)
        stop()
    else:
        answers = on_cpus(model, options.work)
    (options.work / "answers.json").write_text(json.dumps(answers, indent=1))


if __name__ == "__main__":
    main()
