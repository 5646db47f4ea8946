"""What became of the versions, from the object store alone.

python -m tasks.experiments history | explain VERSION | recompute ID | export ID
"""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from infra import settings as settings_
from infra.settings import Settings
from infra.storage.store import ObjectStore
from tasks.experiments.reports import export, recompute
from tasks.experiments.reports.explain import UnknownVersion, explain
from tasks.experiments.reports.history import history


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code: 1 for what is not found, cannot be computed, or is computed differently."""
    options = _parser().parse_args(arguments)
    settings = settings_.load()
    try:
        return _run(options, settings, ObjectStore.connect(settings.store))
    except (UnknownVersion, recompute.NoDecision, export.NotExported, ValueError) as error:
        print(error, file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tasks.experiments", description=(__doc__ or "").split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    listing = commands.add_parser("history", help="list the moves of versions and the looks at experiments, oldest first")
    listing.add_argument("experiment", nargs="?", default="", help="id of the only experiment to list (default: all)")
    listing.add_argument("--count", type=int, default=100, help="most lines, the last ones (default: %(default)s)")
    listing.add_argument("--moves", action="store_true", help="leave out the looks")
    commands.add_parser("explain", help="tell how a version came to be where it is").add_argument("version")
    again = commands.add_parser("recompute", help="compute a decision again from its record, and compare bit by bit")
    again.add_argument("experiment", help="id of an experiment that has ended")
    exporting = commands.add_parser("export", help="write exposures and facts of an experiment as Parquet")
    exporting.add_argument("experiment", help="id of an experiment")
    exporting.add_argument("--folder", type=Path, default=Path("var/exports"), help="where to write (default: %(default)s)")
    return parser


def _run(options: argparse.Namespace, settings: Settings, store: ObjectStore) -> int:
    match options.command:
        case "history":
            lines = list(history(store, options.count, options.experiment, looks=not options.moves))
            of = f" of {options.experiment}" if options.experiment else ""
            print("\n".join(lines) if lines else f"no moves{of} in {store.uri('moves/')} yet; the watch records the first one")
        case "explain":
            for title, section in explain(store, options.version):
                print(f"{title}\n" + "".join(f"  {each}\n" for each in section))
        case "recompute":
            decision = recompute.read(store, options.experiment)
            different = list(recompute.differences(decision))
            said = f"{decision.experiment.id}: {decision.verdict.verdict}: {decision.verdict.reason}"
            print("\n".join([said, *(different or ["computed again from the record: the same, bit by bit"])]))
            return bool(different)
        case "export":
            written = export.export(store, settings, options.experiment, options.folder, time.time())
            lines = [f"{path}: {rows} rows" for path, rows in written.rows.items()]
            print("\n".join([*lines, *([written.note] if written.note else [])]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
