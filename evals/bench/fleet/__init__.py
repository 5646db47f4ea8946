"""A fleet under load: a replica, an engine and the database are killed in turn, then the replicas restart one by one.

Three replicas share two engines behind HAProxy, as the documentation configures it; Prefect and MLflow have their databases on
PostgreSQL. Simulated editors ask and report all the while, in an A/B test by user of two versions with the same weights. What is
killed stays away for a while, as a machine does that has to be replaced, and is started again. So a start's CPU time, which on a
machine of its own disturbs nobody, is in no measured time.
"""

import asyncio
import math
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import httpx
import psutil

from evals import developers
from evals.bench.figures import Bench, Figure, Size, figure
from evals.bench.fleet import parts
from evals.bench.fleet.load import Watched, arm_counts, back_after, lost, p99, rows_of
from evals.bench.fleet.parts import Fleet
from evals.bench.rigs import servers
from evals.bench.rigs.servers import Server
from evals.bench.streams import bearer
from infra.records import Completion, ExperimentRecord, Feedback
from infra.registry.client import CHALLENGER, Registry, RegistryError
from infra.settings import Settings
from infra.stack import prefect_api, seed
from infra.storage.store import ObjectStore
from tasks.experiments.planning import capacity

USERS, CONCURRENCY, SPEED, RATE = 200, 16, 200.0, 8.0
UNDISTURBED_SECONDS, AWAY_SECONDS = Size(full=90.0, quick=20.0), Size(full=45.0, quick=25.0)
IDLE_SECONDS = 15.0  # before any request
CALM_SECONDS = 5.0  # between what a phase does and the next phase
BACK_SECONDS, BOUND = 30.0, 1.5
"""The p99 must be back within so many seconds, at most so many times as high as undisturbed."""
ARMS_SECONDS, AGAIN_SECONDS = 120.0, 120.0


@dataclass
class Run:
    """A fleet under load."""

    fleet: Fleet
    registry: Registry
    watched: Watched
    bench: Bench
    test: ExperimentRecord
    bound: float = math.nan  # highest p99 that counts as undisturbed, in milliseconds
    away: list[tuple[float, float]] = field(default_factory=list)
    """Begin and end of the times in which an engine is away, in Unix seconds."""

    @property
    def arms(self) -> list[tuple[str | None, str | None]]:
        """What every replica must serve."""
        return [(self.test.champion, self.test.challenger)] * parts.REPLICAS


async def run(settings: Settings, bench: Bench) -> AsyncIterator[Figure]:
    """Start a fleet of its own, whatever the settings name, and measure it.

    Raises RuntimeError where a server does not start, end or answer again, or the replicas do not serve the two versions.
    """
    folder = Path(tempfile.mkdtemp(prefix="tabloop-fleet-"))
    bench.progress.say(f"fleet: the servers' logs are in {folder} until it ends")
    with ExitStack() as exits:
        with bench.part("servers start", share=0.2):
            fleet = await asyncio.to_thread(exits.enter_context, parts.running(folder))
        async for one in measure(fleet, bench):
            yield one
    shutil.rmtree(folder)


async def measure(fleet: Fleet, bench: Bench) -> AsyncIterator[Figure]:
    """Let editors ask, and kill and restart servers meanwhile."""
    registry = Registry.connect(fleet.settings.registry)
    this = Run(fleet, registry, Watched(), bench, await asyncio.to_thread(open_test, fleet, registry))
    await until(lambda: fleet.arms() == this.arms, ARMS_SECONDS, "the replicas do not serve both versions")
    before = app_seconds(fleet)
    await asyncio.sleep(IDLE_SECONDS)
    yield figure("idle.replicas_cpu", 1e3 * (app_seconds(fleet) - before) / IDLE_SECONDS, "ms of CPU a second")
    this.test = this.test.model_copy(update={"started": time.time()})
    address = developers.stack_address(fleet.settings)
    load = developers.RunSettings(address=address, users=USERS, concurrency=CONCURRENCY, speed=SPEED, rate=RATE)
    stop = asyncio.Event()
    typing = asyncio.create_task(developers.run(load, developers.code_from(), stop=stop, client=this.watched.client))
    try:
        victims = {"replica": fleet.replicas[0], "engine": champions_engine(this), "database": fleet.database.server}
        kills = [partial(killed, name=name, server=server) for name, server in victims.items()]
        steps: list[Callable[[Run], Awaitable[list[Figure]]]] = [undisturbed, *kills, rolled]
        for step in steps:
            for one in await step(this):
                yield one
        if typing.done():
            await typing
    finally:
        stop.set()
        await asyncio.wait([typing])
    await typing
    statuses = [await asyncio.to_thread(server.stop) for server in fleet.replicas]
    yield figure("ends_by_sigterm_with_another_status_than_0", sum(status != 0 for status in statuses), "", most=0)
    for one in await asyncio.to_thread(in_store, this):
        yield one


def open_test(fleet: Fleet, registry: Registry) -> ExperimentRecord:
    """Register the base model a second time and open an A/B test of both versions, without a plan to judge it by."""
    source = ObjectStore.connect(fleet.settings.store).uri(seed.BASE_CHECKPOINT)
    challenger = registry.create_version(source, {"parent": "1", "cycle": ""}, "The base model once more, for the bench.").version
    champion = registry.aliases().champion
    assert champion, "the bootstrap has registered it"
    test = ExperimentRecord(id="fleet", champion=champion, challenger=challenger, share=0.5, started=time.time())
    registry.set_experiment(test)
    registry.set_alias(CHALLENGER, challenger)
    return test


