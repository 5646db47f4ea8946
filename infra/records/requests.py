"""What an administrator asks for on the status page, and the watch's answer."""

from typing import Literal

from infra.records.base import Record


class MoveRequest(Record):
    """A request to make a version champion, or to pause or resume its test, written once. The watch carries it out."""

    id: str
    """Id of the request."""
    kind: Literal["promote", "roll_back", "pause", "resume"]
    """What is asked for."""
    version: str
    """Version to make champion, or whose test is paused or resumed."""
    champion: str
    """The champion that the administrator saw: with another one, the request is refused."""
    reason: str
    """Why, as the administrator wrote it."""
    by: str
    """Name of the administrator's token."""
    time: float
    """When it was asked."""
    expires: float
    """When it is no longer carried out."""


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
