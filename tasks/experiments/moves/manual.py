"""Promote, roll back and reject by hand, and pause a running test.

Until a paused test is resumed only a breach ends it, and its clock goes on.
"""

from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from infra.records import Decision, ExperimentRecord, MoveRequest, Stage, State, Verdict
from infra.registry.client import REMOVED_TAG, Aliases, NotRegistered, Registry
from infra.registry.lineage import EVALUATION_TAG, PROJECT_TAG
from infra.storage import cycles
from infra.storage import moves as log
from infra.storage.store import ObjectStore
from tasks.experiments.moves import log as moves
from tasks.experiments.moves import release
from tasks.experiments.stages import shares as stages
from tasks.experiments.stages import states
from tasks.experiments.stages.states import ManualKind

PAUSED_IN = ("ramp", "test")
"""The stages that can be paused: in the shadow nobody is served, and a version that is watched is champion."""
MOST_PAUSES = 5
"""Pauses of a test: its record, which has a reason of each and of its end, must fit into a tag of the registry."""
MOST_NAMED = 10
"""Versions that an error lists."""
COMMANDS: dict[ManualKind, str] = {"promote": "promote", "roll_back": "rollback"}
WARNINGS = {
    "failed": "failed the held-out gate: it is surely worse than the champion it was compared with",
    "undecided": "did not pass the held-out gate: it is not surely as good as the champion it was compared with",
}
"""Meaning of the gate's verdicts for a promotion by hand."""


class NothingToDo(ValueError):
    """A manual promotion or rollback without a version to move to."""


class CheckpointRemoved(ValueError):
    """The weights of the version to serve were removed."""


class OtherProject(ValueError):
    """The version was trained for another project."""


class MovedMeanwhile(RuntimeError):
    """The champion was moved by somebody else during a manual move."""


@dataclass(frozen=True)
class Plan:
    """What a manual move would do."""

    kind: ManualKind | Literal["reject"]
    version: str
    """Version to make champion, or to reject; where a rollback ends a paused test, the champion that stays."""
    state: State
    """Its state now."""
    champion: str
    """The champion that it replaces; empty: there is none."""
    running: ExperimentRecord | None
    """The experiment that the move ends."""
    rejects: bool = False
    """The challenger of the running test is rejected, and the champion stays: a rejection, or a rollback of a paused test."""
    evaluation: str = "passed"
    """Verdict of the held-out gate on the version."""

    @property
    def warning(self) -> str:
        """What speaks against the move; empty: nothing is known."""
        if self.kind != "promote" or self.evaluation == "passed":
            return ""
        says = WARNINGS.get(self.evaluation, f"has the unknown verdict {self.evaluation!r} of the held-out gate")
        return (
            f"version {self.version} {says}; evaluation.json of its cycle and its page in MLflow say why. "
            "`tabloop rollback` puts the champion before it back"
        )

    def summary(self) -> str:
        """Return the plan as a sentence."""
        if self.rejects and self.running:
            rejected = f"version {self.running.challenger} is rejected, and its test {self.running.id} ends"
            return f"{rejected}; version {self.champion} stays champion"
        assert self.kind != "reject"
        left = states.LEAVES[self.kind].replace("_", " ")
        ends = f"; the test {self.running.id} ends" if self.running else ""
        replaced = f", version {self.champion} is {left}" if self.champion else ""
        moved = f"version {self.version} ({self.state.replace('_', ' ')}) becomes champion{replaced}{ends}"
        return f"{moved}. Warning: {self.warning}" if self.warning else moved


