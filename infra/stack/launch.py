"""Becomes one part of the stack: ends what is left of the part's earlier run, notes its process group, runs its command.

python -m infra.stack.launch STATE PART COMMAND...
"""

import os
import sys
from pathlib import Path

from infra.stack import processes


def main(arguments: list[str]) -> None:
    state, part, *command = arguments
    # A child that outlived a killed parent would hold its port or its database.
    if ended := processes.kill(processes.leftovers(Path(state), part)):
        print(f"launch: ended {ended} process(es) left by the earlier run of {part}", flush=True)
    processes.record_group(Path(state), part)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
