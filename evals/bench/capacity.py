"""The numbers that `tabloop plan capacity` computes with, measured on this machine, and its predictions beside measurements.

The speed of a core is that of a completion, over the plan's; the plan's other figures are divided by it before they are compared.
An app of its own serves completions of an engine without a model, so that the app's limit is measured; then events. A look and a
join run at two sizes, and the plan's figure for each is compared with them. Other costs are those of MLflow's answers and of the
stack's own engine.
"""

import asyncio
import json
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import aiohttp
import psutil

from evals.bench import scale, serving
from evals.bench.figures import Bench, Figure, Size, figure
from evals.bench.rigs.apps import WITHOUT_ENGINES, ready, running_app
from evals.bench.rigs.servers import Server, free_ports, in_new_process, is_listening
from evals.bench.streams import raw_request, session, stream_completion, stream_completions
from infra import settings as configuration
from infra.registry.client import Registry
from infra.settings import Settings
from infra.settings.schema import Collect
from tasks.evaluation.models.base import Text
from tasks.experiments.planning import capacity as plan
from tasks.experiments.planning import costs
from tasks.labels import apart
from tasks.labels.partitions import plan_window
from tasks.labels.pipeline import label_window
from tasks.labels.window import Window

COMPLETIONS, STREAMS = Size(full=2_000, quick=100), 32
TEXT = "value = compute_something(first, second)"
"""Its first tokens are what every completion has."""
ALONE, APART_SECONDS = Size(full=100, quick=20), 0.4
"""Requests of which each finds an idle app, and seconds from one to the next."""
IDLE_SECONDS = Size(full=30.0, quick=10.0)
EVENT = {"completion_id": "cmpl-bench", "outcome": "accepted", "shown": TEXT, "elapsed_ms": 800}
CONNECTIONS, EVENTS_PER_CPU_SECOND = 64, 2000.0
EVENT_SECONDS, READ_SECONDS, READERS = Size(full=10.0, quick=2.0), Size(full=10.0, quick=2.0), 8
ENGINE_COMPLETIONS = Size(full=400, quick=64)
LOOKS = Size(full=((1_200, 480, 4.0), (5_000, 1_000, 4.0)), quick=((1_200, 480, 1.0),))
"""Requests a day, objects a day, and days of the tests that are looked at."""
JOINED = Size(full=((5_000, 1_000, 7.0), (90_000, 1_000, 1.0)), quick=((10_000, 480, 1.0),))
"""Requests a day, objects a day, and days of the windows that are joined; the first has the requests of `tabloop bench scale`."""
APART = 1.25
"""Most that a prediction may differ from a measurement, as a factor either way."""
ENGINE, CORE = "evals.bench.rigs.given_tokens", "capacity.core"


async def run(settings: Settings, bench: Bench) -> AsyncIterator[Figure]:
    """Measure each number, and compare the plan's with it.

    Raises RuntimeError where a server does not start, or requests fail.
    """
    with tempfile.TemporaryDirectory(prefix="tabloop-bench-") as folder:
        root = Path(folder)
        with bench.part("app", share=0.3):
            completion = await completion_cpu(settings, root / "app", bench.quick)
            for one in completion:
                yield one
            core = next(one.value for one in completion if one.name == CORE)
            event = await event_cpu(settings, root / "events", EVENT_SECONDS.of(bench.quick))
            yield figure("capacity.events_per_cpu_second", 1 / event, "1/s", least=EVENTS_PER_CPU_SECOND)
            yield figure("capacity.event_cpu", 1e3 * event, "ms")
            yield compared("capacity.event_cpu", costs.EVENT_CPU.value / core, event)
        with bench.part("looks and joins", share=0.5):
            for requests, objects, days in LOOKS.of(bench.quick):
                for one in await asyncio.to_thread(of_look, root / f"looks-{requests}", requests, objects, days, core):
                    yield one
            for requests, objects, days in JOINED.of(bench.quick):
                for one in await asyncio.to_thread(of_join, root / f"join-{requests}", requests, objects, days, core):
                    yield one
        with bench.part("registry and engine", share=0.2):
            reads = await asyncio.to_thread(registry_reads, settings, READ_SECONDS.of(bench.quick))
            yield figure("capacity.registry_reads_per_second", reads, "1/s")
            yield figure("capacity.engine_completions_per_second", await of_engine(settings, bench), "1/s")


def compared(name: str, planned: float, measured: float) -> Figure:
    """Return by which factor a number of the plan and a measured one differ, the larger over the smaller.

    It is infinite where nothing was measured: a small cost less that of the idle app can be below zero.
    """
    apart = max(planned / measured, measured / planned) if measured > 0 else math.inf
    return figure(f"{name}.apart", apart, "times", most=APART)


