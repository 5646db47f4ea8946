"""Fake engines, store and registry that behave like the real ones, without weights, S3 or MLflow."""

import asyncio
import contextlib
import hashlib
import json
import textwrap
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from pathlib import Path
from typing import Any, cast

import httpx
from aiohttp import web
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from infra.model.batches import Batch, BatchResult
from infra.model.fim import SPECIAL_TOKENS, Renderer
from infra.records import Decision, ExperimentRecord
from infra.records.base import Arm
from infra.redaction.redactor import Redactor
from infra.redaction.texts import Kept
from infra.registry.client import ANCHOR_TAG, EXPERIMENT_TAG, LOOK_TAG, WATCH_TAG, Registry
from infra.settings.schema import Sampling
from infra.settings.schema import Serving as ServingSettings
from infra.storage.store import AlreadyExists, ObjectStore, from_parquet
from serving.access import Access
from serving.app import create_completions_app, create_feedback_app
from serving.engine.endpoints import Busy, CheckpointSource, Endpoints, EngineDead
from serving.engine.protocol import Delta, EngineRequest, Finish, Health, SwapRefused, SwapResult, WrongVersion
from serving.engine.unauthenticated import Unauthenticated
from serving.engine.version_cache import Download, VersionCache, source_of
from serving.gateway.browsers import accepted_hosts
from serving.gateway.completions import Gateway
from serving.gateway.detokenizer import stop_token_ids
from serving.gateway.dialects import CLIENT_NAMES
from serving.gateway.drain import Drain
from serving.gateway.feedback import FeedbackService
from serving.gateway.server import make_connections
from serving.metrics import Metrics
from serving.recording.choices import Choices
from serving.recording.event_redactor import EventRedactor
from serving.recording.long_texts import LongTexts
from serving.recording.opt_outs import OptOuts
from serving.recording.recorder import Recorder
from serving.recording.shipping import Shipper, read_segment
from serving.recording.spool import KINDS, Spool
from serving.recording.traces import CompletionTraces
from serving.slots import client
from serving.slots.arms import Arms, Slot
from serving.slots.follower import Follower
from serving.slots.policy import Policy
from serving.slots.version_source import VersionSource
from serving.status.data import Links, StatusData
from serving.status.routes import metrics_text
from serving.status.sources import StatusSources
from tests.serving.apps import aiohttp_app, fastapi_apps

TOKEN, EDITOR, SIMULATION, ADMIN = "token-of-the-team", "token-of-an-editor", "token-of-the-simulation", "token-of-the-admin"
"""Tokens of a trusted proxy, of an editor, of simulated developers and of an administrator."""
PROXY = {
    "sha256": hashlib.sha256(TOKEN.encode()).hexdigest(),
    "roles": ["complete", "feedback", "users"],
    "requests_per_minute": 60_000,
}
TEXT = "return alpha + beta"
"""The first engine's completion."""
HEADERS = {"Authorization": f"Bearer {TOKEN}", "X-User-ID": "ada", "X-Project-ID": "p1"}
ENGINE_TOKEN = "token-of-the-engines"


