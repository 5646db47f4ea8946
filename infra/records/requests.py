"""What an administrator asks for on the status page, and the watch's answer."""

from typing import Literal

from infra.records.base import Record


class MoveRequest(Record):
    """A request to make a version champion, or to pause or resume its test. One from the status page is written once, and the
    controller (the flow `experiment`) carries it out."""

    id: str
    """Id of the request."""
    kind: Literal["promote", "roll_back", "pause", "resume"]
    """The move that is requested."""
    version: str
    """Version to make champion, or whose test is paused or resumed. Empty: to promote the challenger, or to roll back to the
    champion that was retired last."""
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
