"""Compute a decision of the gate again, from its record alone, and compare the verdicts bit by bit."""

from collections.abc import Iterator

from infra.cycles import decision_of
from infra.records import Decision, Verdict
from infra.settings import Settings
from infra.store import ObjectStore
from tasks.experiments import decide


class NoDecision(KeyError):
    """The store has no decision of this id."""

    def __str__(self) -> str:
        return str(self.args[0])  # KeyError puts its text in quotes


def read(store: ObjectStore, identifier: str) -> Decision:
    """Return a decision. Raises NoDecision."""
    if decision := decision_of(store, identifier):
        return decision
    known = [key.removeprefix("decisions/").removesuffix(".json") for key in store.keys("decisions/")]
    raise NoDecision(
        f"{store.uri(f'decisions/{identifier}.json')} does not exist; expected the id of an experiment that has ended"
        + (f", the latest are {', '.join(known[-5:])}" if known else ", and none has ended yet")
    )


def differences(decision: Decision, settings: Settings) -> Iterator[str]:
    """Yield each field of a decision's verdict that is computed differently now; nothing if all bits are the same.

    The verdict is written as JSON and read again first, as the record was; JSON holds every float exactly.

    Raises:
        ValueError: the decision holds no evidence, or was made by rules of another number.
    """
    computed = decide.recompute(decision, settings.experiment, settings.collect)
    found = Verdict.model_validate_json(computed.model_dump_json()).model_dump()
    for name, recorded in decision.verdict.model_dump().items():
        if found[name] != recorded:
            yield f"{name}: recorded {recorded!r}, computed {found[name]!r}"
