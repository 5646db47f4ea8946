"""The progress of the running cycle."""

from pydantic import Field

from infra.records.base import Record


class CycleProgress(Record):
    """The stage of the running cycle, which its run writes again at each stage and as the stage goes on."""

    run: str
    """Prefect's id of the run."""
    stage: str
    """Name of the step that runs."""
    started: float
    """When the stage began, in Unix seconds."""
    seen: float
    """When this was written."""
    done: float = 0.0
    """Work of the stage that is done, in its own unit, such as steps of the trainer."""
    of: float = 0.0
    """Work of the stage in all; 0: unknown."""
    awaits_gpus: float = 0.0
    """Since when the stage waits for GPUs; 0: it does not."""
    seconds: dict[str, float] = Field(default={})
    """Seconds of each stage of this run that has ended."""
    usual: dict[str, float] = Field(default={})
    """Seconds of each stage in the last run that had it."""

    def entered(self, run: str, stage: str, now: float) -> "CycleProgress":
        """Return the progress at the beginning of a stage, of the same run or of the next one."""
        spent = self.seconds.get(self.stage, 0.0) + now - self.started
        seconds = self.seconds | {self.stage: spent} if run == self.run else {}
        usual = self.usual if run == self.run else self.usual | self.seconds
        return CycleProgress(run=run, stage=stage, started=now, seen=now, seconds=seconds, usual=usual)

    def advanced(self, done: float, of: float, now: float) -> "CycleProgress":
        """Return the progress after a part of the stage's work."""
        return self.model_copy(update={"done": done, "of": of, "seen": now, "awaits_gpus": 0.0})

    def waiting(self, now: float) -> "CycleProgress":
        """Return the progress while the stage waits for GPUs."""
        return self.model_copy(update={"seen": now, "awaits_gpus": self.awaits_gpus or now})
