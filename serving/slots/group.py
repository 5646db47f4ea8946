"""Several engines behind one slot: all hold the same version, and one of them samples each completion.

Prompts with the same beginning go to one engine, whose prefix cache has it, unless that engine has more than its share of this
app's completions: then to the engine with the fewest (after "Consistent Hashing with Bounded Loads", Mirrokni et al., 2018). An
engine that fails takes no traffic until it answers again; another engine takes over completions that it had not begun.
"""

import asyncio
import hashlib
import ipaddress
import math
import socket
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import urlsplit

from serving.engine.protocol import Delta, EngineCopy, EngineRequest, Health, SwapRefused, SwapResult, Weights, WrongVersion
from serving.slots.client import EngineClient, EngineDown, OneOfSeveralDown, RequestRefused, SmokeTestFailed, smoke_test

PREFIX_TOKENS = 32
"""Tokens at the beginning of a prompt that choose its engine. vLLM caches whole blocks from the first token on."""
MOST_LOAD = 1.25
"""Largest number of completions of one engine, as a multiple of the mean; beyond it a prompt goes to another engine."""
GROUP_PID = 0
"""Process id of a group, which is not a process: each engine is verified separately when its process or version changes."""

T = TypeVar("T")
Connect = Callable[[str, str], EngineClient]
"""Returns the client of an engine at a URL; a second argument that is not empty is the host that requests name."""
Resolve = Callable[[str], Awaitable[Sequence[str]]]
"""Returns the IP addresses of a name."""


@dataclass(eq=False)
class Member:
    """One engine of a group."""

    client: EngineClient
    health: Health | None = None
    """Its last state; None if it does not answer."""
    problem: str = "not asked yet"
    """Why it takes no traffic; empty if it does."""
    verified: tuple[int, Weights] = (-1, ("", ""))
    """Process and weights that passed the smoke test last."""
    in_flight: int = 0
    """Completions of this app that run in it."""
    fetched: tuple[Weights, str] = (("", ""), "")
    """What it fetched last, and the directory on its disk."""

    def holds(self, weights: Weights) -> bool:
        """Whether it answers with these weights; with their version, where a source is not known."""
        if self.health is None or self.health.version != weights[0]:
            return False
        return self.health.weights[1] == weights[1] or not (self.health.weights[1] and weights[1])

    def serves(self, weights: Weights) -> bool:
        """Whether it takes traffic of these weights."""
        return self.health is not None and self.verified == (self.health.pid, self.health.weights) and self.holds(weights)

    def lost(self, error: Exception) -> None:
        """Mark it as down until its next health check."""
        self.health, self.problem = None, str(error)


