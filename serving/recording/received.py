"""Counts the feedback events of each user that this replica received, by client, and those about one of the user's latest
completions."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

MOST_USERS = 10_000
MOST_CLIENTS = 8
"""Clients of a user that are counted one by one; any User-Agent names another."""
OTHERS = "others"


@dataclass(slots=True)
class Received:
    """The events of one user from one client."""

    events: int = 0
    matched: int = 0
    last: float = 0.0
    """When the newest one arrived, in Unix seconds."""
    last_matched: bool = False
    """Whether the newest one was about a completion that is remembered here."""


class ReceivedEvents:
    """The events since the app started."""

    def __init__(self) -> None:
        self._users: OrderedDict[str, dict[str, Received]] = OrderedDict()

    def add(self, user: str, client: str, time: float, *, matched: bool) -> None:
        """Count an event; `time` in Unix seconds."""
        clients = self._users.setdefault(user, {})
        self._users.move_to_end(user)
        if len(self._users) > MOST_USERS:
            self._users.popitem(last=False)
        counted = clients.setdefault(client if client in clients or len(clients) < MOST_CLIENTS else OTHERS, Received())
        counted.events += 1
        counted.matched += matched
        counted.last, counted.last_matched = time, matched

    def forget(self, is_gone: Callable[[str], bool]) -> None:
        """Remember no event any more of users who are gone."""
        for user in [each for each in self._users if is_gone(each)]:
            del self._users[user]

    def of(self, user: str) -> dict[str, Received]:
        return self._users.get(user, {})
