"""Follows the registry: what its aliases say is downloaded, loaded beside what serves, tried, and only then takes traffic.

A slot that takes traffic is never loaded into, so that no request meets a swap and none waits for one: the champion's pointer
moves to the other slot when the new champion is proven there. On a promotion that slot holds it already: only the pointer moves.
A load runs beside the looking: what the registry says next is followed at once, and a load that is wanted no more is abandoned
while its engine is untouched.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Literal

from infra.registry import Aliases, Registry, RegistryError
from infra.store import ObjectStore
from serving.arms import Arms, Slot
from serving.engines import EngineDown, SwapRefused, WrongVersion
from serving.metrics import Metrics
from serving.protocol import BASE_VERSION, Request, Swapped
from serving.versions import Versions

log = logging.getLogger(__name__)
DRAIN_SECONDS = 10.0
RETRY_SECONDS = 5.0
REFUSED_SECONDS = 300.0
SMOKE = Request(prompt_token_ids=[1, 2, 3, 4, 5, 6, 7, 8], max_tokens=4, temperature=1.0, top_p=1.0, stop_token_ids=[])


class NotProven(RuntimeError):
    """A version that was loaded did not answer the smoke prompt as it should."""


@dataclass(frozen=True)
class Load:
    """What to load next."""

    slot: int
    version: str
    role: Literal["champion", "challenger"]


@dataclass(frozen=True)
class Plan:
    """Where the pointers belong now, and one version to load to get closer to what the registry says."""

    champion: int | None
    challenger: int | None
    load: Load | None


@dataclass
class Loading:
    """A load under way."""

    load: Load
    task: asyncio.Task[None] | None = None
    untouched: bool = True
    """The engine is as it was, so that this may be abandoned."""

    @property
    def ended(self) -> bool:
        return self.task is not None and self.task.done()


def plan(wanted: Aliases, held: Sequence[str | None], loadable: Sequence[bool], champion: int | None) -> Plan:
    """What to do, from what is wanted, the versions that the slots hold and have proven, which of them answer and can be loaded
    into, and which one is the champion's.

    Pointers only ever go to slots that are up. With no champion wanted (an empty registry) any slot that is up serves.
    """
    up = [index for index in (0, 1) if held[index] is not None]
    current = champion if champion in up else next(iter(up), None)
    if wanted.champion is None:
        return Plan(current, None, None)
    having = [index for index in up if held[index] == wanted.champion]
    if not having:
        # The champion's slot goes on with the old version until the other holds the new one.
        free = [index for index in (0, 1) if loadable[index] and index != current]
        if not free and current is not None and held[current] == BASE_VERSION and loadable[current]:
            free = [current]
        return Plan(current, None, Load(free[0], wanted.champion, "champion") if free else None)
    current = current if current in having else having[0]
    other = 1 - current
    if wanted.challenger is None or wanted.challenger == wanted.champion:
        return Plan(current, None, None)
    if held[other] == wanted.challenger:
        return Plan(current, other, None)
    return Plan(current, None, Load(other, wanted.challenger, "challenger") if loadable[other] else None)


class Follower:
    """Keeps the arms as the registry says, as far as engines, store and registry allow."""

    def __init__(
        self,
        arms: Arms,
        registry: Registry,
        store: ObjectStore,
        versions: Versions,
        metrics: Metrics,
        seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._arms = arms
        self._registry = registry
        self._store = store
        self._versions = versions
        self._metrics = metrics
        self._seconds = seconds
        self._clock = clock
        self._wanted = versions.aliases() or Aliases(None, None, None, None)
        self._not_before: dict[str, float] = {}
        self._loading: Loading | None = None
        self._downloads: dict[str, asyncio.Task[str]] = {}
        self._hands = [asyncio.Lock() for _ in arms.slots]
        """Held by who tries a slot or exchanges its weights: never both."""

    async def run(self) -> None:
        """Follow until cancelled."""
        try:
            while True:
                try:
                    await self.step()
                except Exception as error:  # a surprise must not end the following; it is logged and tried again
                    log.exception("follower")
                    self._arms.problems["follower"] = f"{type(error).__name__}: {error}"
                if not await self.loaded(self._seconds):
                    await asyncio.sleep(self._seconds)
        finally:
            if self._loading and self._loading.task:
                self._loading.task.cancel()

    async def step(self) -> None:
        """Look once, move the pointers, and begin or abandon a load."""
        await asyncio.gather(self._read_registry(), *(self._look(slot) for slot in self._arms.slots))
        slots = self._arms.slots
        held = [slot.version if slot.up else None for slot in slots]
        loadable = [slot.version is not None and not slot.engine.fixed for slot in slots]
        todo = plan(self._wanted, held, loadable, self._arms.champion)
        self._point(todo)
        self._note_fixed(held, todo)
        self._load_only(todo.load)

    async def loaded(self, seconds: float | None = None) -> bool:
        """Wait for the load under way, at most so long; whether there was one."""
        if self._loading is None or self._loading.task is None or self._loading.ended:
            return False
        await asyncio.wait([self._loading.task], timeout=seconds)
        return True

    def _load_only(self, load: Load | None) -> None:
        """Abandon what is loaded and not wanted any more, and begin what is."""
        if self._loading and self._loading.ended:
            self._loading = None
        if (running := self._loading) and running.task:
            if load is not None and (running.load.slot, running.load.version) == (load.slot, load.version):
                return
            if not running.untouched:
                return  # it ends by itself, and then the next look begins what is wanted
            log.info("version %s into slot %d: wanted no more", running.load.version, running.load.slot)
            running.task.cancel()
            self._loading = None
        if load is not None and self._clock() >= self._not_before.get(load.version, 0.0):
            self._loading = Loading(load)
            self._loading.task = asyncio.create_task(self._load(self._loading))

    async def _read_registry(self) -> None:
        try:
            aliases = await asyncio.to_thread(self._registry.aliases)
        except Exception as error:  # serving goes on with what it has, whatever ails the registry
            if self._arms.problems.get("registry") is None:
                log.warning("registry: %s; serving goes on", error)
            self._arms.problems["registry"] = str(error)
            return
        self._arms.problems.pop("registry", None)
        if aliases != self._wanted:
            log.info("registry: champion %s, challenger %s", aliases.champion, aliases.challenger)
            self._wanted = aliases
            await asyncio.to_thread(self._versions.remember_aliases, aliases)

    async def _look(self, slot: Slot) -> None:
        """Ask an engine what it holds; a process or version that is new to us is tried first."""
        hands = self._hands[slot.index]
        if hands.locked():
            return  # it is being loaded into
        async with hands:
            try:
                health = await slot.engine.health()
            except EngineDown as error:
                slot.version, slot.state = None, f"down: {error}"
                return
            slot.version, slot.pid = health.version, health.pid
            if not slot.up:
                try:
                    await self._prove(slot, health.version)
                except (EngineDown, WrongVersion, NotProven) as error:
                    slot.state = f"not proven: {error}"
                    return
            lacks = slot.engine.lacks
            slot.state = f"version {slot.version}" + (f", not trained on: {lacks}" if lacks else "")

    def _point(self, todo: Plan) -> None:
        arms = self._arms
        if todo.champion != arms.champion:
            log.info("champion: slot %s", todo.champion)
        arms.champion, arms.challenger, arms.experiment = todo.champion, todo.challenger, self._wanted.experiment

    def _note_fixed(self, held: Sequence[str | None], todo: Plan) -> None:
        """Say it where a version is wanted that no slot holds and none can be loaded with."""
        fixed = [slot for slot in self._arms.slots if slot.engine.fixed]
        for role, version in (("champion", self._wanted.champion), ("challenger", self._wanted.challenger)):
            if fixed and version and version not in held and todo.load is None:
                names = ", ".join(f"{slot.index} ({slot.engine.url})" for slot in fixed)
                self._arms.problems[role] = (
                    f"version {version}: no slot holds it or can be loaded; slots that hold theirs for good: {names}. Start a "
                    "server with it and name it in serving.engines, or give the slot an engine of its own"
                )
            elif fixed and version in held:
                self._arms.problems.pop(role, None)

    async def _load(self, loading: Loading) -> None:
        load = loading.load
        slot = self._arms.slots[load.slot]
        try:
            path = await self._downloaded(load.version)
            async with self._hands[load.slot]:
                swapped = await self._exchange(slot, path, loading)
        except Exception as error:  # of any part: the slot stays out of traffic, the reason is shown, it is tried again
            log.warning("version %s into slot %d: %s", load.version, load.slot, error)
            self._arms.problems[load.role] = f"version {load.version}: {error}"
            refused = isinstance(error, SwapRefused | ValueError)
            self._not_before[load.version] = self._clock() + (REFUSED_SECONDS if refused else RETRY_SECONDS)
            return
        self._arms.problems.pop(load.role, None)
        self._metrics.swaps.labels(load.slot).inc()
        await asyncio.to_thread(self._keep, load)
        log.info("slot %d: version %s (%.0f ms standing still)", load.slot, load.version, swapped.pause_ms + swapped.commit_ms)

    async def _downloaded(self, version: str) -> str:
        """Where the version lies; a download goes on when its load is abandoned, and serves the next load of that version."""
        task = self._downloads.get(version)
        if task is None:
            task = self._downloads[version] = asyncio.create_task(asyncio.to_thread(self._fetch, version))
            task.add_done_callback(lambda done: self._forget_download(version, done))
        return await asyncio.shield(task)

    def _forget_download(self, version: str, done: asyncio.Task[str]) -> None:
        del self._downloads[version]
        if not done.cancelled():
            done.exception()  # who waited for it has it; an abandoned one is tried again when it is wanted

    async def _exchange(self, slot: Slot, path: str, loading: Loading) -> Swapped:
        proven, slot.proven = slot.proven, (None, None)  # takes no more traffic
        slot.state = f"loading version {loading.load.version}"
        try:
            await self._drained(slot)
        except asyncio.CancelledError:
            slot.proven = proven
            raise
        loading.untouched = False
        swapped = await slot.engine.swap(path, loading.load.version)
        slot.version = loading.load.version
        await self._prove(slot, slot.version)
        return swapped

    async def _drained(self, slot: Slot) -> None:
        """What the slot still runs may end first; what is left after that is recorded as mixed."""
        deadline = self._clock() + DRAIN_SECONDS
        while slot.in_flight and self._clock() < deadline:
            await asyncio.sleep(0.02)

    async def _prove(self, slot: Slot, version: str) -> None:
        """Try the smoke prompt; from then on the slot may take traffic."""
        await asyncio.to_thread(self._check_source, version)
        logprobs: list[float] = []
        async with aclosing(slot.engine.generate(replace(SMOKE, version=version))) as deltas:
            async for delta in deltas:
                logprobs += delta.logprobs
        tells = not slot.engine.lacks  # who does not tell them has answered, which is all that can be asked
        if tells and (not logprobs or not all(math.isfinite(p) and p <= 0 for p in logprobs)):
            raise NotProven(f"version {version}: log-probabilities {logprobs} of the smoke prompt")
        slot.proven = (slot.pid, version)

    def _fetch(self, version: str) -> str:
        try:
            source = self._registry.version(version).source
        except RegistryError:
            if path := self._versions.path(version):
                return str(path)  # the registry is away: what lies here will do
            raise
        return str(self._versions.download(version, source, self._store))

    def _check_source(self, version: str) -> None:
        """A slot that was started with what it held last may hold a version of that number of another registry.

        Raises:
            NotProven: the registry says that the version came from elsewhere.
        """
        held = self._versions.source(version)
        if held is None:
            return
        try:
            source = self._registry.version(version).source
        except RegistryError:
            return
        if held != source:
            raise NotProven(f"version {version} here is {held}, in the registry it is {source}")

    def _keep(self, load: Load) -> None:
        self._versions.remember_slot(load.slot, load.version)
        in_use = {slot.version or "" for slot in self._arms.slots} | {self._wanted.champion or "", self._wanted.challenger or ""}
        self._versions.prune(in_use)
