"""Who is to be forgotten: one record each, under forgotten/, which every reader of events asks for first."""

from collections.abc import Iterable
from dataclasses import dataclass

from infra.records import Forgotten
from infra.store import ObjectStore, sha256

PREFIX = "forgotten/"


class ErasedDuringCycle(RuntimeError):
    """Somebody was forgotten while a cycle held their requests."""


@dataclass(frozen=True)
class ErasedSubjects:
    """Users and projects that are to be forgotten."""

    users: frozenset[str] = frozenset()
    projects: frozenset[str] = frozenset()

    def hold(self, user: str, project: str) -> bool:
        """Whether something of this user in this project is to be forgotten."""
        return user in self.users or project in self.projects

    def columns(self) -> tuple[tuple[str, frozenset[str]], ...]:
        """The names by the column that they stand in."""
        return tuple(pair for pair in (("user", self.users), ("project", self.projects)) if pair[1])


def subjects(records: Iterable[Forgotten]) -> ErasedSubjects:
    """The names of records."""
    every = list(records)
    return ErasedSubjects(
        frozenset(r.subject for r in every if r.kind == "user"), frozenset(r.subject for r in every if r.kind == "project")
    )


def digest(kind: str, subject: str) -> str:
    """What a record is called."""
    return f"{kind}-{sha256([subject.encode()])[:32]}"


def read_all(store: ObjectStore) -> list[Forgotten]:
    """All records."""
    return [Forgotten.model_validate(store.get_json(key)) for key in store.keys(PREFIX)]


def write(store: ObjectStore, record: Forgotten) -> Forgotten:
    """Write a record, once; the one that stands."""
    return store.put_once(f"{PREFIX}{digest(record.kind, record.subject)}.json", record)


def check(store: ObjectStore, requests: Iterable[tuple[str, str]]) -> None:
    """Look again before a cycle is sealed; `requests` are the user and project of each of them.

    Raises:
        ErasedDuringCycle: some of them are to be forgotten.
    """
    unwanted = subjects(read_all(store))
    if found := sum(unwanted.hold(user, project) for user, project in requests):
        raise ErasedDuringCycle(
            f"{found} requests of this cycle are of a user or project that was forgotten since they were collected; nothing was "
            "sealed, the next run collects without them: `prefect deployment run cycle/cycle`"
        )