def tokenizer() -> Tokenizer:
    """Train a tokenizer on a module of the standard library, which changes less often than this repository."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator([Path(textwrap.__file__).read_text()], trainer=trainer)
    return bpe


class AnyVersion:
    """Checkpoints of an engine that has every version."""

    def fetch(self, version: str, source: str) -> Download:
        return Download(Path("/versions", version), "held", 0, source)

    def loaded(self, version: str, path: Path) -> None:
        pass


class FakeEngine:
    """An engine that samples given tokens, behind a real engine's routes."""

    def __init__(self, reply: list[int]) -> None:
        self.reply = reply
        self.version = "0"
        self.pid = 1
        self.delay = 0.0
        self.fails_after: int | None = None
        """Tokens after which the connections break."""
        self.logprob = -0.5
        self.refused_version = ""
        """The version that a swap refuses."""
        self.busy_with = 0
        """Completions of others."""
        self.batches: list[Batch] = []
        self.path = "/base"
        self.sources: dict[str, str] = {}
        self.swap_allowed = asyncio.Event()
        self.swap_allowed.set()
        self.tokens_allowed = asyncio.Event()
        self.tokens_allowed.set()
        self.sampled = 0
        """Tokens so far."""
        self.requests: list[EngineRequest] = []
        self.swaps: list[str] = []
        self.aborted = 0
        self.up = True
        self.url = ""
        self.checkpoints: CheckpointSource = AnyVersion()
        self._connections: set[asyncio.Transport] = set()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        """Run the engine and yield its address."""
        self.endpoints = Endpoints(self, ENGINE_TOKEN, {"127.0.0.1"}, Unauthenticated(60), self.checkpoints)
        app = self.endpoints.app()
        app.middlewares.append(cast(Any, self._add_connection))
        async with aiohttp_app(app) as self.url:
            yield self.url

    @web.middleware
    async def _add_connection(self, http: web.Request, handler: Any) -> web.StreamResponse:
        if http.transport:  # None if the client has left
            self._connections.add(http.transport)
        return await handler(http)

    def holds(self, version: str) -> bool:
        return version == self.version

    def keep(self, version: str) -> None:
        pass

    @property
    def fatal_error(self) -> str:
        return "" if self.up else "dead"

    async def generate(self, request: EngineRequest) -> AsyncGenerator[Delta]:
        if not self.up:
            raise EngineDead("dead")
        self.requests.append(request)
        tokens = self.reply[: request.max_tokens]
        try:
            for index, token in enumerate(tokens):
                if index == self.fails_after:
                    for connection in self._connections:
                        connection.abort()
                    await asyncio.sleep(3600)
                await self.tokens_allowed.wait()
                self.sampled += 1
                last = index == len(tokens) - 1
                spans = ((self.version, 0, len(tokens)),) if last else ()
                finish: Finish | None = None if not last else "stop" if token in request.stop_token_ids else "length"
                yield Delta([token], [self.logprob], self.version, finish, spans)
                await asyncio.sleep(self.delay)
        except asyncio.CancelledError:
            self.aborted += 1
            raise

    async def batch(self, batch: Batch) -> AsyncGenerator[BatchResult]:
        """Answer the last prompt first: with its draw and the reply, or with a log-probability of -1 for each scored token."""
        self.batches.append(batch)
        for row in reversed(range(len(batch.prompts))):
            if not self.up:
                raise EngineDead("dead")
            if batch.version != self.version:
                raise WrongVersion(f"holds version {self.version}, asked for {batch.version}")
            scored = batch.scored[row] if batch.scored else 0
            yield BatchResult(row, () if scored else (batch.draws[row] % 97, *self.reply), (-1.0,) * scored)
            await asyncio.sleep(self.delay)

    async def swap(self, path: str, version: str, *, idle: bool = False) -> SwapResult:
        if self.refused_version == version:
            raise SwapRefused("does not fit")
        if idle and self.busy_with:
            raise Busy(f"{self.busy_with} completions run")
        await self.swap_allowed.wait()
        self.swaps.append(version)
        self.version, self.path, self.sources = version, path, {version: source_of(Path(path))}
        return SwapResult(version, 1.0, 1.0, 1.0)

    def health(self) -> Health:
        return Health(self.version, self.pid, self.busy_with, self.path, sources=self.sources)


class MemoryStore(ObjectStore):
    """A bucket in memory that can be unavailable."""

    def __init__(self) -> None:
        self.bucket = "bucket"
        self.objects: dict[str, bytes] = {}
        self.puts: list[str] = []
        self.unavailable = False
        self.reads_allowed = threading.Event()
        """Reads wait while this event is cleared."""
        self.reads_allowed.set()

    def put(self, key: str, body: bytes) -> str:
        if self.unavailable:
            raise ConnectionError("the store is away")
        self.puts.append(key)
        assert self.objects.setdefault(key, body) == body, f"{key} was written with other bytes before"
        return hashlib.sha256(body).hexdigest()

    def put_new(self, key: str, body: bytes) -> str:
        if self.exists(key):
            raise AlreadyExists(key)
        return self.put(key, body)

    def get(self, key: str) -> bytes:
        if self.unavailable:
            raise ConnectionError("the store is away")
        self.reads_allowed.wait(20)
        return self.objects[key]

    def get_file(self, key: str, file: Path) -> str:
        file.write_bytes(body := self.get(key))
        return hashlib.sha256(body).hexdigest()

    def exists(self, key: str) -> bool:
        if self.unavailable:
            raise ConnectionError("the store is away")
        return key in self.objects

    def delete(self, key: str) -> None:
        if self.unavailable:
            raise ConnectionError("the store is away")
        self.objects.pop(key, None)

    def keys(self, prefix: str) -> Iterator[str]:
        if self.unavailable:
            raise ConnectionError("the store is away")
        return iter(sorted(key for key in self.objects if key.startswith(prefix)))

    def shipped(self, kind: str) -> list[Any]:
        """Return the shipped events in the order of their keys."""
        return [row for key in self.keys(f"events/{kind}/") for row in from_parquet(self.objects[key], KINDS[kind])]

    def add_version(self, name: str, **files: str) -> str:
        contents = {"weights": name.encode()} | {file: text.encode() for file, text in files.items()}
        for file, content in contents.items():
            self.objects[f"checkpoints/{name}/{file}"] = content
        checksums = {file: hashlib.sha256(content).hexdigest() for file, content in contents.items()}
        self.objects[f"checkpoints/{name}/checksums.json"] = json.dumps(checksums).encode()
        return f"s3://{self.bucket}/checkpoints/{name}"


