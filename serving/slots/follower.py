"""The follower: it moves the arms to the versions that the registry's aliases name.

A version is downloaded, loaded into the slot without traffic, and verified with a smoke test before it takes traffic, so that no
request meets a swap or waits for one. On a promotion the challenger's slot holds the new champion already: only the champion's
index changes. A load runs in the background while the follower reads the registry; one that is no longer needed is cancelled as
long as its engine is unchanged.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from infra.registry.client import Aliases
from serving.engine.protocol import BASE_VERSION, SwapRefused, SwapResult, Weights, WrongVersion
from serving.engine.version_cache import Download
from serving.metrics import Metrics
from serving.slots.arms import Arms, Slot
from serving.slots.assignment import Load, SlotRoles, assign_slots
from serving.slots.client import EngineDown, SmokeTestFailed, smoke_test
from serving.slots.version_source import SourceMismatch, VersionSource

log = logging.getLogger(__name__)
DRAIN_SECONDS = 10.0
"""Longest wait for a slot's running completions before a swap."""
RETRY_SECONDS = 5.0
"""Delay before a failed load is tried again."""
REFUSED_SECONDS = 300.0
"""Delay before a checkpoint that does not fit, or is corrupt, is tried again."""
REGISTRY_SECONDS = 2.0
"""Longest wait of a step for the registry. A later step takes an answer that comes later."""
BEHIND_SECONDS = 10.0
"""Seconds for which an engine of a group may hold another version before it is loaded with the group's: another replica of the
app may be loading a newer one that this replica does not know yet."""


@dataclass
class Loading:
    """A load in progress."""

    load: Load
    source: str = ""
    """Source of the version that the engine fetched."""
    task: asyncio.Task[None] | None = None
    cancellable: bool = True
    """Whether the engine is still unchanged."""

    @property
    def ended(self) -> bool:
        return self.task is not None and self.task.done()