class EngineGroup:
    """The engines of a slot as one (client.SlotEngine)."""

    weights_fixed = False
    untrainable_reason = ""
    max_context = None

    def __init__(self, connect: Connect, urls: Sequence[str], resolve: Resolve | None = None) -> None:
        """Name the engines, without a request to any.

        A host name with several IP addresses stands for an engine at each; `resolve` looks it up, by default with the machine's
        resolver.
        """
        self._connect, self._urls, self._resolve = connect, urls, resolve or addresses
        self._engines: dict[str, dict[str, str]] = {}
        """Addresses found last for each URL."""
        self._members: dict[str, Member] = {}
        self._fetched: Weights = ("", "")
        self._weights: Weights = ("", "")
        self.url = ", ".join(urls)

    @property
    def problem(self) -> str:
        """Engines that take no traffic, with the reason; empty if all do."""
        problems = [(url, member.problem) for url, member in self._members.items() if member.problem]
        return "; ".join(problem if problem.startswith(url) else f"{url}: {problem}" for url, problem in problems)

    @property
    def behind(self) -> bool:
        """Whether an engine that answers holds other weights than the group."""
        return any(member.health and not member.holds(self._weights) for member in self._members.values())

    async def generate(self, request: EngineRequest) -> AsyncGenerator[Delta]:
        """Sample a completion on one engine, or on another if it fails before its first token.

        Raises as EngineClient.generate does; OneOfSeveralDown if the engine fails later, and others serve.
        """
        if request.version not in (None, self._weights[0]):
            raise WrongVersion(f"{self.url}: holds version {self._weights[0]}, asked for {request.version}")
        tried = set[Member]()
        while True:
            member = self._chosen(request.prompt_token_ids, tried)
            tried.add(member)
            begun = False
            member.in_flight += 1
            try:
                async with aclosing(member.client.generate(request)) as deltas:
                    async for delta in deltas:
                        begun = True
                        yield delta
                return
            except RequestRefused:
                raise
            except (EngineDown, WrongVersion) as error:
                member.lost(error)
                if begun and self._serving():
                    raise OneOfSeveralDown(f"{error}") from error
                if begun or not self._serving(tried):
                    raise
            finally:
                member.in_flight -= 1

    async def health(self) -> Health:
        """Look up the names, ask every engine, and verify those that are new. Raises EngineDown if none serves.

        The group's weights are its previous ones while any engine holds them; otherwise those of most engines.
        """
        await self._find()
        members = list(self._members.values())
        await asyncio.gather(*(self._ask(member) for member in members))
        if answers := [member.health.weights for member in members if member.health]:
            if not any(member.holds(self._weights) for member in members):
                self._weights = Counter(answers).most_common(1)[0][0]
            await asyncio.gather(*(self._verify(member) for member in members))
        if not (serving := self._serving()):
            raise EngineDown(self.problem)
        running = sum(member.health.running for member in serving if member.health)
        path, (version, source) = serving[0].health.path if serving[0].health else "", self._weights
        return Health(version, GROUP_PID, running, path, sources={version: source})

    async def fetch(self, version: str, source: str, path: str) -> EngineCopy:
        """Make every engine that lacks a version of a source fetch it. Raises as EngineClient.fetch does if all fail."""

        async def one(member: Member) -> EngineCopy:
            copy = await member.client.fetch(version, source, path)
            member.fetched = ((version, source), copy.path)
            return copy

        self._fetched = version, source
        copies = await _each(self._lacking(self._fetched), one)
        how = next((copy.how for copy in copies if copy.how != "held"), "held")
        return EngineCopy("", how, sum(copy.bytes for copy in copies))

    async def swap(self, path: str, version: str) -> SwapResult:
        """Load a version into every engine that lacks it and has fetched it, and verify all that hold it.

        Another replica of the app may have loaded it into some or all engines meanwhile. Returns the result of the longest pause.
        Raises as EngineClient.swap does if all fail, or if fewer than half of the engines that answer then serve it, since these
        would get all of its requests: the group goes on with the weights before. If fewer fail, these take no traffic.
        """
        refused = list[SwapRefused]()

        async def one(member: Member) -> SwapResult:
            try:
                result = await member.client.swap(member.fetched[1], version)
            except SwapRefused as error:
                refused.append(error)
                raise
            await self._ask(member)
            return result

        before, weights = self._weights, self._fetched if self._fetched[0] == version else (version, "")
        lacking = [member for member in self._lacking(weights) if member.fetched[0] == weights]
        results = await _each(lacking, one)
        self._weights = weights
        await asyncio.gather(*(self._verify(member) for member in self._members.values() if member.holds(weights)))
        serving, answering = len(self._serving()), sum(member.health is not None for member in self._members.values())
        if not serving or 2 * serving < answering:
            self._weights = before
            words = f"{serving} of {answering} engines serve version {version}, expected at least half: {self.problem}"
            raise SwapRefused(words) if refused else EngineDown(words)
        return max(results, key=lambda result: result.pause_ms + result.commit_ms, default=SwapResult(version, 0.0, 0.0, 0.0))

    async def _find(self) -> None:
        """Update the engines to the current addresses of the names. A failed look-up changes nothing."""
        found = dict[str, Member]()
        for url in self._urls:
            try:
                self._engines[url] = await _engines(url, self._resolve)
            except OSError as error:
                if url not in self._engines:
                    raise EngineDown(f"{url}: {error}") from error
            for engine, host in self._engines[url].items():
                found[engine] = self._members.get(engine) or Member(self._connect(engine, host))
        self._members = found

    async def _ask(self, member: Member) -> None:
        try:
            member.health = await member.client.health()
        except EngineDown as error:
            member.lost(error)

    async def _verify(self, member: Member) -> None:
        """Let an engine take traffic if it holds the group's weights and passes the smoke test."""
        if member.health is None:
            return
        if not member.holds(self._weights):
            (held, _), (version, source) = member.health.weights, self._weights
            member.problem = f"holds version {held}, the others {version}" + (f" of {source}" if held == version else "")
        elif member.serves(self._weights):
            member.problem = ""
        else:
            try:
                await self._pass(member)
            except (EngineDown, WrongVersion, SmokeTestFailed) as error:
                member.problem = f"not verified: {error}"

    async def _pass(self, member: Member) -> None:
        if member.health is None:
            raise EngineDown(member.problem)
        await smoke_test(member.client, self._weights[0])
        member.verified, member.problem = (member.health.pid, member.health.weights), ""

    def _lacking(self, weights: Weights) -> list[Member]:
        return [member for member in self._members.values() if member.health and not member.holds(weights)]

    def _serving(self, without: Collection[Member] = ()) -> list[Member]:
        return [member for member in self._members.values() if member.serves(self._weights) and member not in without]

    def _chosen(self, prompt: Sequence[int], without: Collection[Member]) -> Member:
        serving = self._serving(without)
        if not serving:
            raise EngineDown(self.problem or f"no engine serves version {self._weights[0]}")
        beginning = b" ".join(str(token).encode() for token in prompt[:PREFIX_TOKENS])
        favourite = max(serving, key=lambda member: _rank(beginning, member.client.url))
        most = math.ceil(MOST_LOAD * (1 + sum(member.in_flight for member in serving)) / len(serving))
        return favourite if favourite.in_flight < most else min(serving, key=lambda member: member.in_flight)