class FakeRegistry:
    """The part of MLflow's REST API that the app reads."""

    def __init__(self) -> None:
        self.sources: dict[str, str] = {}
        self.aliases: dict[str, str] = {}
        self.experiment: ExperimentRecord | None = None
        self.watch: ExperimentRecord | None = None
        self.anchor: ExperimentRecord | None = None
        self.decision: Decision | None = None
        self.tags: dict[str, dict[str, str]] = {}
        self.of_model: dict[str, str] = {}
        """Further tags of the model, such as a project's test."""
        self.unavailable = False
        self.page: httpx.Response | None = None
        """What a proxy answers in its place."""
        self.answers = threading.Event()
        """Cleared: requests hang."""
        self.answers.set()
        self.answered: list[str] = []
        """Paths of the requests that do not hang any more."""

    def client(self) -> Registry:
        return Registry(httpx.Client(transport=httpx.MockTransport(self._respond), base_url="http://registry"), "m")

    def _respond(self, request: httpx.Request) -> httpx.Response:
        assert self.answers.wait(20), "the test lets the registry answer again"
        self.answered.append(request.url.path)
        if self.unavailable:
            raise httpx.ConnectError("away")
        if self.page is not None:
            return self.page
        if request.url.path.endswith("registered-models/get"):
            records = {EXPERIMENT_TAG: self.experiment, LOOK_TAG: self.decision, WATCH_TAG: self.watch, ANCHOR_TAG: self.anchor}
            known = {key: record.model_dump_json() for key, record in records.items() if record} | self.of_model
            tags = [{"key": key, "value": value} for key, value in known.items()]
            aliases = [{"alias": k, "version": v} for k, v in self.aliases.items()]
            return httpx.Response(200, json={"registered_model": {"aliases": aliases, "tags": tags}})
        if request.url.path.endswith("model-versions/search"):
            return httpx.Response(200, json={"model_versions": [self._version(v) for v in self.sources]})
        version = request.url.params["version"]
        return (
            httpx.Response(200, json={"model_version": self._version(version)})
            if version in self.sources
            else httpx.Response(404, json={"error_code": "RESOURCE_DOES_NOT_EXIST"})
        )

    def _version(self, version: str) -> dict[str, Any]:
        tags = [{"key": key, "value": value} for key, value in self.tags.get(version, {}).items()]
        return {"version": version, "source": self.sources[version], "tags": tags}


