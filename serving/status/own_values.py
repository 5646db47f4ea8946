"""The values of a developer's own page, from the memory of this replica: the latest requests of all users and their events."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from infra.model.verdicts import STRENGTH, is_accepted
from infra.pages import editors
from infra.pages.editors import Configuration
from infra.records import Outcome
from serving.access import Caller, Credential
from serving.gateway.completions import Gateway
from serving.recording.received import Received
from serving.recording.served import ServedRequest
from serving.status.own_choices import is_shared

LAST = 20
"""Completions in the table."""
MOST_TEXT = 80
"""Characters of a completion in the table."""
HOUR = 3_600.0
Z95 = 1.959964
"""Quantile of the standard normal distribution for a two-sided interval of 95 %."""
REPORTING = ("continue", "rlinf", "tabby", "native")
"""Clients that report what became of a completion (infra/docs/editors/index.md)."""
WORDS: dict[Outcome, str] = {
    "shown": "shown, not judged",
    "rejected": "rejected",
    "partially_accepted": "accepted in part",
    "accepted": "accepted",
    "retained": "accepted, reported again later",
    "thumbs_down": "thumbs down",
}


@dataclass(frozen=True)
class Share:
    """A share of counted things with its 95 % interval."""

    count: int
    of: int
    low: float
    high: float

    @property
    def rate(self) -> float:
        return self.count / self.of


@dataclass(frozen=True)
class Row:
    """A completion in the table."""

    arrived: float
    client: str
    project: str
    became: str
    text: str


@dataclass(frozen=True)
class ClientRow:
    """The requests and events of one editor."""

    client: str
    requests: int
    """Of those that are remembered."""
    last_request: float | None
    received: Received | None
    hint: str
    """What to check; empty where nothing is missing."""


@dataclass(frozen=True)
class OwnPage:
    """The values of the page's template."""

    name: str
    shared: bool
    """Whether the token is no one person's, so that others' requests are among these."""
    hash: str
    ready: bool
    remembered: int
    """Requests of this user in the memory of this replica."""
    recent: int
    """Those of the last hour."""
    clients: tuple[ClientRow, ...]
    rows: tuple[Row, ...]
    accepted: Share | None
    """Of the completions that were judged; None without any."""
    with_text: int
    redacted: int
    without_text: int
    logged: bool
    chose: bool
    """Whether not being logged is the user's own choice on this page, or follows from being forgotten."""
    token: str
    experiments: bool
    configurations: tuple[Configuration, ...]
    check: str


def wilson(count: int, of: int) -> Share | None:
    """Return a share with its 95 % interval by Wilson's score (Wilson 1927, "Probable inference", J. Am. Stat. Assoc. 22)."""
    if not of:
        return None
    share, square = count / of, Z95 * Z95
    middle = (share + square / (2 * of)) / (1 + square / of)
    half = Z95 / (1 + square / of) * math.sqrt(share * (1 - share) / of + square / (4 * of * of))
    return Share(count, of, max(0.0, middle - half), min(1.0, middle + half))


def own_page(gateway: Gateway, credential: Credential, caller: Caller, address: str, token: str, now: float) -> OwnPage:
    """Return the values for the user of a credential.

    Args:
        caller: the sender that the credential's own requests have.
        address: address by which the browser reached the app, without a path.
        token: the token to write into configurations.
        now: Unix seconds.
    """
    recorder = gateway.recorder
    requests, received = recorder.served.of_user(caller.user), recorder.received.of(caller.user)
    outcomes = {request.id: recorder.answers.of(request.id) for request in requests}
    judged = [is_accepted(STRENGTH.index(outcome)) for outcome in outcomes.values() if outcome]
    answered = [accepted for accepted in judged if accepted is not None]
    where = editors.reached(address, token, gateway.model)
    return OwnPage(
        name=credential.name,
        shared=is_shared(credential),
        hash=caller.user,
        ready=gateway.arms.ready,
        remembered=len(requests),
        recent=sum(now - request.arrived < HOUR for request in requests),
        clients=clients_of(requests, received),
        rows=tuple(row_of(request, outcomes[request.id]) for request in requests[:LAST]),
        accepted=wilson(sum(answered), len(answered)),
        with_text=sum(not (request.opted_out or request.redacted) for request in requests),
        redacted=sum(request.redacted and not request.opted_out for request in requests),
        without_text=sum(request.opted_out for request in requests),
        logged=not caller.opted_out,
        chose=gateway.choices.hold(caller.user),
        token=token,
        experiments=caller.experiments,
        configurations=tuple(editors.configure(name, where) for name in editors.EDITORS),
        check=editors.check_command(where),
    )


def clients_of(requests: Sequence[ServedRequest], received: dict[str, Received]) -> tuple[ClientRow, ...]:
    """Return a row for each editor that sent a request or an event."""
    counts = Counter(request.client for request in requests)
    last: dict[str, float] = {}
    for request in requests:  # the latest first
        last.setdefault(request.client, request.arrived)
    names = sorted({*counts, *received}, key=lambda name: (-counts[name], name))
    return tuple(
        ClientRow(name, counts[name], last.get(name), received.get(name), hint_of(name, counts[name], received.get(name)))
        for name in names
    )


def hint_of(client: str, requests: int, received: Received | None) -> str:
    """Return what to check of an editor's events; empty if nothing is missing."""
    if received is None:
        if client in REPORTING and requests:
            return "no event yet: check the part of its configuration that reports, below"
        return "" if client in REPORTING else "reports nothing; it teaches by the text that stands there later"
    if not received.matched:
        return "no event matches a completion: check that events and requests have the same token and project"
    return "" if received.last_matched else "the newest event matches no completion that this server remembers"


def row_of(request: ServedRequest, outcome: Outcome | None) -> Row:
    if request.opted_out:
        became, text = "recorded without text", ""
    elif request.text is None:
        became, text = "under way", ""
    else:
        line, *more = request.text.strip().split("\n")
        text = line[:MOST_TEXT] + (" …" if more or len(line) > MOST_TEXT else "")
        became = WORDS[outcome] if outcome else "no event" if request.shown else "nothing to show"
    return Row(request.arrived, request.client, request.project, became, text)
