"""A trainer process, which ends when its launcher ends.

torchrun --standalone --nproc_per_node 1 -m tasks.trainer.worker --job job.json

torchrun starts each process in a session of its own, so that signals to the launcher's group do not reach it, and a killed
launcher ends none of them.
"""

import argparse
import ctypes
import logging
import signal
import sys
import warnings
from pathlib import Path

from infra.stack.imports import uncollected
from infra.stack.priority import lower_priority

LIBC = ctypes.CDLL(None)  # loaded here: nothing may be imported between fork and exec
PR_SET_PDEATHSIG = 1


def end_with_parent(number: signal.Signals) -> None:
    """Make the kernel send this signal when the process that started this one ends, on Linux."""
    if hasattr(LIBC, "prctl"):
        LIBC.prctl(PR_SET_PDEATHSIG, number)


def main() -> None:
    """Run the job file named on the command line. Every file is written atomically, so that SIGKILL does no harm."""
    end_with_parent(signal.SIGKILL)
    lower_priority()
    parser = argparse.ArgumentParser(prog="python -m tasks.trainer.worker", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--job", type=Path, required=True, help="job.json (tasks/trainer/job.py)")
    parser.add_argument("--silent", action="store_true", help="print no metrics: another node of the update does")
    options = parser.parse_args()

    # Imported here: the launcher's process imports this module, without the seconds of torch and Megatron.
    with uncollected():
        from tasks.trainer.model.process_group import Parallel, node_and_place, start, stop

        # isort: split
        import torch
        import torch.distributed as dist

        from tasks.trainer.job import REFUSED_NAME, Job
        from tasks.trainer.memory.fit import DoesNotFit
        from tasks.trainer.model.architecture import check_arguments
        from tasks.trainer.update import ppo
        from tasks.trainer.update.precision import UnsuitablePrecision
        from tasks.trainer.update.safety import HarmfulUpdate

    warnings.filterwarnings("ignore", module="megatron")
    try:
        job = Job.model_validate_json(options.job.read_text())
        check_arguments(job.megatron_arguments)
    except ValueError as error:
        sys.exit(f"trainer: {error}")
    if job.threads:
        torch.set_num_threads(job.threads)
    start(Parallel(job.tensor_parallel, job.pipeline_parallel), job.seed)
    # Every rank has the same metrics: the first one of the flow's machine prints them.
    says = node_and_place()[1] and not options.silent
    logging.basicConfig(level=logging.INFO if says else logging.WARNING, format="%(message)s")
    job.output.mkdir(parents=True, exist_ok=True)
    try:
        ppo.run(job)
    except (DoesNotFit, UnsuitablePrecision) as error:
        sys.exit(f"trainer: {error}")
    except HarmfulUpdate as refused:
        # Every rank writes the same reason: torchrun ends the others as soon as the first rank has left.
        partial = job.output / f"{REFUSED_NAME}.{dist.get_rank()}.partial"
        partial.write_text(str(refused))
        partial.rename(job.output / REFUSED_NAME)
        sys.exit(f"trainer: the update is refused, the weights stay: {refused}")
    stop()


if __name__ == "__main__":
    main()