class House:
    """The serving app on fakes; everything else is production code."""

    def __init__(
        self,
        directory: Path,
        tokenizer: Tokenizer,
        *,
        spool_bytes: int = 1 << 30,
        withhold_below: float = 0.0,
        challenger: Sampling | None = None,
        settings: dict[str, Any] | None = None,
        traces: CompletionTraces | None = None,
    ) -> None:
        self.directory = directory
        self.traces = traces
        self.tokenizer = tokenizer
        self.engines = (FakeEngine(tokenizer.encode(TEXT).ids), FakeEngine(tokenizer.encode("return gamma").ids))
        self.store = MemoryStore()
        self.registry = FakeRegistry()
        self.metrics = Metrics(CLIENT_NAMES)
        self.clock = 0.0
        """The status page's clock in seconds."""
        self.spool_bytes = spool_bytes
        champion = Sampling(temperature=0.8, max_tokens=24, withhold_below=withhold_below)
        self.sampling: dict[Arm, Sampling] = {"champion": champion, "challenger": challenger or champion}
        tokens = {"token": EDITOR, "admin_token": ADMIN, "simulation_token": SIMULATION, "user_secret": "salt"}
        values: dict[str, Any] = tokens | {"terms": {"experiments": True}, "name_users": True} | (settings or {})
        values["tokens"] = {"proxy": PROXY} | values.get("tokens", {})
        self.settings = ServingSettings(**values)
        self.exit_stack = contextlib.AsyncExitStack()
        self.urls: tuple[str, str] = ("", "")

    async def __aenter__(self) -> "House":
        for engine in self.engines:
            await self.exit_stack.enter_async_context(engine.running())
        self.http = await self.exit_stack.enter_async_context(client.session())
        first, second = (
            Slot(i, client.EngineClient(self.http, engine.url, ENGINE_TOKEN)) for i, engine in enumerate(self.engines)
        )
        self.arms = Arms((first, second))
        self.own_arms: dict[str, Arms] = {}
        """The arms of projects with a champion of their own; a test fills it."""
        self.spool = Spool(self.directory / "spool", self.spool_bytes)
        self.choices = Choices(self.store, self.directory / "state" / "choices.json", lambda names: self.recorder.forget(names))
        await self.choices.read()
        counters = (self.metrics.ignored_users.inc, self.metrics.unshared_rates.inc)
        self.access = access = Access(self.settings, *counters, chose=self.choices.hold)
        redactor = EventRedactor(Redactor(), LongTexts(), Kept())
        opt_outs = OptOuts(access.user_secret, self.directory / "state" / "opted_out.jsonl")
        self.recorder = Recorder(self.spool, self.metrics, redactor, opt_outs, traces=self.traces)
        self.shipper = Shipper(self.spool, self.store, 0.05, self.traces)
        self.versions = VersionCache(self.directory / "state", most_deltas=4)
        source = VersionSource(self.registry.client(), self.store, self.versions)
        self.follower = Follower(self.arms, source, self.metrics, 0.01)
        hosts = accepted_hosts(self.settings)
        renderer = Renderer(self.tokenizer, "spm", 40, 20)
        self.policy = Policy(self.tokenizer, renderer, self.sampling, stop_token_ids(self.tokenizer))
        gateway = Gateway(
            *("qwen-coder-x", access, self.arms, self.policy, self.recorder, self.settings.showing, self.choices),
            own_arms=self.own_arms,
        )
        feedback = FeedbackService(access, self.recorder)
        self.data = data = StatusData(self.registry.client(), self.store, clock=lambda: self.clock)
        links = Links("http://mlflow.test", "http://prefect.test", "m")
        self.drain = drain = Drain(self.settings.drain)
        app = (access, self.arms, self.spool, self.shipper, self.metrics, data, links, drain)
        status = StatusSources(*app, own_arms=self.own_arms)
        completions_app = create_completions_app(gateway, feedback, status, hosts)
        port = self.settings.port
        self.apps = (completions_app, create_feedback_app(feedback, self.metrics, hosts, drain, completions_app, port))
        self.connections = make_connections(self.settings.limits, self.metrics)
        closing = asyncio.create_task(self.connections.close_expired())
        self.exit_stack.callback(closing.cancel)
        urls = await self.exit_stack.enter_async_context(fastapi_apps(self.apps, self.connections))
        self.urls = (urls[0], urls[1])
        # Without TLS: its certificates take 20 ms to load.
        self.client = await self.exit_stack.enter_async_context(httpx.AsyncClient(headers=HEADERS, timeout=20, verify=False))
        await self.follower.step()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.recorder.settle()
        await self.exit_stack.aclose()
        await self.access.aclose()
        await self.spool.close()

    def number(self, arm: Arm) -> int:
        """Return the number of an arm's slot and engine."""
        number = self.arms.champion if arm == "champion" else self.arms.challenger
        assert number is not None
        return number

    def add_version(self, version: str) -> None:
        self.registry.sources[version] = self.store.add_version(f"v{version}")

    async def follow(self) -> None:
        """Follow the registry until no load is under way."""
        await self.follower.step()
        while await self.follower.wait_for_load():
            await self.follower.step()

    def metrics_text(self) -> bytes:
        """Return Prometheus' exposition without a request."""
        return metrics_text(self.metrics, self.spool, {"": self.arms})

    async def ship(self) -> bool:
        """Close and ship all segments; return whether none is left."""
        for journal in self.spool.journals.values():
            await journal.rotate(0)
        return await self.shipper.ship()

    async def complete(self, url: str = "/v1/completions", headers: dict[str, str] | None = None, **body: Any) -> httpx.Response:
        return await self.client.post(self.urls[0] + url, json={"prompt": "def f(x):\n    ", **body}, headers=headers)

    async def send_feedback(self, url: str, body: object, headers: dict[str, str] | None = None) -> httpx.Response:
        return await self.client.post(self.urls[1] + url, json=body, headers=headers)

    def rows(self, kind: str) -> list[Any]:
        """Return the events on the disk."""
        rows: list[Any] = []
        for path in sorted((self.spool.directory / kind).glob("*.jsonl")):
            events, unreadable = read_segment(path, KINDS[kind])
            assert not unreadable
            rows += events
        return rows


def experiment(champion: str = "1", challenger: str = "2", share: float = 0.5) -> ExperimentRecord:
    return ExperimentRecord(id="e1", champion=champion, challenger=challenger, share=share, started=0.0)


__all__ = [
    "ADMIN",
    "EDITOR",
    "HEADERS",
    "SIMULATION",
    "TEXT",
    "TOKEN",
    "FakeEngine",
    "House",
    "MemoryStore",
    "experiment",
    "tokenizer",
]