async def addresses(name: str) -> Sequence[str]:
    """Return the IP addresses of a name, of one address family, since an engine may have one of each. Raises OSError."""
    found = await asyncio.get_running_loop().getaddrinfo(name, None, type=socket.SOCK_STREAM)
    family = min(entry[0] for entry in found)  # IPv4 before IPv6
    return sorted({str(entry[4][0]) for entry in found if entry[0] == family})


async def _engines(url: str, resolve: Resolve) -> dict[str, str]:
    """Return the URL of each engine behind a URL, with the host that requests name; empty if it is the URL's own.

    A name with https stays as it is: its certificate is checked against the name.
    """
    if not is_looked_up(url):
        return {url: ""}
    address = urlsplit(url)
    name = address.hostname or ""
    port = "" if address.port is None else f":{address.port}"
    found = await resolve(name)
    return {f"http://{f'[{ip}]' if ':' in ip else ip}{port}": address.netloc for ip in found}


def is_looked_up(url: str) -> bool:
    """Return whether a URL may stand for several engines: by http, and a name that is no address."""
    address = urlsplit(url)
    return address.scheme == "http" and not _is_ip(address.hostname or "")


def _is_ip(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _rank(beginning: bytes, url: str) -> bytes:
    """Return the rank of an engine for a prompt's beginning (rendezvous hashing, Thaler and Ravishankar, 1998)."""
    return hashlib.blake2b(beginning + url.encode(), digest_size=8).digest()


async def _each(members: Sequence[Member], action: Callable[[Member], Awaitable[T]]) -> list[T]:
    """Run an operation on all engines at once. An engine that fails takes no traffic; if all fail, the first error is raised."""
    results = await asyncio.gather(*(action(member) for member in members), return_exceptions=True)
    done, failed = list[T](), list[Exception]()
    for member, result in zip(members, results, strict=True):
        if isinstance(result, Exception):
            member.problem = f"{result}"
            failed.append(result)
        elif isinstance(result, BaseException):
            raise result
        else:
            done.append(result)
    if failed and not done:
        raise failed[0]
    return done
