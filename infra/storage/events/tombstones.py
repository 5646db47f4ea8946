"""The users and projects to erase: a record each under forgotten/, which every reader of events reads first."""

from collections.abc import Iterable
from dataclasses import dataclass

from infra.records import Forgotten
from infra.storage.store import ObjectStore, sha256

PREFIX = "forgotten/"


class ErasedDuringCycle(RuntimeError):
    """A user or project was erased while a cycle held its requests."""


@dataclass(frozen=True)
class ErasedSubjects:
    """Users and projects to erase."""

    users: frozenset[str] = frozenset()
    projects: frozenset[str] = frozenset()

    def hold(self, user: str, project: str) -> bool:
        """Return whether the events of this user in this project are erased."""
        return user in self.users or project in self.projects

    def columns(self) -> tuple[tuple[str, frozenset[str]], ...]:
        """Return the names by the column that holds them."""
        return tuple(pair for pair in (("user", self.users), ("project", self.projects)) if pair[1])


def subjects(records: Iterable[Forgotten]) -> ErasedSubjects:
    known = list(records)
    return ErasedSubjects(
        frozenset(r.subject for r in known if r.kind == "user"), frozenset(r.subject for r in known if r.kind == "project")
    )


def digest(kind: str, subject: str) -> str:
    """Return the name of a record."""
    return f"{kind}-{sha256([subject.encode()])[:32]}"


def read_all(store: ObjectStore) -> list[Forgotten]:
    return [Forgotten.model_validate(store.get_json(key)) for key in store.keys(PREFIX)]


def write(store: ObjectStore, record: Forgotten) -> Forgotten:
    """Write a record once and return the record that is stored."""
    return store.put_once(f"{PREFIX}{digest(record.kind, record.subject)}.json", record)


def check(store: ObjectStore, requests: Iterable[tuple[str, str]]) -> None:
    """Read the records again before a cycle is sealed; `requests` are the user and project of each request. Raises
    ErasedDuringCycle if some of the requests are erased."""
    erased = subjects(read_all(store))
    if count := sum(erased.hold(user, project) for user, project in requests):
        raise ErasedDuringCycle(
            f"{count} requests of this cycle are of a user or project that was erased after they were collected. Nothing was "
            "sealed; the next run collects without them: `prefect deployment run cycle/cycle`"
        )
