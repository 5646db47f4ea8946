"""Run the watch in processes that a test can kill at any moment: python -m tests.flows.watches FOLDER

The process imports everything once. For each line of its input, pickled settings in hex, it forks a child that runs the steps of
the flow `experiment` without Prefect's engine, and writes the pages that it would show there to the folder. It prints the child's
process id, what the child's run ended as, and its exit status.
"""

import json
import logging
import os
import pickle
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

import infra.settings
from infra.settings import Settings


def run(settings: Settings, folder: Path) -> tuple[str, str]:
    """Run the flow once; return the name and the message of its state."""
    from prefect import Task

    from flows.experiment import experiment
    from tasks.steps import erasures, step
    from tasks.steps import experiment as steps

    for module in (steps, erasures):
        for name, value in list(vars(module).items()):
            if isinstance(value, Task):
                setattr(module, name, value.fn)
    stand_ins: list[tuple[Any, str, Any]] = [
        (steps, "get_run_logger", logging.getLogger),
        (erasures, "get_run_logger", logging.getLogger),
        (step, "get_run_logger", logging.getLogger),
        (step, "create_markdown_artifact", lambda page, key: (folder / f"{key}.md").write_text(page)),
        (infra.settings, "load", lambda: settings),
    ]
    for module, name, stand_in in stand_ins:
        setattr(module, name, stand_in)
    state = experiment.fn()
    return str(state.name), str(state.message)


def main() -> None:
    import flows.experiment  # before the first fork

    assert flows.experiment
    for line in sys.stdin:
        read, write = os.pipe()
        if (child := os.fork()) == 0:
            code = 1
            try:
                os.write(write, json.dumps(run(pickle.loads(bytes.fromhex(line)), Path(sys.argv[1]))).encode())
                code = 0
            except Exception:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        os.close(write)
        print(child, flush=True)
        status = os.waitpid(child, 0)[1]
        said = Path(f"/dev/fd/{read}").read_text() if status == 0 else ""
        os.close(read)
        print(said or json.dumps(["killed" if status == signal.SIGKILL else "failed", ""]), flush=True)


if __name__ == "__main__":
    main()
