"""The life of versions on real servers, with engines whose answers a test decides by version: serving, store and registry.

The engines are external servers (serving.engines), whose weights are swapped through vLLM's endpoints: serving loads versions
into them, verifies them and fails over as with any engine. Only the text and the time of their answers is made up.
"""

import asyncio
import contextlib
import html
import json
import os
import pickle
import random
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

import httpx
import pytest
from aiohttp import web

from flows.experiment import ENDED
from infra import settings as settings_
from infra.records import Completion, CycleOutcome, ExperimentRecord
from infra.registry.client import CHAMPION, Registry, RegistryError
from infra.settings import Settings
from infra.stack import control
from infra.storage import cycles
from infra.storage.store import ObjectStore
from tasks.experiments.moves import release
from tasks.experiments.planning import plan as planning
from tasks.versions import tracking
from tests.serving import processes
from tests.serving.apps import aiohttp_app
from tests.shipped import Shipped
from tests.stack import free_ports
from tests.tasks.made import manifest

USERS = 48
WIDE = {
    **{"accepted": 0.3, "characters": 0.3, "annoyed": 0.5, "shown": 2.0, "empty": 0.5, "failed": 0.1},
    **{"cancelled": 0.5, "quick": 0.5, "requests_per_user": 1.0},
    **{"ttft_p50": 0.4, "ttft_p95": 0.4, "total_p50": 0.4, "total_p95": 0.4, "length": 2.0},
}
"""Margins that a test of some hundred requests can tell."""
EXPERIMENT = {
    **{
        "mode": "superiority",
        "design": "by_user",
        "alpha": 0.1,
        "min_requests": 60,
        "planned_requests": 240,
        "min_users": 8,
        "max_seconds": 200,
    },
    **{"min_history_requests": 0, "tolerated_users": 0, "margins": WIDE},
    **{"shadow_requests": 12, "ramp": [0.25]},
    **{"watch_seconds": 150},
}
NEW = {"baseline_seconds": 0, "shadow_share": 1.0, "ramp_requests": 20, "holdout_share": 0.3}
"""Values of the plans."""
PROBE_FIELDS = {"logprobs", "return_token_ids"}


@dataclass
class Answers:
    """How a version answers, and what developers think of it."""

    accepted: float
    """Share of its completions that developers accept."""
    text: str = "value + 1"
    seconds: float = 0.0
    """Delay of each answer."""
    fails: bool = False


