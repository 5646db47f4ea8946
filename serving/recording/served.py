"""The latest requests of this replica: whose an event is that names no user or project, and which completion it is about.

An event belongs to a request if it names its completion id, or has its cursor position: the same suffix, and a prefix that begins
with the request's (infra/docs/how/labels.md, "The join"). Positions are held as hashes. Each replica has its own: have the
balancer send a developer's requests and events to one replica.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice

from infra.model.line_ends import normal, normal_context
from infra.records import Completion
from serving.access import Caller, Denied
from serving.access.callers import Named

MOST = 10_000
"""Number of the latest requests that are remembered."""
MOST_AT_PLACE = 64
"""Requests with one suffix that an event is compared with, the latest first."""
MOST_TYPED = 512
"""Most characters by which an event's prefix may be longer than its request's, since the developer types over the completion."""
TAIL = 512
"""Characters at the end of a request's prefix by which an event's prefix is compared."""
TRIMMED_SPACES = ("", " ", "  ")
"""Spaces that Continue removes in front of a completion (tasks/labels/attribution.py)."""


@dataclass(eq=False, slots=True)
class ServedRequest:
    """A request that was answered, or is being answered."""

    id: str
    credential: str
    project: str
    user: str
    place: tuple[bytes, int, bytes]
    """Hash of the suffix, characters of the prefix, hash of the prefix' end."""
    arrived: float
    text: str | None = None
    """The completion; None until it ends, and where nothing of it may be remembered."""
    counted: bool = True
    """Whether its answer counts in the past acceptance."""
    client: str = ""
    opted_out: bool = False
    """Whether it is recorded without text."""
    shown: bool = False
    """Whether it ended with text that was shown."""
    redacted: bool = False
    """Whether a secret was removed from its text."""


