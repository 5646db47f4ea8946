"""Compute a decision of the gate or of a probation again, from its record alone, and compare the verdicts bit by bit."""

from collections.abc import Iterator

from infra.records import Decision, Verdict
from infra.records.experiments import RULES
from infra.storage.cycles import decision_of
from infra.storage.store import ObjectStore
from tasks.experiments.controller import probation
from tasks.experiments.counting.totals import of_evidence
from tasks.experiments.moves.log import ids
from tasks.experiments.planning.plan import plan_of
from tasks.experiments.stages import ramp, shadow
from tasks.experiments.verdict import anchor
from tasks.experiments.verdict.decide import decide


class NoDecision(LookupError):
    """The store has no decision of this id."""


def read(store: ObjectStore, identifier: str) -> Decision:
    """Return a decision. Raises NoDecision."""
    if decision := decision_of(store, identifier):
        return decision
    known = ids(store, "decisions")
    raise NoDecision(
        f"{store.uri(f'decisions/{identifier}.json')} does not exist; expected the id of an experiment that has ended"
        + (f", the latest are {', '.join(known[-5:])}" if known else ", and none has ended yet")
    )


def recompute(decision: Decision) -> Verdict:
    """Return the verdict of a decision of the gate or of a probation again, from its record alone.

    Raises:
        ValueError: the decision holds no evidence, or was made by rules of another number.
    """
    experiment, name = decision.watched or decision.experiment, decision.experiment.id
    if decision.evidence is None and decision.copies is None:
        raise ValueError(
            f"the decision on {name}, by {decision.by}: expected one of the gate or a probation with `evidence` or `copies`, "
            "found neither; a move by hand, the end of a test that was void, and a decision from before they were recorded "
            "cannot be computed again"
        )
    plan = plan_of(experiment)
    if plan.rules != RULES:
        raise ValueError(
            f"the decision on {name}: expected rules {RULES}, which this code has, found rules {plan.rules}; "
            "check out a commit whose RULES (infra/records/experiments.py) are these to compute it again"
        )
    if decision.copies:
        return shadow.verdict_of(plan, decision.copies, shadow.seconds_left(experiment, plan, decision.decided))[0]
    assert decision.evidence
    totals = of_evidence(decision.evidence)
    if decision.watched:
        judge = anchor if experiment.stage.name == anchor.ANCHOR else probation
        return probation.taken_back(judge.verdict_of(experiment, plan, totals))
    if experiment.counting.name == "ramp":
        return ramp.verdict_of(experiment, plan, totals, decision.decided)[0]
    return decide(experiment, plan, totals, decision.decided)


def differences(decision: Decision) -> Iterator[str]:
    """Yield each field of a decision's verdict that is computed differently now; nothing if all bits are the same.

    The verdict is written as JSON and read again first, as the record was; JSON holds every float exactly.

    Raises:
        ValueError: the decision holds no evidence, or was made by rules of another number.
    """
    computed = recompute(decision)
    found = Verdict.model_validate_json(computed.model_dump_json()).model_dump()
    held = decision.verdict.model_fields_set  # a record from before a field existed does not hold it
    for name, recorded in decision.verdict.model_dump().items():
        if name in held and found[name] != recorded:
            yield f"{name}: recorded {recorded!r}, computed {found[name]!r}"