def plan(store: ObjectStore, registry: Registry, request: MoveRequest) -> Plan:
    """Return what a move would do; it changes nothing, but what has been moved in MLflow is recorded.

    Without a version, a promotion or a rejection means the challenger, and a rollback the newest retired champion.

    Raises:
        NothingToDo: no version is given, and there is none to choose.
        NotRegistered: the registry does not know the version.
        CheckpointRemoved: retention has removed the version's checkpoint.
        OtherProject: the version was trained for another project.
        IllegalMove: the version's state does not allow the move.
    """
    kind: ManualKind = "promote" if request.kind == "promote" else "roll_back"
    moves.catch_up(store, registry, request.time)
    aliases, version = registry.aliases(), request.version
    if request.kind == "reject":
        running = _test_of(registry, version or aliases.challenger or "")
        return Plan("reject", running.challenger, "challenger", aliases.champion or "", running, rejects=True)
    paused = aliases.experiment and aliases.experiment.stage.name == "paused"
    if kind == "roll_back" and paused and version in ("", aliases.champion):
        return Plan(kind, aliases.champion or "", "champion", aliases.champion or "", aliases.experiment, rejects=True)
    version = version or _default(store, registry, kind, aliases)
    check_servable(registry, version)
    found = registry.version(version)
    if (made_for := found.tags.get(PROJECT_TAG, "")) not in ("", registry.project):
        raise OtherProject(
            f"{kind.replace('_', ' ')}: version {version} was trained for project {made_for}, expected a version of "
            f"{f'project {registry.project} or of ' if registry.project else ''}the common loop; nothing was changed. For that "
            f"project: `tabloop {COMMANDS[kind]} {version} --project {made_for}`"
        )
    state = states.state_of(found, aliases)
    states.check(kind, version, state, request.reason)
    # A version that was registered by hand has no verdict.
    evaluation = found.tags.get(EVALUATION_TAG, "passed")
    return Plan(kind, version, state, aliases.champion or "", aliases.experiment, evaluation=evaluation)


def promote(store: ObjectStore, registry: Registry, request: MoveRequest) -> Decision:
    """Make a version the champion, by default the challenger. Raises what `plan` raises, and MovedMeanwhile."""
    planned = plan(store, registry, request)
    running, verdict = planned.running, Verdict(verdict="promote", reason=request.reason or "by hand")
    if running and (running.challenger, running.champion) == (planned.version, planned.champion):
        decision = Decision(experiment=running, verdict=verdict, decided=request.time, by=request.by)
        return _carried(registry, release.conclude(store, registry, decision), planned)
    return _move(store, registry, planned, decided(request, planned.version, planned.champion, verdict, registry.project))


def rollback(store: ObjectStore, registry: Registry, request: MoveRequest) -> Decision:
    """Make an earlier champion the champion again, by default the newest retired one; a paused test is ended instead.

    Raises what `promote` raises.
    """
    planned = plan(store, registry, request)
    if planned.rejects and planned.running:
        return _rejected(store, registry, planned.running, request, "ended by hand, after no proof either way")
    verdict = Verdict(verdict="promote", reason=request.reason or "rolled back")
    return _move(store, registry, planned, decided(request, planned.version, planned.champion, verdict, registry.project))


def reject(store: ObjectStore, registry: Registry, request: MoveRequest) -> Decision:
    """End the running test of a version with a rejection, by default that of the challenger; the champion stays.

    Raises NothingToDo where no test of it runs.
    """
    running = plan(store, registry, request).running
    assert running, "the plan of a rejection names its test"
    return _rejected(store, registry, running, request, "by hand")


def _rejected(store: ObjectStore, registry: Registry, running: ExperimentRecord, request: MoveRequest, reason: str) -> Decision:
    verdict = Verdict(verdict="reject", reason=request.reason or reason)
    decision = Decision(experiment=running, verdict=verdict, decided=request.time, by=request.by)
    return release.conclude(store, registry, decision)


def decided(request: MoveRequest, version: str, champion: str, verdict: Verdict, project: str) -> Decision:
    """Return the decision to make a version champion, as a request to a project's loop asks; empty: to the common one. The same
    request gives the same decision."""
    identifier = cycles.move_id(project, request.time, version, rollback=request.kind == "roll_back")
    moved = ExperimentRecord(id=identifier, champion=champion, challenger=version, share=1, started=request.time)
    return Decision(experiment=moved, verdict=verdict, decided=request.time, by=request.by)


def check_servable(registry: Registry, version: str) -> None:
    """Raise where a version is unknown (NotRegistered) or has no weights (CheckpointRemoved), before anything is written."""
    if not (removed := registry.version(version).tags.get(REMOVED_TAG)):
        return
    servable = [v.version for v in registry.versions() if not v.tags.get(REMOVED_TAG)]
    raise CheckpointRemoved(
        f"version {version}: expected one whose checkpoint is kept, but retention removed this one's at {removed}; nothing was "
        f"changed. Give version=N with one of the latest that have theirs: {', '.join(servable[-MOST_NAMED:])}"
    )


