"""The evaluation sets that the settings name, as a cycle would build them now: `tabloop sets`.

The team's own set is made from a cycle's requests and not shown. The cycle also leaves out places that occur in training data.
"""

from collections import Counter

from rich.console import Console
from rich.table import Table

from infra.settings.evaluation import Evaluate
from tasks.evaluation.heldout.build import build


def show(evaluate: Evaluate) -> list[str]:
    """Print a row for each set; return the errors of the sets that cannot be built."""
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
    return errors
