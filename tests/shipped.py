"""Wait until what developers typed is in the object store."""

import time
from dataclasses import dataclass, field

from infra.records import Completion, Feedback
from infra.storage.store import ObjectStore

SECONDS = 60.0


@dataclass
class Shipped:
    """The events of an object store, of which each object is read once."""

    store: ObjectStore
    read: set[str] = field(default_factory=set)
    """Keys of the objects that were read."""
    completions: set[str] = field(default_factory=set)
    judged: set[str] = field(default_factory=set)
    """Completions with feedback."""

    def wait_for(self, completions: set[str]) -> None:
        """Wait until these completions and the feedback on them are in the store: none is lost."""
        deadline = time.monotonic() + SECONDS
        while missing := completions - self._found():
            assert time.monotonic() < deadline, f"{len(missing)} of {len(completions)} not in the store after {SECONDS:.0f} s"
            time.sleep(0.05)

    def _found(self) -> set[str]:
        for key in {*self.store.keys("events/completions/"), *self.store.keys("events/feedback/")} - self.read:
            if key.startswith("events/completions/"):
                self.completions |= {row.id for row in self.store.get_rows(key, Completion)}
            else:
                self.judged |= {row.completion_id for row in self.store.get_rows(key, Feedback)}
            self.read.add(key)
        return self.completions & self.judged
