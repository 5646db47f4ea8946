"""Run a part of the stack: python -m infra.stack.launch STATE PART COMMAND...

Ends what is left of the part's previous run, records the process group, adds the part's own credentials to the environment, and
replaces itself by the command.
"""

import json
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
    credentials = json.loads(credentials_file(Path(state), part).read_text())
    os.execvpe(command[0], command, {**os.environ, **credentials})


def credentials_file(state: Path, part: str) -> Path:
    """Return the file with the environment variables that one part alone gets, as JSON."""
    return state / "credentials" / f"{part}.json"


if __name__ == "__main__":
    main(sys.argv[1:])