async def completion_cpu(settings: Settings, folder: Path, quick: bool) -> list[Figure]:
    """Return what a completion costs the app, and how many one core of it serves, with engines that only give tokens; then what
    the app costs without requests, and a completion and an event that find it idle."""
    count = COMPLETIONS.of(quick)
    champion = Registry.connect(settings.registry).aliases().champion
    assert champion, "the stack has a champion"
    ids = Text.of(configuration.path(settings.model.base), settings.model).tokenizer.encode(TEXT, add_special_tokens=False).ids
    ports = free_ports(2)
    variables = {"TABLOOP_SERVING__ENGINES": json.dumps([f"http://127.0.0.1:{port}" for port in ports])}
    pairs = await asyncio.to_thread(serving.prompts, settings, count)
    folder.mkdir(parents=True)
    with ExitStack() as stack:
        for port in ports:
            tokens = [f"--tokens={token}" for token in ids[:10]]
            command = (sys.executable, "-m", ENGINE, f"--port={port}", f"--version={champion}", *tokens)
            listens: Callable[[], bool] = partial(is_listening, port)
            engine = stack.enter_context(Server("engine", command, os.environ, folder / f"engine-{port}.log", listens))
            await asyncio.to_thread(engine.wait)
        async with (
            running_app(settings, folder, variables) as (server, port, feedback_port),
            session(settings.serving.token) as http,
        ):
            await ready(port)
            app = psutil.Process(server.pid)
            url, bodies = f"http://127.0.0.1:{port}/v1/completions", [serving.editor_body(settings, text) for text, _ in pairs]
            await stream_completions(http, url, bodies[: count // 10], STREAMS)  # the first ones compile and connect
            before, began = sum(app.cpu_times()[:2]), time.monotonic()
            results, _ = await stream_completions(http, url, bodies[count // 10 :], STREAMS)
            cpu, seconds = sum(app.cpu_times()[:2]) - before, time.monotonic() - began
            await asyncio.sleep(2 * settings.serving.ship_seconds)  # until all is shipped
            idle = await idle_cpu(app, IDLE_SECONDS.of(quick))
            lone = bodies[: ALONE.of(quick)]
            alone = await alone_cpu(app, [partial(stream_completion, http, url, body) for body in lone], idle)
            posts = [partial(post, http, f"http://127.0.0.1:{feedback_port}/v1/feedback")] * len(lone)
            event_alone = await alone_cpu(app, posts, idle)
    core = costs.COMPLETION_CPU.value / (cpu / len(results))
    tokens_each = statistics.fmean(result.tokens for result in results)
    return [
        figure("capacity.completion_tokens", tokens_each, ""),
        figure("capacity.completion_cpu", 1e3 * cpu / len(results), "ms"),
        figure("capacity.completions_per_second", len(results) / seconds, "1/s"),
        figure("capacity.app_busy", cpu / seconds, "cores"),
        figure(CORE, core, "times the reference's core"),
        figure("capacity.idle_cpu", 1e3 * idle, "ms a second"),
        figure("capacity.completion_alone_cpu", 1e3 * alone, "ms"),
        compared("capacity.completion_alone_cpu", costs.ALONE_CPU.value / core, alone),
        figure("capacity.event_alone_cpu", 1e3 * event_alone, "ms"),
        compared("capacity.event_alone_cpu", costs.EVENT_ALONE_CPU.value / core, event_alone),
    ]


async def idle_cpu(app: psutil.Process, seconds: float) -> float:
    """Return the CPU seconds a second of an app without requests."""
    before = sum(app.cpu_times()[:2])
    await asyncio.sleep(seconds)
    return (sum(app.cpu_times()[:2]) - before) / seconds


async def alone_cpu(app: psutil.Process, requests: Sequence[Callable[[], Awaitable[object]]], idle: float) -> float:
    """Return the CPU seconds of a request that finds the app idle, without those of the idle app.

    Args:
        requests: each is sent APART_SECONDS after the one before.
        idle: CPU seconds a second without requests.
    """
    before, began = sum(app.cpu_times()[:2]), time.monotonic()
    for request in requests:
        await asyncio.gather(request(), asyncio.sleep(APART_SECONDS))
    seconds = time.monotonic() - began
    return (sum(app.cpu_times()[:2]) - before - idle * seconds) / len(requests)


async def post(http: aiohttp.ClientSession, url: str) -> None:
    """Post an event. Raises aiohttp.ClientResponseError where it is refused."""
    async with http.post(url, json=EVENT) as response:
        response.raise_for_status()


async def event_cpu(settings: Settings, folder: Path, duration: float) -> float:
    """Return the CPU seconds of a durable event in an app of its own, with CONNECTIONS that send one after the other."""
    text = "x = value_of(thing)\n" * 20
    request = raw_request("/v1/feedback", settings, json.dumps({**EVENT, "shown": text}).encode())
    async with running_app(settings, folder, WITHOUT_ENGINES) as (server, _, port):
        app, end = psutil.Process(server.pid), time.monotonic() + duration

        async def send() -> int:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            acknowledged = 0
            while time.monotonic() < end:
                writer.write(request)
                header = await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(int(header.lower().split(b"content-length: ")[1].split(b"\r\n")[0]))
                acknowledged += header.startswith(b"HTTP/1.1 200")
            writer.close()
            return acknowledged

        before = sum(app.cpu_times()[:2])
        events = sum(await asyncio.gather(*(send() for _ in range(CONNECTIONS))))
        return (sum(app.cpu_times()[:2]) - before) / events


def make(folder: Path, requests: int, objects: int, days: float) -> None:
    """Write the events of so many days: requests and objects a day."""
    span = scale.END - days * scale.DAY, scale.END
    scale.make(scale.CountingStore(folder), scale.experiment_of(days), span, requests, objects)


def of_look(folder: Path, requests: int, objects: int, days: float, core: float) -> list[Figure]:
    """Return the CPU of a look at a test of so many days after the first one, beside the plan's."""
    make(folder, requests, objects, days)
    found = scale.measured(folder, days, requests, objects, lambda: None)["later"]
    name = f"capacity.look_{requests}_a_day_{days:g}_days"
    half_hour = 48  # of a day: the looks lie in the middle of an hour
    planned = plan.look_seconds(requests / half_hour, found["requests"], objects / half_hour) / core
    return [figure(name, found["cpu"], "s of CPU"), compared(name, planned, found["cpu"])]


def of_join(folder: Path, requests: int, objects: int, days: float, core: float) -> list[Figure]:
    """Return the CPU and memory of a cycle's join, beside the plan's."""
    make(folder, requests, objects, days)
    found = in_new_process(measure_join, folder, days)
    name, rows = f"capacity.join_{requests}_a_day_{days:g}_days", found["requests"]
    return [
        figure(name, found["cpu"], "s of CPU"),
        compared(name, plan.join_seconds(rows, rows, found["gets"] / 2) / core, found["cpu"]),
        figure(f"{name}_memory", found["memory"], "MB more"),
        compared(f"{name}_memory", (plan.join_memory(rows, 0)[0] - costs.FLOW_BYTES.value) / 2**20, found["memory"]),
    ]


def measure_join(folder: Path, days: float) -> dict[str, float]:
    """Return what a cycle's join of a window of so many days costs; the window is one that threads join (apart.LEAST_APART)."""
    store, collect, since = scale.CountingStore(folder), Collect(), scale.END - days * scale.DAY
    before, began = scale.used_memory(), time.process_time()
    window = Window(since=since, until=scale.END, oldest=since, known={})
    planned = plan_window(store, window, scale.END, collect.join_seconds, hindsight=collect.hindsight)
    with apart.executor(planned.partitions) as pool:
        labelled = label_window(store, planned, join_all=lambda join, parts: list(pool.map(partial(join, store), parts)))
    cpu, memory = time.process_time() - began, scale.used_memory() - before
    return {"gets": store.sent["gets"], "cpu": cpu, "memory": memory, "requests": labelled.requests.height}


def registry_reads(settings: Settings, seconds: float) -> float:
    """Return the reads of the aliases that MLflow answers in a second."""
    end = time.monotonic() + seconds

    def read(_: int) -> int:
        registry, count = Registry.connect(settings.registry), 0
        while time.monotonic() < end:
            registry.aliases()
            count += 1
        return count

    with ThreadPoolExecutor(READERS) as pool:
        return sum(pool.map(read, range(READERS))) / seconds


async def of_engine(settings: Settings, bench: Bench) -> float:
    """Return the completions that the stack's app and engine serve in a second."""
    count = ENGINE_COMPLETIONS.of(bench.quick)
    pairs = await asyncio.to_thread(serving.prompts, settings, count)
    bodies = [serving.editor_body(settings, text) for text, _ in pairs]
    url = f"{settings.serving.completions_url}/v1/completions"
    http: aiohttp.ClientSession
    async with session(settings.serving.simulation_token) as http:
        _, seconds = await stream_completions(http, url, bodies, STREAMS)
    return count / seconds
