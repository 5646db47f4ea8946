"""The states of a version and the moves between them.

The log of moves (infra/storage/moves.py) holds them. The registry shows them: the aliases those of champion and challenger,
the tag `state` of a version those of the others.
"""

from collections.abc import Mapping
from typing import Literal, get_args

from infra.records import ExperimentRecord, MoveKind, Stage, StageName, State
from infra.registry.client import STATE_TAG, Aliases, ModelVersion

GATE = "gate"
"""Who decides on a test, unless a person does."""
ManualKind = Literal["promote", "roll_back"]
"""The moves that a person asks for."""

LEGAL: Mapping[MoveKind, Mapping[State, State]] = {
    "open": {"candidate": "challenger"},
    "advance": {"challenger": "challenger"},
    "reject": {"challenger": "failed"},
    "stop": {"challenger": "candidate"},
    "promote": {
        "candidate": "champion",
        "challenger": "champion",
        "retired": "champion",
        "failed": "champion",
        "rolled_back": "champion",
    },
    "roll_back": {"retired": "champion"},
    "settle": {"champion": "champion"},
}
"""The state after each move, by the state before it. A move by hand in MLflow is recorded whatever it does."""
AFTER: Mapping[StageName | None, frozenset[StageName]] = {
    None: frozenset({"shadow", "ramp", "test"}),
    "shadow": frozenset({"ramp", "test"}),
    "ramp": frozenset({"ramp", "test", "paused"}),
    "test": frozenset({"paused", "watch"}),
    "paused": frozenset({"ramp", "test", "watch"}),
    "watch": frozenset(),
    "anchor": frozenset(),
}
"""The stages that may follow each stage of a challenger's test; None: it opens. A pause is followed by what it interrupted."""
LEAVES: Mapping[ManualKind, State] = {"promote": "retired", "roll_back": "rolled_back"}
"""The state of the champion that a move replaces."""
NEEDS_REASON: frozenset[State] = frozenset({"failed", "rolled_back"})
"""States from which a version is promoted only with a reason, since the loop decided against it."""
NEXT: Mapping[ManualKind, Mapping[State, str]] = {
    "promote": {
        "champion": "It is served already; `tabloop rollback` puts the champion before it back",
        "failed": "Its test rejected it; to promote it all the same, say why: `tabloop promote {version} --reason '...'`",
        "rolled_back": "It was taken back; to promote it all the same, say why: `tabloop promote {version} --reason '...'`",
    },
    "roll_back": {
        "champion": "It is served already; `tabloop rollback` without a version puts the champion before it back",
        "candidate": "It was never champion: `tabloop promote {version}`",
        "challenger": "It was never champion: `tabloop promote {version}`",
        "failed": "Its test rejected it; to serve it all the same, say why: `tabloop promote {version} --reason '...'`",
        "rolled_back": "It was taken back; to serve it all the same, say why: `tabloop promote {version} --reason '...'`",
    },
}
"""What to do where a person's move is refused, by the state of the version."""


class IllegalMove(ValueError):
    """A version cannot make this move from its state."""


class IllegalStage(ValueError):
    """A test cannot enter this stage after its last one."""


def enter(experiment: ExperimentRecord, stage: Stage) -> ExperimentRecord:
    """Return the record of a test with its next stage.

    Raises:
        IllegalStage: the stage does not follow the last one, or takes users back from the challenger in a growing ramp.
        ValueError: it starts before the last one.
    """
    last = experiment.stages[-1] if experiment.stages else None
    before = last.name if last else "test"  # a test from before stages were recorded
    if stage.name not in AFTER[before]:
        expected = ", ".join(sorted(AFTER[before])) or "none: it has ended"
        raise IllegalStage(f"experiment {experiment.id}: stage {stage.name} after {before}, expected {expected}")
    interrupted = experiment.counting
    if before == "paused" and stage.name != "watch" and (stage.name, stage.share) != (interrupted.name, interrupted.share):
        expected = f"{interrupted.name} at {interrupted.share:.0%}, which was paused"
        raise IllegalStage(f"experiment {experiment.id}: {stage.name} at {stage.share:.0%} after a pause, expected {expected}")
    if last and stage.share < last.share:
        raise IllegalStage(f"experiment {experiment.id}: share {stage.share:g} after {last.share:g}, expected no smaller one")
    return ExperimentRecord(**dict(experiment) | {"stages": (*experiment.stages, stage)})


def state_of(version: ModelVersion, aliases: Aliases) -> State:
    if version.version == aliases.champion:
        return "champion"
    if version.version == aliases.challenger:
        return "challenger"
    return recorded(version)


def recorded(version: ModelVersion) -> State:
    """Return the state of a version by its tag: its latest move's; a version that was never moved is a candidate."""
    tag = version.tags.get(STATE_TAG)
    return next((state for state in get_args(State) if state == tag), "candidate")


def check(kind: ManualKind, version: str, state: State, reason: str) -> None:
    """Check that a person may move a version from its state.

    Raises:
        IllegalMove: the table does not allow it, or it needs a reason and has none.
    """
    allowed = state in LEGAL[kind]
    if allowed and (reason or state not in NEEDS_REASON):
        return
    expected = "a reason" if allowed else f"a version in state {' or '.join(LEGAL[kind])}"
    move, then = kind.replace("_", " "), NEXT[kind][state].format(version=version)
    raise IllegalMove(f"{move}: version {version} is {state.replace('_', ' ')}, expected {expected}; nothing was changed. {then}")