class Served:
    """The latest requests, by completion id and by position."""

    def __init__(self) -> None:
        self._by_id: OrderedDict[str, ServedRequest] = OrderedDict()
        self._by_suffix: dict[tuple[bytes, ...], dict[ServedRequest, None]] = {}
        """Oldest first, by hash of the suffix and credential, and by hash of the suffix, project and user."""
        self._naming: OrderedDict[tuple[str, str], None] = OrderedDict()
        """Credentials whose completions named a user (with ""), and users of a credential whose completions named a project."""

    def add(self, caller: Caller, completion_id: str, prefix: str, suffix: str, arrived: float) -> None:
        """Remember a request, before its response."""
        prefix, suffix = normal_context(prefix, suffix)  # an event may have other line ends
        place = (_suffix(suffix), len(prefix), _end(prefix))
        who = (caller.credential, caller.project, caller.user)
        request = ServedRequest(completion_id, *who, place, arrived, client=caller.client, opted_out=caller.opted_out)
        self._by_id[completion_id] = request
        for key in _keys(request):
            self._by_suffix.setdefault(key, {})[request] = None
        if caller.names_user:
            self._naming[caller.credential, ""] = None
        if caller.names_project:
            self._naming[caller.credential, caller.user] = None
        while len(self._by_id) > MOST:
            self._forget(self._by_id.popitem(last=False)[1])
        while len(self._naming) > MOST:
            self._naming.popitem(last=False)

    def __contains__(self, completion_id: str) -> bool:
        return completion_id in self._by_id

    def ended(self, row: Completion) -> ServedRequest | None:
        """Remember how a request was answered, and return it; None if it is not remembered."""
        if (request := self._by_id.get(row.id)) is not None:
            request.text = None if row.opted_out else normal(row.text)
            request.counted = not (row.opted_out or row.exploring or row.pinned)
            request.shown = not row.withheld and bool(row.text.strip())
        return request

    def recorded(self, row: Completion) -> None:
        """Remember whether a secret was removed from a request's text."""
        if (request := self._by_id.get(row.id)) is not None:
            request.redacted = row.redacted

    def of_user(self, user: str) -> list[ServedRequest]:
        """Return the requests of a user, in all projects, the latest first."""
        return [request for request in reversed(self._by_id.values()) if request.user == user]

    def forget(self, is_gone: Callable[[str, str], bool]) -> None:
        """Remember no request any more whose user and project are gone; each pair of them is asked about once."""
        is_gone = cache(is_gone)
        for request in [each for each in self._by_id.values() if is_gone(each.user, each.project)]:
            self._forget(self._by_id.pop(request.id))

    def named(self, named: Named, completion_id: str, prefix: str, suffix: str) -> Named:
        """Return what an event names, with the user and the project of its completion where it names none.

        Raises:
            Denied: 400, the completion is not known here, and this token's completions name their users or their project.
        """
        if named.user is not None and named.project is not None:
            return named
        found = self._sender(named, completion_id, prefix, suffix)
        if found is not None:
            return replace(named, user=named.user or found.user, project=named.project or found.project)
        if named.user is None and (named.credential, "") in self._naming:
            raise Denied(400, _missing("X-User-ID or user", "users", completion_id))
        if named.project is None and (named.credential, named.user or named.own) in self._naming:
            raise Denied(400, _missing("X-Project-ID", "project", completion_id))
        return named

    def of(self, project: str, user: str, completion_id: str) -> ServedRequest | None:
        """Return the request that an event of this user names; None if this replica does not remember it."""
        request = self._by_id.get(completion_id)
        return request if request is not None and (request.project, request.user) == (project, user) else None

    def at_place(self, project: str, user: str, prefix: str, suffix: str, shown: str) -> ServedRequest | None:
        """Return the latest request of a project and user whose completion an event shows at its position.

        A completion begins with the shown text, or with the text typed since the request and the shown text. One at the same
        position goes before one that was reused.
        """
        found: ServedRequest | None = None
        (prefix, suffix), shown = normal_context(prefix, suffix), normal(shown)
        for request in self._near((project.encode(), user.encode()), prefix, suffix):
            typed = prefix[request.place[1] :]
            if request.text is not None and any(request.text.startswith(typed + spaces + shown) for spaces in TRIMMED_SPACES):
                if not typed:
                    return request
                found = found or request
        return found

    def _sender(self, named: Named, completion_id: str, prefix: str, suffix: str) -> ServedRequest | None:
        """Return the request of an event, if the token may speak for its user; None for a position of several senders."""
        if (request := self._by_id.get(completion_id)) is not None:
            return request if named.user in (None, request.user) else None
        if not prefix and not suffix:
            return None
        of_sender = {}
        prefix, suffix = normal_context(prefix, suffix)
        for request in self._near((named.credential.encode(),), prefix, suffix):
            if named.user in (None, request.user) and named.project in (None, request.project):
                of_sender[request.user, request.project] = request
        return of_sender.popitem()[1] if len(of_sender) == 1 else None

    def _near(self, whose: tuple[bytes, ...], prefix: str, suffix: str) -> Iterator[ServedRequest]:
        """Yield the requests at an event's position, the latest first."""
        ends: dict[int, bytes] = {}
        for request in islice(reversed(self._by_suffix.get((_suffix(suffix), *whose), {})), MOST_AT_PLACE):
            _, length, end = request.place
            if 0 <= len(prefix) - length <= MOST_TYPED:
                if length not in ends:
                    ends[length] = _end(prefix[:length])
                if ends[length] == end:
                    yield request

    def _forget(self, request: ServedRequest) -> None:
        for key in _keys(request):
            requests = self._by_suffix[key]
            del requests[request]
            if not requests:
                del self._by_suffix[key]


def _keys(request: ServedRequest) -> tuple[tuple[bytes, ...], ...]:
    suffix = request.place[0]
    return (suffix, request.credential.encode()), (suffix, request.project.encode(), request.user.encode())


def _suffix(suffix: str) -> bytes:
    """Continue sends a newline in place of an empty suffix."""
    return _hash("" if suffix == "\n" else suffix)


def _end(prefix: str) -> bytes:
    return _hash(prefix[-TAIL:])


def _hash(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=12).digest()


def _missing(field: str, what: str, completion_id: str) -> str:
    named = f"{completion_id[:60]} is" if completion_id else "the position is"
    return (
        f"{field}: expected, since the completions of this token name their {what}, and {named} not among the latest requests of "
        "this replica; send the same name with events as with completions"
    )