@dataclass
class Engine:
    """A server of OpenAI's completions with vLLM's endpoints to swap weights."""

    versions: dict[str, Answers]
    label: str

    def app(self) -> web.Application:
        """Return its app."""
        app = web.Application()
        app.add_routes(
            [
                web.get("/v1/models", self._models),
                web.post("/v1/completions", self._complete),
                web.get("/weight_info", self._version),
                web.post("/update_weight_version", self._update),
                web.post("/collective_rpc", self._rpc),
                web.post("/pause", self._done),
                web.post("/resume", self._done),
            ]
        )
        return app

    async def _models(self, _: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "model"}]})

    async def _version(self, _: web.Request) -> web.Response:
        return web.json_response({"weight_version": self.label})

    async def _done(self, _: web.Request) -> web.Response:
        return web.json_response({})

    async def _update(self, http: web.Request) -> web.Response:
        self.label = (await http.json())["new_version"]
        return web.json_response({})

    async def _rpc(self, http: web.Request) -> web.Response:
        results = {"tabloop_stage_status": {"busy": False, "error": ""}, "tabloop_commit": 1.0}
        return web.json_response({"results": [results.get((await http.json())["method"])]})

    async def _complete(self, http: web.Request) -> web.StreamResponse:
        if PROBE_FIELDS & (await http.json()).keys():
            return web.json_response({"error": {"message": "unrecognized argument"}}, status=400)
        answers = self.versions[self.label.removeprefix("tabloop-")]
        if answers.fails:
            return web.json_response({"error": {"message": "out of memory"}}, status=500)
        await asyncio.sleep(answers.seconds)
        response = web.StreamResponse()
        await response.prepare(http)
        for text, finish in ((answers.text, None), ("", "stop")):
            choice = {"text": text, "finish_reason": finish}
            await response.write(b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        return response


class Watch:
    """The watch, each run in a process of its own (tests/flows/watches.py)."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._lock = asyncio.Lock()
        self.seconds = 1.0
        """Duration of the last undisturbed run."""

    async def __aenter__(self) -> "Watch":
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.flows.watches",
            str(self._log.parent),
            cwd=settings_.ROOT,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=self._log.open("ab"),
        )
        return self

    async def __aexit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        await self._process.wait()

    async def run(self, settings: Settings, killed_after: float | None = None, *, may_fail: bool = False) -> tuple[str, str]:
        """Run the watch once, or kill it by SIGKILL after these seconds; return the name and the message of its state.

        Args:
            may_fail: whether it may end by an error, as where the registry dies.
        """
        assert self._process.stdin and self._process.stdout
        async with self._lock:
            self._process.stdin.write(pickle.dumps(settings).hex().encode() + b"\n")
            child, began = int(await self._process.stdout.readline()), time.monotonic()
            ended = asyncio.create_task(self._process.stdout.readline())
            if killed_after is not None:
                await asyncio.wait([ended], timeout=killed_after)
                if not ended.done():
                    with contextlib.suppress(ProcessLookupError):  # it ended by itself just now
                        os.kill(child, signal.SIGKILL)
            name, message = json.loads(await ended)
            assert may_fail or name != "failed", self._log.read_text()[-3000:]
            if killed_after is None:
                self.seconds = time.monotonic() - began
            return name, message


@dataclass
class World:
    """The servers, and what the test decides."""

    settings: Settings
    versions: dict[str, Answers]
    watch: Watch
    http: httpx.AsyncClient
    store: ObjectStore
    registry: Registry
    folder: Path
    shipped: Shipped
    serving: ExitStack
    """Ends the serving app by SIGKILL when it is closed."""
    draw: random.Random = field(default_factory=lambda: random.Random(7))
    said: list[tuple[str, str]] = field(default_factory=list)
    """Names and messages of the watch's runs that were not killed."""
    judged: set[str] = field(default_factory=set)
    """Completions that developers judged."""
    kills: int = 0
    asked: int = 0

    def add(self, answers: Answers) -> str:
        """Register a version; return it."""
        number = str(len(self.versions))  # "0" is what an engine holds before any
        source = self.folder / f"version-{number}"
        source.mkdir()
        (source / "model.safetensors").write_text(number)
        self.store.put_directory(f"checkpoints/v{number}", source)
        cycle = cycles.name(int(number) - 1) if number != "1" else ""
        run = self._seal(cycle, number) if cycle else ""
        tags = {"parent": "1", "cycle": cycle, "run": run}
        registered = self.registry.create_version(self.store.uri(f"checkpoints/v{number}"), tags, run_id=run or None)
        assert registered.version == number
        self.versions[number] = answers
        return number

    def _seal(self, cycle: str, version: str) -> str:
        """Write what a cycle leaves of its candidate; return the id of its run in MLflow."""
        self.store.put_json(cycles.key(cycle, cycles.MANIFEST), manifest(cycle), new=True)
        passed = {"verdict": "passed", "passed": True, "reason": "made for a test", "champion": {}, "candidate": {}}
        self.store.put_json(cycles.key(cycle, "evaluation.json"), passed, new=True)
        experiment = cycles.experiment_id(cycle, version)
        outcome = CycleOutcome(cycle=cycle, result="registered", reason="made", version=version, experiment=experiment)
        self.store.put_json(cycles.key(cycle, cycles.OUTCOME), outcome, new=True)
        return tracking.run_of(tracking.connect(self.settings.registry), self.settings.registry.model, cycle)

    def open(self, version: str, champion: str) -> ExperimentRecord:
        """Open a test of a version."""
        cycle = self.registry.version(version).tags["cycle"]
        proposed = release.propose(self.store, self.settings, cycle, version, champion, time.time())
        opened = release.open_experiment(self.store, self.registry, proposed)
        assert opened
        return opened

    async def type(self, requests: int) -> None:
        """Let every developer ask in turns, and judge what they are shown."""
        room = asyncio.Semaphore(8)

        async def one(user: int) -> None:
            async with room:
                await self._ask(f"user-{user}")

        await asyncio.gather(*(one((self.asked + i) % USERS) for i in range(requests)))
        self.asked += requests

    async def _ask(self, user: str) -> None:
        serving = self.settings.serving
        assert serving.simulation_token
        headers = {"Authorization": f"Bearer {serving.simulation_token.get_secret_value()}", "X-User-ID": user}
        body = {"model": self.settings.model.name, "prompt": f"# {self.draw.random()}\nx = ", "max_tokens": 16}
        answer = await self.http.post(f"http://127.0.0.1:{serving.port}/v1/completions", json=body, headers=headers)
        assert answer.status_code == 200, answer.text
        taken = self.draw.random() < self.versions[answer.headers["x-tabloop-version"]].accepted
        event = {"completion_id": answer.json()["id"], "outcome": "accepted" if taken else "rejected"}
        url = f"http://127.0.0.1:{serving.feedback_port}/v1/feedback"
        assert (await self.http.post(url, json=event, headers=headers)).is_success
        self.judged.add(event["completion_id"])

    async def look(self) -> tuple[str, str]:
        """Wait until what was typed is in the store, run the watch, killed once before; return its state."""
        await asyncio.to_thread(self.shipped.wait_for, self.judged)
        await asyncio.sleep(self.settings.collect.settle_seconds)
        before = self.registry.aliases()
        name, _ = await self.watch.run(self.settings, self.draw.uniform(0.0, self.watch.seconds))
        self.kills += name == "killed"
        self.said.append(await self.watch.run(self.settings))
        if self.registry.aliases() != before:
            # Serving follows a new stage a moment later; of 48 users, one who meets both versions in between breaks a test.
            await asyncio.sleep(self.settings.serving.follow_seconds * 3)
        return self.said[-1]

    async def start_serving(self) -> None:
        """Start the serving app, and wait until it serves the champion."""
        url = f"http://127.0.0.1:{self.settings.serving.port}"
        command, log = [sys.executable, "-m", "serving"], self.folder / "serving.log"
        await asyncio.to_thread(self.serving.enter_context, processes.server(command, {}, url, log, 120))
        champion = self.registry.aliases().champion
        assert champion
        await self.serves(champion)

    async def kill_serving(self) -> None:
        """Let every developer ask, kill the serving app by SIGKILL before it has shipped that, and start it again."""
        await self.type(USERS)
        await asyncio.to_thread(self.serving.close)
        await self.start_serving()

    async def kill_registry(self) -> None:
        """Kill the registry by SIGKILL while the watch runs, and wait until it is there again."""
        (server,) = [row for row in await asyncio.to_thread(control.status) if row.part == "mlflow"]
        running = asyncio.create_task(self.watch.run(self.settings, may_fail=True))
        await asyncio.sleep(self.draw.uniform(0.0, self.watch.seconds))
        os.kill(server.pid, signal.SIGKILL)
        await running
        async with asyncio.timeout(180):
            while True:
                with contextlib.suppress(RegistryError):
                    await asyncio.to_thread(self.registry.aliases)
                    return
                await asyncio.sleep(0.2)

    async def until(self, *names: str, requests: int = 2 * USERS, looks: int = 25) -> tuple[str, str]:
        """Type and look in turns until the watch ends in a state of one of these names; return it.

        "NoExperiment": the run that was killed had done it already.

        Raises:
            AssertionError: the test ends otherwise, as where a busy machine makes an equal challenger twice as slow.
        """
        for _ in range(looks):
            await self.type(requests)
            state = await self.look()
            if state[0] in (*names, "NoExperiment"):
                return state
            assert state[0] not in ENDED.values(), f"expected {names}, the watch ended as {state}"
        raise AssertionError(f"none of {names} after {looks} looks: {self.said[-looks:]}")

    async def serves(self, version: str) -> None:
        """Wait until a slot of serving is ready with a version."""
        admin = self.settings.serving.admin_token
        assert admin
        headers = {"Authorization": f"Bearer {admin.get_secret_value()}"}
        async with asyncio.timeout(60):
            while True:
                answer = await self.http.get(f"http://127.0.0.1:{self.settings.serving.port}/admin/status", headers=headers)
                if any(slot["version"] == version and slot["up"] for slot in answer.json()["slots"]):
                    return
                await asyncio.sleep(0.1)

    async def page(self, texts: Sequence[str]) -> str:
        """Return the text of the status page, once it has these texts; after half a minute without them."""
        admin, until = self.settings.serving.admin_token, time.monotonic() + 30
        assert admin
        headers = {"Authorization": f"Bearer {admin.get_secret_value()}"}
        while True:
            answer = await self.http.get(f"http://127.0.0.1:{self.settings.serving.port}/", headers=headers)
            page = html.unescape(answer.raise_for_status().text)
            if all(text in page for text in texts) or time.monotonic() > until:
                return page
            await asyncio.sleep(0.5)

    def completions(self) -> list[Completion]:
        """Return all recorded completions in the order of their arrival."""
        keys = self.store.keys("events/completions/")
        return sorted((row for key in keys for row in self.store.get_rows(key, Completion)), key=lambda row: row.time)


@contextmanager
def environment(folder: Path, engines: list[str]) -> Iterator[Settings]:
    """Point the settings of this process and its children at a model, a bucket and a serving app of their own."""
    completions, feedback = free_ports(2)
    name = f"{folder.name}-{time.time_ns()}"  # a test that runs again finds nothing of its first run
    external = {"kind": "external", "model": "model", "swap": "vllm"}
    described = [{**external, "url": f"{url}/v1", "version": version} for url, version in zip(engines, "10", strict=True)]
    variables = {
        **{"TABLOOP_REGISTRY__MODEL": name, "TABLOOP_STORE__BUCKET": name},
        **{"TABLOOP_SERVING__PORT": str(completions), "TABLOOP_SERVING__FEEDBACK_PORT": str(feedback)},
        **{"TABLOOP_SERVING__SPOOL": str(folder / "spool"), "TABLOOP_SERVING__STATE": str(folder / "serving")},
        **{"TABLOOP_SERVING__SHIP_SECONDS": "0.3", "TABLOOP_SERVING__FOLLOW_SECONDS": "0.3"},
        **{"TABLOOP_COLLECT__SETTLE_SECONDS": "0.1", "TABLOOP_COLLECT__JOIN_SECONDS": "30"},
        "TABLOOP_COLLECT__HINDSIGHT": json.dumps({"on": False}),
        "TABLOOP_SERVING__ENGINES": json.dumps(described),
        "TABLOOP_EXPERIMENT": json.dumps(EXPERIMENT),
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        for name, share in NEW.items():
            patch.setitem(planning.NEW, name, share)
        yield settings_.load()


@asynccontextmanager
async def world(folder: Path) -> AsyncIterator[World]:
    """Run serving and the watch beside the session's object store and registry, with version 1 as champion.

    Args:
        folder: a new folder; the names of the bucket and the model begin with its name.
    """
    versions: dict[str, Answers] = {"0": Answers(0.0)}
    folder.mkdir()
    async with aiohttp_app(Engine(versions, "1").app()) as first, aiohttp_app(Engine(versions, "0").app()) as second:
        with ExitStack() as exits:
            settings = exits.enter_context(environment(folder, [first, second]))
            store, registry = ObjectStore.connect(settings.store), Registry.connect(settings.registry)
            store.ensure_bucket()
            registry.ensure_model()
            fresh = httpx.Limits(max_keepalive_connections=0)  # a kept connection may be closed while a request is sent on it
            async with Watch(folder / "watch.log") as watch, httpx.AsyncClient(timeout=60, limits=fresh) as http:
                serving = exits.enter_context(ExitStack())
                made = World(settings, versions, watch, http, store, registry, folder, Shipped(store), serving)
                registry.set_alias(CHAMPION, made.add(Answers(0.3)))
                await made.start_serving()
                await watch.run(settings)
                yield made
