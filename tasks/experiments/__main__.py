"""What became of the versions, from the object store alone: python -m tasks.experiments history | explain VERSION"""

import argparse
import sys
from collections.abc import Sequence

from infra import settings as settings_
from infra.store import ObjectStore
from tasks.experiments.explain import UnknownVersion, explain
from tasks.experiments.history import history


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code: 1 for a version that nothing names."""
    parser = argparse.ArgumentParser(prog="python -m tasks.experiments", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    listing = commands.add_parser("history", help="list the moves of all versions, oldest first")
    listing.add_argument("--count", type=int, default=100, help="most moves to list, the last ones (default: %(default)s)")
    commands.add_parser("explain", help="tell how a version came to be where it is").add_argument("version")
    options = parser.parse_args(arguments)
    store = ObjectStore.connect(settings_.load().store)
    if options.command == "history":
        lines = list(history(store, options.count))
        print("\n".join(lines) if lines else f"no moves in {store.uri('moves/')} yet; the watch records the first one")
        return 0
    try:
        for title, section in explain(store, options.version):
            print(f"{title}\n" + "".join(f"  {each}\n" for each in section))
    except UnknownVersion as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