def _default(store: ObjectStore, registry: Registry, kind: ManualKind, aliases: Aliases) -> str:
    """Return the version that a move without one means."""
    if kind == "promote":
        if aliases.challenger and aliases.challenger != aliases.champion:
            return aliases.challenger
        raise NothingToDo(f"promote: there is no challenger, the champion is {aliases.champion}; `tabloop promote VERSION`")
    if version := _newest_retired(store, registry, aliases):
        return version
    raise NothingToDo("rollback: no version was champion before and is kept; `tabloop rollback VERSION`")


def _newest_retired(store: ObjectStore, registry: Registry, aliases: Aliases) -> str:
    """Return the champion that was retired last and could be served again; empty if there is none."""
    for change in (change for move in log.backwards(store) for change in move.changes if change.after == "retired"):
        with suppress(NotRegistered):  # deleted in MLflow
            version = registry.version(change.version)
            if states.state_of(version, aliases) == "retired" and not version.tags.get(REMOVED_TAG):
                return version.version
    return ""


def _move(store: ObjectStore, registry: Registry, planned: Plan, decision: Decision) -> Decision:
    """End the running experiment and carry out a move."""
    if running := planned.running:
        stopped = Verdict(verdict="broken", reason=f"stopped: version {planned.version} made champion by hand")
        release.conclude(store, registry, decision.model_copy(update={"experiment": running, "verdict": stopped}))
    return _carried(registry, release.conclude(store, registry, decision), planned)


def _carried(registry: Registry, decision: Decision, planned: Plan) -> Decision:
    """Return the decision if its version is champion now."""
    if (champion := registry.aliases().champion) != planned.version:
        raise MovedMeanwhile(
            f"{planned.kind.replace('_', ' ')}: version {planned.version} is not champion, {champion} is: somebody else "
            "moved the champion meanwhile. `tabloop history` shows who; then run this again"
        )
    return decision


def pause(store: ObjectStore, registry: Registry, request: MoveRequest) -> None:
    """Pause the test of a version; do nothing where it is paused.

    Raises:
        NothingToDo: no test of it runs, its stage cannot be paused, or it was paused MOST_PAUSES times.
        MovedMeanwhile: the test has ended or entered another stage meanwhile.
    """
    running = _test_of(registry, request.version)
    if running.stage.name == "paused":
        return
    if running.stage.name not in PAUSED_IN:
        raise NothingToDo(
            f"pause: the test of version {request.version} is in its stage {running.stage.name}, "
            f"expected {' or '.join(PAUSED_IN)}: nobody is served by it yet"
        )
    if sum(stage.name == "paused" for stage in running.stages) >= MOST_PAUSES:
        raise NothingToDo(
            f"pause: the test of version {request.version} was paused {MOST_PAUSES} times, which is the most: "
            "`tabloop promote` or `tabloop reject`"
        )
    _enter(store, registry, running, stages.pause(running, request.time, request.reason, request.by), request.time)


def resume(store: ObjectStore, registry: Registry, request: MoveRequest) -> None:
    """Let the test of a version go on that a person has paused; do nothing where it goes on.

    Raises:
        NothingToDo: no test of it runs, or the gate has paused it.
        MovedMeanwhile: the test has ended or entered another stage meanwhile.
    """
    running = _test_of(registry, request.version)
    if running.stage.name != "paused":
        return
    if not running.stage.by:
        raise NothingToDo(
            f"resume: the test of version {request.version} is over, without proof either way: `tabloop promote` or "
            "`tabloop rollback`"
        )
    _enter(store, registry, running, stages.resume(running, request.time, request.reason, request.by), request.time)


def _test_of(registry: Registry, version: str) -> ExperimentRecord:
    running = registry.aliases().experiment
    if running is None or running.challenger != version:
        named = f"no test of version {version} runs" if version else "no test runs"
        found = f", the test of version {running.challenger} does" if running else ""
        raise NothingToDo(f"{named}{found}; `tabloop history` and the status page show the last one")
    return running


def _enter(store: ObjectStore, registry: Registry, running: ExperimentRecord, stage: Stage, now: float) -> None:
    if release.advance(store, registry, running, stage, now) is None:
        raise MovedMeanwhile(f"the test {running.id} has ended or moved on meanwhile; look at the status page and ask again")
