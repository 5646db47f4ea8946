"""Moves: how versions of the policy pass from state to state, and requests for moves with their answers."""

from typing import Literal

from infra.records.base import Record
from infra.records.experiments import Decision, ExperimentRecord, StageName

State = Literal["candidate", "challenger", "champion", "failed", "retired", "rolled_back"]
"""candidate: registered, not tested. challenger: in a running A/B test. champion: served to everyone outside the test. failed:
its test rejected it. retired: was champion, and another version was promoted. rolled_back: was champion, and an earlier version
was put back in its place."""
MoveKind = Literal["begin", "open", "advance", "promote", "reject", "stop", "roll_back", "settle", "by_hand"]
"""begin: the log begins with the champion that was found. open: a test opens. advance: it enters its next stage. promote,
roll_back: another version is champion. reject: a test rejects its challenger. stop: a test ends without a verdict on it. settle:
the probation of a promoted version ends, and it stays. by_hand: an alias was moved in MLflow."""


class Change(Record):
    """The change of one version's state."""

    version: str
    """The version."""
    before: State
    """Its state before the move."""
    after: State
    """Its state after the move."""


class Shown(Record):
    """What the tags of the registered model show after a move."""

    experiment: ExperimentRecord | None = None
    """The running test, with its stages."""
    watch: ExperimentRecord | None = None
    """The test whose promoted version is on probation."""
    previous_champion: str = ""
    """The champion before; empty: none."""


class Move(Record):
    """One move: an entry of the log, written once."""

    number: int
    """Place in the log, from 1, without gaps."""
    kind: MoveKind
    """What happened."""
    changes: tuple[Change, ...]
    """The versions that changed their state."""
    by: str
    """"gate", "watch" (over a promoted version), "anchor" (the comparison with it), the cycle that opened the test, the person
    who asked, or "MLflow" for an alias that was moved there."""
    reason: str
    """Why, as a sentence."""
    time: float
    """When it was decided; of a move by hand, when it was noticed."""
    experiment: str = ""
    """Id of the experiment, or of the manual move, whose record is in experiments/ or decisions/; empty: the move has none."""
    champion: str = ""
    """The champion after the move; empty: none."""
    challenger: str = ""
    """The challenger after the move; empty: none."""
    stage: StageName | Literal[""] = ""
    """Stage after the move of the running test, or "watch" of the version that it promoted; empty: neither, and in moves recorded
    before stages existed."""
    share: float = 0.0
    """Share of users, or of their blocks of time, on the challenger's arm in that stage; in a watch, on the new champion's."""
    shown: Shown | None = None
    """What the registry shows after the move. None in moves that were recorded after the registry had been changed."""
    decision: Decision | None = None
    """The decision that the move carries out, whose record is in decisions/ as soon as the registry shows the move."""


class MoveRequest(Record):
    """A request to make a version champion, to reject it, or to pause or resume its test. One from the status page is written
    once, and the controller (the flow `experiment`) carries it out."""

    id: str
    """Id of the request."""
    kind: Literal["promote", "roll_back", "reject", "pause", "resume"]
    """The move that is requested."""
    version: str
    """Version to make champion, or whose test is ended with a rejection, paused or resumed. Empty: to promote or reject the
    challenger, or to roll back to the champion that was retired last."""
    champion: str
    """The champion that the administrator saw: with another one, the request is refused. Empty: any."""
    reason: str
    """Why, as the person who asks wrote it."""
    by: str
    """Name of the administrator's token, or of the person who asks and of the one who approved."""
    time: float
    """When it was asked."""
    expires: float
    """When it is no longer carried out."""
    source: Literal["page", "command", "approval", "controller"] = "page"
    """Where it comes from. controller: a verdict of a probation, or of the comparison with the anchor."""


class MoveAnswer(Record):
    """How a request ended, written once."""

    id: str
    """Id of the request."""
    state: Literal["done", "refused"]
    """done: it is as was asked. refused: nothing was changed."""
    message: str
    """What was done, or why not and what to do."""
    time: float
    """When it ended."""
