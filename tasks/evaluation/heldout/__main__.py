"""Show the evaluation sets that the settings name, as a cycle would build them now: python -m tasks.evaluation.heldout

The team's own set is made from a cycle's requests and not shown. The cycle also leaves out places that occur in training data.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from infra import settings as settings_
from tasks.evaluation.heldout.build import build


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a row for each set; return 1 if a set cannot be built."""
    parser = argparse.ArgumentParser(prog="python -m tasks.evaluation.heldout", description=(__doc__ or "").split("\n")[0])
    parser.parse_args(arguments)
    evaluate = settings_.load().evaluate
    table, errors = Table("set", "kind", "places", "files", "languages", "with tests", "left out"), []
    for wanted in evaluate.sets:
        if wanted.kind == "team":
            continue
        try:
            found = build(wanted, evaluate)
        except ValueError as error:
            errors.append(str(error))
            continue
        languages = Counter(place.language or "unknown" for place in found.places)
        table.add_row(
            *(wanted.name, wanted.kind, str(len(found.places)), str(len({place.file for place in found.places}))),
            ", ".join(f"{name} {count}" for name, count in languages.most_common()),
            str(sum(place.program is not None for place in found.places)),
            ", ".join(f"{reason} {count}" for reason, count in found.left_out.items() if count) or "none",
        )
    Console().print(table)
    for message in errors:
        print(message, file=sys.stderr)
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
