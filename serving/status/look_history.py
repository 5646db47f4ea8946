"""The gate's looks at the running experiment, or at the last one, read from the object store."""

from dataclasses import dataclass

from infra.records import ExperimentRecord, Look
from infra.storage import looks
from infra.storage.store import ObjectStore

MOST_POINTS = 60
"""Looks that are read, about: enough for a chart."""


@dataclass(frozen=True)
class Watched:
    """An experiment with some of its looks."""

    experiment: ExperimentRecord
    """Its record with the plan; of a running one, with its stages."""
    looks: tuple[Look, ...]
    """Some of its looks, the newest last; there is at least one."""

    @property
    def last(self) -> Look:
        """The newest look."""
        return self.looks[-1]


class LookHistory:
    """Reads an experiment's looks. They never change, so each is read once."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._looks: dict[tuple[str, int], Look] = {}
        self._records: dict[str, ExperimentRecord] = {}

    def of(self, experiment: str, running: ExperimentRecord | None) -> Watched | None:
        """Return an experiment with its looks; None before the first. Raises the store's errors.

        Args:
            experiment: id of the experiment.
            running: its record in the registry if it runs, which has its stages.
        """
        newest = looks.newest_number(self._store, experiment)
        if not newest:
            return None
        wanted = [(experiment, number) for number in looks.thinned(newest, MOST_POINTS)]
        self._looks = {key: self._looks.get(key) or looks.read(self._store, *key) for key in wanted}
        record = running if running and running.id == experiment else self._record(experiment)
        return Watched(record, tuple(self._looks.values()))

    def _record(self, experiment: str) -> ExperimentRecord:
        if experiment not in self._records:
            record = ExperimentRecord.model_validate(self._store.get_json(f"experiments/{experiment}.json"))
            self._records = {experiment: record}
        return self._records[experiment]
