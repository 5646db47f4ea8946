"""Settings of retention."""

from pydantic import Field

from infra.settings.section import Section


class Retention(Section):
    events_days: float = Field(90.0, gt=0)
    """Days to keep events. At least nine, since cycles look back a week, and three more than the longest test with its watch: 32
    where `experiment.max_seconds` is 0. At least 31 beside an anchor (`experiment.anchor_share`)."""
    cycles_days: float = Field(180.0, gt=0)
    """Days to keep the rows of a finished cycle: samples, quarantined rows, validation pages, the held-out set of the team. Its
    manifest and outcome stay. At least as many as `events_days` must be."""
    checkpoints_days: float = Field(30.0, gt=0)
    """Days to keep the checkpoint of a finished cycle, counted from its manifest. A checkpoint that may still be served or
    trained stays (tasks/upkeep/checkpoint_gc.py)."""
    champions_kept: int = Field(3, ge=0)
    """Number of former champions whose checkpoints stay at any age, for a rollback by hand; 0: only the current one."""
