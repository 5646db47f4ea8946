"""The training step of a cycle as a Job: makes or finds it, waits for its GPUs, follows its pods, and fetches what they trained.

The requests run in a thread of their own, and the flow's thread takes lines and states from a queue, so that a signal reaches it
at any time. A flow that is killed leaves its Job, which the next run finds by its name.
"""

import asyncio
import shutil
import threading
import uuid
from collections.abc import Callable, Coroutine, Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TextIO, TypeVar

import aiohttp

from infra.storage.store import Corrupt, ObjectStore, sha256
from tasks.trainer.cluster import order as orders
from tasks.trainer.cluster import state
from tasks.trainer.cluster.api import BRIEFLY_SECONDS, Cluster, ClusterAway, ClusterRefused, NoCluster, Taken, connected
from tasks.trainer.cluster.order import Order, Result
from tasks.trainer.cluster.template import ATTEMPT, CYCLE, LOOP, Template, Wanted, WrongTemplate
from tasks.trainer.job import ADAPTER_NAME, CHECKPOINT_NAME, METRICS_NAME, OPTIMIZER_NAME
from tasks.trainer.run import LOG_NAME, REPEATED_LINES, Candidate, PlaceLost, TrainingFailed, UpdateRefused

LOOK_SECONDS = 2.0
"""Seconds between two looks at a Job."""
START_SECONDS = 1200.0
"""Longest time from a pod's place on a node, with GPUs that nobody else gets, to its start."""
LAST_LINES_SECONDS = 5.0
"""Seconds for the rest of the logs of an update that has ended."""
KEEPS_JOB = (ClusterAway, ClusterRefused, NoCluster, WrongTemplate)
"""Errors after which the Job may go on."""
T = TypeVar("T")


@dataclass(frozen=True)
class Flow:
    """The flow's side of an update."""

    folder: Path
    """Working folder of the cycle; gets the pods' logs and what they trained."""
    say: Callable[[str], None]
    """Receives the lines of the trainer's output that the flow repeats."""
    waits: Callable[[str], None] = lambda words: None
    """Receives the scheduler's words while pods wait, and an empty text once they run."""
    cancelled: Callable[[], bool] = lambda: True
    """Whether a flow that is being stopped is to end its Job; else the next run finds it."""


@dataclass(frozen=True)
class _Line:
    pod: int
    text: str


@dataclass(frozen=True)
class _Said:
    text: str


@dataclass(frozen=True)
class _Waits:
    words: str


@dataclass(frozen=True)
class _End:
    error: BaseException | None


Event = _Line | _Said | _Waits | _End


def train(store: ObjectStore, order: Order, file: Path, flow: Flow) -> Candidate | UpdateRefused:
    """Train the candidate of an order by a Job.

    Args:
        file: template of the Job, as `train.job` names it.

    Raises:
        WrongTemplate, NoCluster, ClusterRefused: nothing can be made.
        ClusterAway: the API server does not answer; the Job goes on.
        TrainingFailed: a pod or the Job is lost; the message has the first lost rank's error. PlaceLost, where the cluster took
            its place.
    """
    template = Template(file, order.train.processes)
    key, digest = orders.write(store, order)
    wanted = Wanted(loop_of(store), order.cycle, key, digest, order.train.nodes, order.train.processes)
    flow.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not (attempt := orders.finished(store, key)):
        try:
            _follow(template, wanted, flow)
        except TrainingFailed:
            if not (attempt := orders.finished(store, key)):  # a rank that refuses ends the others
                raise
        attempt = attempt or orders.finished(store, key)
    if not attempt:
        _give_up(template.namespace, template.name(wanted), flow.say)
        raise TrainingFailed(f"the Job {template.name(wanted)} has ended, but {store.uri(orders.folder_of(key))} has no result")
    return _fetched(store, attempt, flow.folder)


def loop_of(store: ObjectStore) -> str:
    """Return the label of the Jobs of a bucket."""
    return sha256([store.uri("").encode()])[: orders.DIGITS]


def labels_of(store: ObjectStore, cycle: str) -> str:
    """Return a selector of a cycle's Jobs."""
    return f"{LOOP}={loop_of(store)},{CYCLE}={cycle}"


def end(store: ObjectStore, cycle: str, file: Path) -> None:
    """End the Jobs of a cycle that nobody waits for any more, if they run or wait.

    Raises:
        As `train`, but TrainingFailed.
    """
    _in_thread(_end_all(Template(file, 1).namespace, labels_of(store, cycle)))