def champions_engine(this: Run) -> Server:
    """Return the engine that serves the champion."""
    serving = this.fleet.settings.serving
    with httpx.Client(headers=bearer(serving.engine_token), timeout=10.0) as http:
        healths = [http.get(f"{url}/health").raise_for_status().json() for url in serving.engines]
    return this.fleet.engines[[str(health["version"]) for health in healths].index(this.test.champion)]


def app_seconds(fleet: Fleet) -> float:
    """Return the CPU seconds that the replicas have used."""
    return sum(sum(psutil.Process(replica.pid).cpu_times()[:2]) for replica in fleet.replicas)


async def undisturbed(this: Run) -> list[Figure]:
    """Measure the load without any fault."""
    await asyncio.sleep(CALM_SECONDS)  # the first requests open the connections
    since, before = time.time(), app_seconds(this.fleet)
    with this.bench.part("undisturbed", share=0.1):
        await asyncio.sleep(UNDISTURBED_SECONDS.of(this.bench.quick))
    seconds, cpu = time.time() - since, app_seconds(this.fleet) - before
    requests = [one for one in this.watched.requests if one.sent >= since]
    level = p99(requests)
    this.bound = BOUND * level
    failed, events = this.watched.failures(since, time.time())
    rate, events_rate = len(requests) / seconds, sum(one.sent >= since for one in this.watched.events) / seconds
    planned = capacity.app_cpu(rate, events_rate, parts.REPLICAS)
    return [
        figure("undisturbed.requests_per_second", rate, "1/s"),
        figure("undisturbed.events_per_second", events_rate, "1/s"),
        figure("undisturbed.replicas_cpu", 1e3 * cpu / seconds, "ms of CPU a second"),
        # A machine's core is measured by the bench `capacity`.
        figure("undisturbed.planned_cpu", 1e3 * planned, "ms of CPU a second on a core of the plan's"),
        figure("undisturbed.p99", level, "ms"),
        figure("undisturbed.failed_requests", len(failed) + len(events), "", most=0),
    ]


async def killed(this: Run, name: str, server: Server) -> list[Figure]:
    """Kill a server, start it again after a while, and wait until all is as before."""
    with this.bench.part(f"{name} is killed", share=0.2):
        begin = time.time()
        await asyncio.to_thread(server.kill)
        await asyncio.sleep(AWAY_SECONDS.of(this.bench.quick))
        started = time.time()
        server.start()
        await asyncio.to_thread(server.wait)
        if name == "database":
            await until(lambda: answers(this), AGAIN_SECONDS, "MLflow and Prefect do not answer with the database back")
        await until(lambda: this.fleet.arms() == this.arms, ARMS_SECONDS, f"the {name} is back, and not every arm")
        end = time.time()
        await asyncio.sleep(CALM_SECONDS)
    if name == "engine":
        this.away.append((begin, end))
    failed, events = this.watched.failures(begin, started)
    while_starting, events_while_starting = this.watched.failures(started, time.time())
    return [
        figure(f"{name}.p99_back_after", back_after(this.watched.requests, begin, started, this.bound), "s", most=BACK_SECONDS),
        figure(f"{name}.failed_requests", len(failed), ""),
        figure(f"{name}.events_not_acknowledged", len(events), ""),
        figure(f"{name}.failed_while_it_starts", len(while_starting) + len(events_while_starting), "", most=0),
        figure(f"{name}.all_as_before_after_start", end - started, "s"),
    ]


async def rolled(this: Run) -> list[Figure]:
    """Restart the replicas one after the other."""
    since, statuses = time.time(), []
    with this.bench.part("rolling restart", parts.REPLICAS, share=0.2) as part:
        for server in this.fleet.replicas:
            statuses.append(await asyncio.to_thread(server.stop))
            server.start()
            await asyncio.to_thread(server.wait)
            await asyncio.sleep(CALM_SECONDS)  # HAProxy's check has seen it
            part.advance()
    failed, events = this.watched.failures(since, time.time())
    requests = sum(one.sent >= since for one in this.watched.requests)
    return [
        figure("rolling_restart.requests", requests, ""),
        figure("rolling_restart.failed_requests", len(failed), "", most=0),
        figure("rolling_restart.events_not_acknowledged", len(events), "", most=0),
        figure("rolling_restart.seconds", time.time() - since, "s"),
        figure("rolling_restart.ends_with_another_status_than_0", sum(status != 0 for status in statuses), "", most=0),
    ]


def in_store(this: Run) -> list[Figure]:
    """Compare what the object store holds with what was acknowledged."""
    store, acknowledged = ObjectStore.connect(this.fleet.settings.store), this.watched.acknowledged
    arms = arm_counts(rows_of(store, "events/completions/", Completion), this.test, this.away)
    losses = lost(acknowledged, rows_of(store, "events/feedback/", Feedback))
    return [
        figure("acknowledged_events", acknowledged.total(), ""),
        figure("acknowledged_events_lost", losses, "", most=0),
        figure("requests_in_the_test", arms.requests, ""),
        figure("users", arms.users, ""),
        figure("users_who_changed_arm", arms.changed, "", most=0),
        figure("requests_without_an_arm", arms.without, "", most=0),
        figure("answered_by_the_other_version", arms.elsewhere, ""),
        figure("answered_by_the_other_version_with_both_engines", arms.elsewhere_outside, "", most=0),
    ]


def answers(this: Run) -> bool:
    """Return whether MLflow and Prefect read from their databases."""
    try:
        this.registry.aliases()
        with prefect_api.connect(this.fleet.settings) as http:
            return http.post("work_pools/filter", json={}).is_success
    except (RegistryError, httpx.HTTPError):
        return False


async def until(holds: Callable[[], bool], seconds: float, otherwise: str) -> None:
    """Wait until something that asks servers holds. Raises RuntimeError."""
    await servers.until(lambda: asyncio.to_thread(holds), seconds, f"fleet: {otherwise}", every=0.5)
