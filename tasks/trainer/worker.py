"""A trainer process that ends with its launcher, as a cycle starts it.

torchrun --standalone --nproc_per_node 1 -m tasks.trainer.worker --job job.json

torchrun starts each process in a session of its own, where no signal to the launcher's group comes, and a launcher that is killed
ends none of them.
"""

import ctypes
import signal

LIBC = ctypes.CDLL(None)  # loaded here: between fork and exec nothing may be imported
PR_SET_PDEATHSIG = 1


def end_with_parent(number: signal.Signals) -> None:
    """Get this signal when the process that started this one ends, however it ends; on Linux alone."""
    if hasattr(LIBC, "prctl"):
        LIBC.prctl(PR_SET_PDEATHSIG, number)


def main() -> None:
    """Run the job file named on the command line; what is written, is written whole, so that SIGKILL does no harm."""
    end_with_parent(signal.SIGKILL)
    from tasks.trainer.update import ppo  # takes seconds, of torch and Megatron

    ppo.main()


if __name__ == "__main__":
    main()
