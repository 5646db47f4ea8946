"""Run a part of the stack: python -m infra.stack.launch STATE PART COMMAND...

Ends what is left of the part's previous run, records the process group, and replaces itself by the command.
"""

import os
import sys
from pathlib import Path

from infra.stack import processes


def main(arguments: list[str]) -> None:
    """Replace this process by the part's command."""
    state, part, *command = arguments
    # A child that survives its killed parent would keep its port or its database locked.
    if ended := processes.kill(processes.leftovers(Path(state), part)):
        print(f"launch: ended {ended} process(es) left by the previous run of {part}", flush=True)
    processes.record_group(Path(state), part)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