def _fetched(store: ObjectStore, attempt: str, folder: Path) -> Candidate | UpdateRefused:
    """Download what an attempt trained into the cycle's working folder."""
    if store.exists(f"{attempt}/{orders.REFUSED}"):
        return UpdateRefused(store.get(f"{attempt}/{orders.REFUSED}").decode())
    result = Result.model_validate(store.get_json(f"{attempt}/{orders.RESULT}"))
    for name, digest in result.folders.items():
        if (found := store.directory_sha256(f"{attempt}/{name}")) != digest:
            raise Corrupt(f"{store.uri(attempt)}/{name}: its checksums have the SHA-256 {found}, the result says {digest}")
        shutil.rmtree(folder / name, ignore_errors=True)
        store.get_directory(f"{attempt}/{name}", folder / name)
    (folder / METRICS_NAME).write_text(result.metrics.model_dump_json(indent=2))
    optimizer, adapter = (folder / name if name in result.folders else None for name in (OPTIMIZER_NAME, ADAPTER_NAME))
    return Candidate(folder / CHECKPOINT_NAME, result.metrics, sum(result.metrics.seconds.values()), optimizer, adapter)


def _follow(template: Template, wanted: Wanted, flow: Flow) -> None:
    """Wait until a Job has ended; repeat its lines and states. A Job that fails is deleted, and that of a cancelled flow."""
    arrived: SimpleQueue[Event] = SimpleQueue()
    loop, name = asyncio.new_event_loop(), template.name(wanted)
    task = loop.create_task(_watched(template, wanted, arrived))
    thread = threading.Thread(target=_run_loop, args=(loop, task), daemon=True)
    thread.start()
    try:
        _repeat(arrived, flow)
    except TrainingFailed:
        _give_up(template.namespace, name, flow.say)
        raise
    except BaseException as error:
        if not isinstance(error, KEEPS_JOB) and flow.cancelled():
            _give_up(template.namespace, name, flow.say)
        raise
    finally:
        with suppress(RuntimeError):  # the loop may be closed
            loop.call_soon_threadsafe(task.cancel)
        thread.join()


def _give_up(namespace: str, name: str, say: Callable[[str], None]) -> None:
    """Delete a Job whose update has ended; where that fails, the next run does it."""
    try:
        _in_thread(_end(namespace, name))
    except KEEPS_JOB as error:
        say(f"trainer: the Job {name} stays: {error}")


def _run_loop(loop: asyncio.AbstractEventLoop, task: "asyncio.Task[None]") -> None:
    with suppress(asyncio.CancelledError):
        loop.run_until_complete(task)
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()


def _repeat(arrived: "SimpleQueue[Event]", flow: Flow) -> None:
    logs: dict[int, TextIO] = {}
    with ExitStack() as stack:
        while not isinstance(event := arrived.get(), _End):
            if isinstance(event, _Waits):
                flow.waits(event.words)
            elif isinstance(event, _Said):
                flow.say(event.text)
            else:
                if event.pod not in logs:
                    file = flow.folder / (f"{event.pod}-{LOG_NAME}" if event.pod else LOG_NAME)
                    logs[event.pod] = stack.enter_context(file.open("w"))
                logs[event.pod].write(f"{event.text}\n")
                logs[event.pod].flush()
                if REPEATED_LINES.search(event.text):
                    flow.say(f"pod {event.pod}: {event.text}" if event.pod else event.text)
    if event.error:
        raise event.error


async def _watched(template: Template, wanted: Wanted, arrived: "SimpleQueue[Event]") -> None:
    error: BaseException | None = None
    try:
        async with connected(template.namespace, lambda text: arrived.put(_Said(text))) as cluster:
            await _Watch(cluster, template, wanted, arrived).run()
    except BaseException as found:
        error = found
    arrived.put(_End(error))