class Follower:
    """Reconciles the slots with the registry's aliases."""

    def __init__(
        self, arms: Arms, source: VersionSource, metrics: Metrics, seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.arms = arms
        self._source = source
        self._metrics = metrics
        self._seconds = seconds
        """Interval between two reads of the registry."""
        self._clock = clock
        self._aliases = source.cache.aliases() or Aliases(None, None, None, None)
        self._retry_at: dict[str, float] = {}
        self._loading: Loading | None = None
        self._downloads: dict[str, asyncio.Task[Download]] = {}
        self._behind_since: dict[int, float] = {}
        """By slot, when an engine of its group was first seen with another version."""
        self._catching_up: asyncio.Task[None] | None = None
        self._reading: asyncio.Task[Aliases] | None = None
        self._unanswered = 0
        """Steps in a row that waited in vain for the registry."""
        self._checks: dict[Weights, asyncio.Task[bool]] = {}
        """Comparisons with the registry that are under way."""
        self._denied: dict[Weights, str] = {}
        """Why a source is not the registry's, until a comparison finds that it is."""
        self._locks = [asyncio.Lock() for _ in arms.slots]
        """One per slot, held while it is verified or its weights are swapped."""

    async def run(self) -> None:
        """Follow the registry until cancelled."""
        try:
            while True:
                try:
                    await self.step()
                except Exception as error:  # must not end the follower: it is logged, the next step tries again
                    log.exception("follower step failed")
                    self.arms.problems["follower"] = f"{type(error).__name__}: {error}"
                else:
                    self.arms.problems.pop("follower", None)
                if not await self.wait_for_load(self._seconds):
                    await asyncio.sleep(self._seconds)
        finally:
            for task in (self._loading and self._loading.task, self._catching_up, self._reading, *self._checks.values()):
                if task:
                    task.cancel()

    async def step(self) -> None:
        """Read the registry and the engines once, set the arms, and start or cancel a load."""
        await asyncio.gather(self._read_registry(), *(self._inspect(slot) for slot in self.arms.slots))
        slots = self.arms.slots
        versions = [slot.version if slot.up else None for slot in slots]
        loadable = [slot.version is not None and not slot.engine.weights_fixed for slot in slots]
        plan = assign_slots(self._aliases, versions, loadable, self.arms.champion)
        self._set_arms(plan)
        self._report_unloadable(versions, plan)
        self._start_load(plan.load)
        self._start_catching_up()

    async def wait_for_load(self, seconds: float | None = None) -> bool:
        """Wait for the load in progress, at most `seconds`; return whether there was one."""
        if self._loading is None or self._loading.task is None or self._loading.ended:
            return False
        await asyncio.wait([self._loading.task], timeout=seconds)
        return True

    def _start_load(self, load: Load | None) -> None:
        """Start a load, cancelling another one in progress if its engine is unchanged."""
        if self._loading and self._loading.ended:
            self._loading = None
        if (running := self._loading) and running.task:
            if load is not None and (running.load.slot, running.load.version) == (load.slot, load.version):
                return
            if not running.cancellable:
                return  # a later step starts the new load
            log.info("stopped loading version %s into slot %d: no longer needed", running.load.version, running.load.slot)
            running.task.cancel()
            self._loading = None
        if load is not None and self._clock() >= self._retry_at.get(load.version, 0.0):
            self._loading = Loading(load)
            self._loading.task = asyncio.create_task(self._load(self._loading))

    def _start_catching_up(self) -> None:
        """Load a group's version into its engines that hold another one, if an alias names it and nothing is loading."""
        now = self._clock()
        for slot in self.arms.slots:
            if not slot.engine.behind:
                self._behind_since.pop(slot.index, None)
        if self._loading or (self._catching_up and not self._catching_up.done()):
            return
        for slot in self.arms.slots:
            long_behind = slot.engine.behind and now - self._behind_since.setdefault(slot.index, now) >= BEHIND_SECONDS
            if long_behind and slot.up and slot.version in self._wanted() and now >= self._retry_at.get(slot.version or "", 0.0):
                self._catching_up = asyncio.create_task(self._catch_up(slot, slot.version or ""))
                return

    async def _catch_up(self, slot: Slot, version: str) -> None:
        """Load the slot's version into the engines that lack it, while the others serve."""
        try:
            downloaded = await self._downloaded(version)
            copy = await slot.engine.fetch(version, downloaded.source, str(downloaded.path))
            async with self._locks[slot.index]:
                await slot.engine.swap(copy.path, version)
        except Exception as error:  # any failure: the engine takes no traffic, the status page shows why, a later step retries
            log.warning("slot %d: an engine does not take version %s: %s", slot.index, version, error)
            self._postpone(version, error)
            return
        log.info("slot %d: every engine that answers holds version %s", slot.index, version)

    def _wanted(self) -> set[str]:
        """Return the registered versions that the slots should hold."""
        aliases = self._aliases
        beside = aliases.beside.champion if aliases.beside else None
        return {version for version in (aliases.champion, aliases.challenger, beside) if version and version != BASE_VERSION}

    def _postpone(self, version: str, error: Exception) -> None:
        """Set the time of the next attempt to load a version."""
        refused = isinstance(error, SwapRefused | ValueError)
        self._retry_at[version] = self._clock() + (REFUSED_SECONDS if refused else RETRY_SECONDS)

    async def _read_registry(self) -> None:
        reading = self._reading or self._start_reading()
        await asyncio.wait([reading], timeout=REGISTRY_SECONDS)
        if not reading.done():  # a read that hangs occupies one thread, not one more per step
            self._reading, self._unanswered = reading, self._unanswered + 1
            if self._unanswered == 1:
                return  # the next step takes the answer of a registry that is slow
        else:  # a slow one is asked again at once, so that the next step need not wait in vain
            self._reading, self._unanswered = self._start_reading() if self._unanswered else None, 0
        try:
            if not reading.done():
                raise TimeoutError(f"no answer in {REGISTRY_SECONDS:g} s")
            aliases = reading.result()
        except Exception as error:  # on any failure of the registry, serving continues with the last aliases
            if self.arms.problems.get("registry") is None:
                log.warning("registry: %s; serving continues with the last aliases", error)
            self.arms.problems["registry"] = str(error)
            return
        self.arms.problems.pop("registry", None)
        if aliases != self._aliases:
            log.info("registry: champion %s, challenger %s", aliases.champion, aliases.challenger)
            self._aliases = aliases
            await asyncio.to_thread(self._source.cache.remember_aliases, aliases)

    def _start_reading(self) -> asyncio.Task[Aliases]:
        return asyncio.create_task(asyncio.to_thread(self._source.aliases))

    async def _inspect(self, slot: Slot) -> None:
        """Update a slot from its engine's health. A new process or version is verified first."""
        lock = self._locks[slot.index]
        if lock.locked():
            return  # the slot is being loaded
        async with lock:
            try:
                health = await slot.engine.health()
            except EngineDown as error:
                slot.version, slot.state = None, f"down: {error}"
                return
            # An engine that does not name the source is taken to hold what the cache does.
            source = health.weights[1] or self._source.cache.source(health.version) or ""
            if source != slot.source:
                slot.verified = (None, None)
            slot.version, slot.pid, slot.source = health.version, health.pid, source
            if not slot.up:
                try:
                    await self._verify(slot, health.version)
                except (EngineDown, WrongVersion, SourceMismatch, SmokeTestFailed) as error:
                    slot.state = f"not verified: {error}"
                    return
            reason = slot.engine.untrainable_reason
            slot.state = f"version {slot.version}" + (f", not trained on: {reason}" if reason else "")
            if problem := slot.engine.problem:
                self.arms.problems[f"slot {slot.index}"] = problem
            else:
                self.arms.problems.pop(f"slot {slot.index}", None)

    def _set_arms(self, plan: SlotRoles) -> None:
        arms = self.arms
        if plan.champion != arms.champion:
            log.info("champion: slot %s", plan.champion)
        arms.champion, arms.challenger = plan.champion, plan.challenger
        arms.experiment, arms.beside = self._aliases.experiment, self._aliases.beside

    def _report_unloadable(self, versions: Sequence[str | None], plan: SlotRoles) -> None:
        """Report a problem for a role whose version no slot holds or can load."""
        fixed = [slot for slot in self.arms.slots if slot.engine.weights_fixed]
        for role, version in (("champion", self._aliases.champion), ("challenger", self._aliases.challenger)):
            if fixed and version and version not in versions and plan.load is None:
                names = ", ".join(f"{slot.index} ({slot.engine.url})" for slot in fixed)
                self.arms.problems[role] = (
                    f"version {version}: no slot holds it or can load it; slots with fixed weights: {names}. Start a server with "
                    "this version and name it in serving.engines, or give the slot an engine of its own"
                )
            elif fixed and version in versions:
                self.arms.problems.pop(role, None)

    async def _load(self, loading: Loading) -> None:
        load = loading.load
        slot = self.arms.slots[load.slot]
        try:
            downloaded = await self._downloaded(load.version)
            copy = await slot.engine.fetch(load.version, downloaded.source, str(downloaded.path))
            self._metrics.version_fetched(copy.how, copy.bytes)
            loading.source = downloaded.source
            async with self._locks[load.slot]:
                result = await self._swap(slot, copy.path, loading)
        except Exception as error:  # any failure: the slot takes no traffic, the status page shows why, a later step retries
            log.warning("cannot load version %s into slot %d: %s", load.version, load.slot, error)
            self.arms.problems[load.role] = f"version {load.version}: {error}"
            self._postpone(load.version, error)
            return
        self.arms.problems.pop(load.role, None)
        self._metrics.swaps.labels(load.slot).inc()
        await asyncio.to_thread(self._remember, load)
        log.info("slot %d: loaded version %s, paused %.0f ms", load.slot, load.version, result.pause_ms + result.commit_ms)

    async def _downloaded(self, version: str) -> Download:
        """Return a version on the app's disk. Its download outlives a cancelled load and serves the next load of that version."""
        task = self._downloads.get(version)
        if task is None:
            task = self._downloads[version] = asyncio.create_task(asyncio.to_thread(self._source.fetch, version))
            task.add_done_callback(lambda done: self._forget_download(version, done))
        return await asyncio.shield(task)

    def _forget_download(self, version: str, done: asyncio.Task[Download]) -> None:
        del self._downloads[version]
        if done.cancelled() or done.exception():  # marks the exception as retrieved: the load may have been cancelled
            return
        self._metrics.version_fetched(done.result().how, done.result().bytes)
        for slot in self.arms.slots:
            if slot.verified[1] == version and slot.source != done.result().source:
                slot.verified = (None, None)  # the next step compares it with the registry

    async def _swap(self, slot: Slot, path: str, loading: Loading) -> SwapResult:
        slot.state, slot.closed = f"loading version {loading.load.version}", True
        try:
            await self._drain(slot)
        finally:
            slot.closed = False
        loading.cancellable, slot.verified = False, (None, None)
        result = await slot.engine.swap(path, loading.load.version)
        slot.version, slot.source = loading.load.version, loading.source
        await self._verify(slot, slot.version)
        return result

    async def _drain(self, slot: Slot) -> None:
        """Wait for the slot's running completions. One still running after DRAIN_SECONDS is recorded as mixed."""
        deadline = self._clock() + DRAIN_SECONDS
        while slot.in_flight and self._clock() < deadline:
            await asyncio.sleep(0.02)

    async def _verify(self, slot: Slot, version: str) -> None:
        """Check the version's source and run the smoke test; the slot may then take traffic.

        While the registry is slow, as while it is away, the engine's word for the source counts, until an answer says otherwise;
        from then on the registry's alone.
        """
        weights = version, slot.source
        check = self._checks.get(weights)
        if check is None:  # one that hangs occupies one thread, not one more per step
            check = self._checks[weights] = asyncio.create_task(asyncio.to_thread(self._source.check, *weights))
            check.add_done_callback(lambda done: self._take_check(weights, done))
        await asyncio.wait([check], timeout=REGISTRY_SECONDS)
        self._require_source(weights, check)
        await smoke_test(slot.engine, version)
        slot.estimate = await asyncio.to_thread(self._source.estimate, version)
        self._require_source(weights, check)  # an answer may have come meanwhile
        slot.verified = (slot.pid, version)

    def _require_source(self, weights: Weights, check: asyncio.Task[bool]) -> None:
        """Raise what a comparison raised; SourceMismatch while it runs, if an earlier one raised it."""
        if check.done():
            check.result()
        if weights in self._denied:
            raise SourceMismatch(self._denied[weights])

    def _take_check(self, weights: Weights, check: asyncio.Task[bool]) -> None:
        """Remember the answer about a version's source; the next step verifies slots again that took traffic meanwhile."""
        del self._checks[weights]
        if check.cancelled():
            return
        if error := check.exception():
            if isinstance(error, SourceMismatch):
                self._denied[weights] = str(error)
            for slot in self.arms.slots:
                if (slot.verified[1], slot.source) == weights:
                    log.warning("slot %d: %s", slot.index, error)
                    slot.verified, slot.state = (None, None), f"not verified: {error}"
        elif check.result():
            self._denied.pop(weights, None)

    def _remember(self, load: Load) -> None:
        in_use = {slot.version or "" for slot in self.arms.slots} | {
            self._aliases.champion or "",
            self._aliases.challenger or "",
            *(v for test in (self._aliases.routed, self._aliases.anchor) if test for v in (test.champion, test.challenger)),
        }
        self._source.remember_slot(load.slot, load.version, in_use)
