"""The needs of teams of five sizes (tasks/experiments/planning/capacity.py)."""

from evals.docs.schema import INTROS, table
from infra.settings import Settings
from tasks.experiments.planning.capacity import Load, capacity, number

SIZES = {"100 a day": Load(1e2), "1,000": Load(1e3), "10,000": Load(1e4), "1M": Load(1e6, 24.0), "400M": Load(4e8, 24.0)}
"""Loads by the heading of their column."""


def page() -> str:
    """Return the page in Markdown."""
    found = [capacity(load, Settings()) for load in SIZES.values()]
    parts = zip(*(each.rows for each in found), strict=True)
    rows = [(rows[0].part, *(row.needs for row in rows)) for rows in parts]
    ends = [f"{each.first.part}: {number(each.first.used)} times what it may use. {each.do}" for each in found]
    needs = table(("", *SIZES), [*rows, ("nearest to its limit", *ends)])
    known = table(("", "how it is known"), [(row.part, row.basis) for row in found[0].rows])
    return INTROS["capacity"] + needs + "\n## How it is known\n\n" + known