class _Watch:
    """The looks at a Job until it has ended."""

    def __init__(self, cluster: Cluster, template: Template, wanted: Wanted, arrived: "SimpleQueue[Event]") -> None:
        self._cluster, self._template, self._wanted, self._arrived = cluster, template, wanted, arrived
        self._name = template.name(wanted)
        self._tails: dict[str, asyncio.Task[None]] = {}
        self._placed: dict[str, float] = {}
        self._running: set[str] = set()
        self._words = ""

    async def run(self) -> None:
        """Make or find the Job, and look until it has ended. Raises TrainingFailed."""
        attempt = await self._ensure()
        try:
            while not await self._look(f"{ATTEMPT}={attempt}"):
                await asyncio.sleep(LOOK_SECONDS)
            await self._wait_for_lines(self._tails)
        except TrainingFailed:
            await self._wait_for_lines(name for name in self._tails if name not in self._running)
            raise
        finally:
            for tail in self._tails.values():
                tail.cancel()

    async def _wait_for_lines(self, pods: Iterable[str]) -> None:
        if tails := [self._tails[name] for name in pods]:
            await asyncio.wait(tails, timeout=LAST_LINES_SECONDS)

    async def _ensure(self) -> str:
        """Return the attempt of the Job, which is made if there is none; Jobs of this loop that nobody waits for are ended."""
        others = f"{LOOP}={self._wanted.loop}"
        for other in await self._cluster.jobs(others):
            if state.name_of(other) != self._name and not state.finished(other):
                self._arrived.put(_Said(f"ends the Job {state.name_of(other)}, for which nobody waits"))
                await self._cluster.end_job(state.name_of(other))
        while True:
            job = await self._cluster.job(self._name)
            if job and job["metadata"].get("deletionTimestamp"):
                await asyncio.sleep(LOOK_SECONDS)
                continue
            made = job is None
            if job is None:
                try:
                    job = await self._cluster.make_job(self._template.job(self._wanted, uuid.uuid4().hex[: orders.DIGITS]))
                except Taken:
                    continue
            break
        attempt = str(job["metadata"]["labels"][ATTEMPT])
        if self._wanted.nodes > 1:
            await self._cluster.make_service(self._template.service(self._wanted, attempt, job["metadata"]["uid"]))
        place = f"the Job {self._name} in the namespace {self._cluster.namespace}"
        self._arrived.put(_Said(f"makes {place}" if made else f"finds {place}, and goes on waiting for it"))
        return attempt

    async def _look(self, selector: str) -> bool:
        """Look once; return whether the Job has ended well."""
        pods, job = await self._cluster.pods(selector), await self._cluster.job(self._name)
        for pod in pods:
            if state.name_of(pod) not in self._tails and state.started(pod):
                self._tails[state.name_of(pod)] = asyncio.create_task(self._tail(pod))
        if job and state.holds(job, "Complete"):
            return True
        failed = state.lost(job, self._name, pods, self._running)
        self._running = {state.name_of(pod) for pod in pods if state.started(pod) and not state.ended(pod)}
        if isinstance(failed, list) and self._running:  # the rank whose loss ended this one reports, too
            await asyncio.sleep(LOOK_SECONDS)
            failed = state.lost(job, self._name, await self._cluster.pods(selector), ()) or failed
        if failed:
            words = failed if isinstance(failed, str) else "\n".join(map(state.error_of, failed))
            found = PlaceLost if state.displaced(job, failed) else TrainingFailed
            raise found(f"the update of the Job {self._name} has ended: {words}")
        assert job, "a missing Job is lost"
        await self._say_what_waits(job, pods)
        return False

    async def _say_what_waits(self, job: state.Object, pods: list[dict[str, Any]]) -> None:
        words, about = state.waiting(job, pods, self._wanted.nodes)
        if about:
            words = state.warning(await self._cluster.events(about)) or words
        if words != self._words:
            self._words = words
            self._arrived.put(_Waits(words))
        now = asyncio.get_running_loop().time()
        for pod in pods:
            since = self._placed.setdefault(state.name_of(pod), now) if state.scheduled(pod) else now
            if not state.started(pod) and now - since > START_SECONDS:
                raise TrainingFailed(
                    f"the pod {state.name_of(pod)} has its GPUs, and has not started in {START_SECONDS:.0f} s: {words}"
                )

    async def _tail(self, pod: state.Object) -> None:
        """Repeat the lines of a pod; where the connection ends, from the first line that was not repeated yet."""
        taken, index, name, ended = 0, state.index_of(pod), state.name_of(pod), False
        while True:
            count = 0
            with suppress(aiohttp.ClientError, OSError, asyncio.TimeoutError, ValueError):
                async for line in self._cluster.log_lines(name):
                    count += 1
                    if count > taken:
                        taken = count
                        self._arrived.put(_Line(index, line))
            if ended:
                return
            await asyncio.sleep(LOOK_SECONDS / 4)
            current = await self._cluster.pods(f"{ATTEMPT}={pod['metadata']['labels'][ATTEMPT]}")
            ended = all(state.name_of(one) != name or state.ended(one) for one in current)


async def _end(namespace: str, name: str) -> None:
    async with connected(namespace, lambda text: None, BRIEFLY_SECONDS) as cluster:
        await cluster.end_job(name)


async def _end_all(namespace: str, selector: str) -> None:
    async with connected(namespace, lambda text: None, BRIEFLY_SECONDS) as cluster:
        for job in await cluster.jobs(selector):
            if not state.finished(job):
                await cluster.end_job(state.name_of(job))


def _in_thread(work: Coroutine[Any, Any, T]) -> T:
    """Run asynchronous work in a thread: the caller's may have a loop already."""
    found: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            found.append(asyncio.run(work))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return found[0]
