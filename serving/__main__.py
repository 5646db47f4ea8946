"""Starts the serving app: `python -m serving`. One process and one event loop serve the completions and feedback ports."""

import argparse
import asyncio
import contextlib
import logging
import os
import sys
from collections.abc import Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import aiohttp
import uvloop
from fastapi import FastAPI

from infra import settings as settings_
from infra.http.listening import to_listen
from infra.model.fim import Renderer
from infra.redaction.redactor import Redactor
from infra.redaction.texts import KEPT_CHARACTERS, Kept
from infra.redaction.worker import personal_data
from infra.registry.client import Registry
from infra.settings import Settings
from infra.stack import files
from infra.storage.store import ObjectStore
from infra.telemetry import logs, switch
from serving.access import Access
from serving.app import create_completions_app, create_feedback_app
from serving.engine.version_cache import VersionCache
from serving.gateway import gc_pauses
from serving.gateway.browsers import accepted_hosts
from serving.gateway.completions import Gateway
from serving.gateway.detokenizer import load_tokenizer, stop_token_ids
from serving.gateway.dialects import CLIENT_NAMES
from serving.gateway.drain import Drain
from serving.gateway.feedback import FeedbackService
from serving.gateway.server import make_connections, make_server
from serving.metrics import Metrics
from serving.recording.choices import Choices
from serving.recording.event_redactor import EventRedactor
from serving.recording.left_spools import LeftSpools
from serving.recording.long_texts import LongTexts
from serving.recording.opt_outs import OptOuts
from serving.recording.recorder import Recorder
from serving.recording.shipping import Shipper
from serving.recording.spool import Spool
from serving.recording.traces import CompletionTraces
from serving.slots import client
from serving.slots.adapters import AdapterClient
from serving.slots.arms import Arms, Slot
from serving.slots.client import EngineClient, SlotEngine
from serving.slots.external import ExternalEngine
from serving.slots.follower import Follower
from serving.slots.group import EngineGroup, is_looked_up
from serving.slots.policy import CHARACTERS_PER_TOKEN, Policy
from serving.slots.version_source import VersionSource
from serving.status import certificates
from serving.status.data import Links, StatusData
from serving.status.sources import StatusSources

log = logging.getLogger("serving")
FLUSH_SECONDS = 1.0
"""Longest wait at the end for spans that are not sent yet."""
EXIT_SECONDS = 0.5
"""Time at the end of the grace period for the process to end by itself."""
THREADS, LOOP_THREADS = 16, 16
"""Threads for calls to other servers: THREADS for all, LOOP_THREADS more for each loop's follower and status page. A registry
that hangs would hold all of asyncio's own number, a few more than the cores, and with them events, choices and look-ups of
names."""


def policy(settings: Settings) -> Policy:
    """Return how prompts are rendered and completions sampled. Exits if an engine's context is too short for it."""
    model = settings.model
    champion = settings.serving.sampling
    challenger = settings.serving.challenger_sampling or champion
    base = settings_.path(model.base)
    tokenizer = load_tokenizer(base)
    renderer = Renderer(tokenizer, model.fim_order, model.max_prefix_tokens, model.max_suffix_tokens)
    policy = Policy(tokenizer, renderer, {"champion": champion, "challenger": challenger}, stop_token_ids(tokenizer, base))
    context = settings.serving.engine_arguments.get("max_model_len")
    if context is not None and context < policy.max_context:
        raise SystemExit(
            f"serving.engine_arguments.max_model_len = {context}: prompts and completions need {policy.max_context}; "
            "raise it, or lower model.max_prefix_tokens or model.max_suffix_tokens"
        )
    return policy


def links(settings: Settings) -> Links:
    """Return the addresses that the status page links to."""
    registry, orchestration = settings.registry, settings.orchestration
    mlflow = registry.page or settings_.masked(registry.uri, "")
    prefect = orchestration.page or settings_.masked(orchestration.api, "").removesuffix("/api")
    return Links(mlflow.rstrip("/"), prefect.rstrip("/"), registry.model)


def engine(http: aiohttp.ClientSession, slot: int, settings: Settings, policy: Policy, versions: VersionCache) -> SlotEngine:
    """Return the client of the engine, or engines, of a slot."""
    setting, secret = settings.serving.engines[slot], settings.serving.engine_token
    token = secret.get_secret_value() if secret else None
    held = versions.slot_version(slot)

    def connect(url: str, host: str = "") -> EngineClient:
        if settings.serving.adapters:
            return AdapterClient(http, url, token, host, held[1] if held else "")
        return EngineClient(http, url, token, host)

    if isinstance(setting, str):
        return EngineGroup(connect, (setting,)) if is_looked_up(setting) else connect(setting)
    if isinstance(setting, tuple):
        return EngineGroup(connect, setting)
    return ExternalEngine(http, setting, policy)


def event_redactor(settings: Settings, metrics: Metrics) -> EventRedactor:
    """Return the redactor of events; it keeps all code that the model sees."""
    model, personal = settings.model, settings.serving.personal_data
    before, after = (tokens * CHARACTERS_PER_TOKEN for tokens in (model.max_prefix_tokens, model.max_suffix_tokens))
    arguments = personal.model_dump() if personal.kinds else None
    kept = Kept(max(KEPT_CHARACTERS, before), max(KEPT_CHARACTERS, after))
    return EventRedactor(
        Redactor(personal_data(arguments)), LongTexts(arguments, lambda _, seconds: metrics.redaction_wait.observe(seconds)), kept
    )


@dataclass(frozen=True)
class Parts:
    """The parts of the app, wired and not started."""

    metrics: Metrics
    access: Access
    redactor: EventRedactor
    recorder: Recorder
    shipper: Shipper
    spools: LeftSpools
    followers: Sequence[Follower]
    """Of the common loop, then of each project with a champion of its own."""
    choices: Choices
    data: StatusData
    completions: FastAPI
    feedback: FastAPI


def wire(
    settings: Settings, http: aiohttp.ClientSession, metrics: Metrics, drain: Drain, traces: CompletionTraces | None = None
) -> Parts:
    """Make every part from the settings. Nothing is started, and no other server is asked."""
    serving = settings.serving
    spool = Spool(settings_.path(serving.spool))
    store = ObjectStore.connect(settings.store)
    shipper = Shipper(spool, store, serving.ship_seconds, traces)
    choices = Choices(store, settings_.path(serving.state) / "choices.json", lambda names: recorder.forget(names))
    access = Access(serving, metrics.ignored_users.inc, metrics.unshared_rates.inc, chose=choices.hold)
    hosts = accepted_hosts(serving)
    sampling = policy(settings)
    redactor = event_redactor(settings, metrics)
    opt_outs = OptOuts(access.user_secret, settings_.path(serving.state) / "opted_out.jsonl")
    recorder = Recorder(spool, metrics, redactor, opt_outs, settings.collect.join_seconds, traces)
    versions = VersionCache(settings_.path(serving.state), serving.most_deltas)
    versions.forget_loops(serving.own_champions)
    registry = Registry.connect(settings.registry)

    def follow(held: VersionCache, project: str = "") -> Follower:
        """Return the follower of a loop, with arms of its own."""
        first, second = (Slot(number, engine(http, number, settings, sampling, held)) for number in (0, 1))
        source = VersionSource(registry.of(project), store, held)
        return Follower(Arms((first, second)), source, metrics, serving.follow_seconds)

    follower, projects = follow(versions), {name: follow(versions.of(name), name) for name in sorted(serving.own_champions)}
    arms, own_arms = follower.arms, {name: each.arms for name, each in projects.items()}
    gateway = Gateway(settings.model.name, access, arms, sampling, recorder, serving.showing, choices, own_arms=own_arms)
    feedback = FeedbackService(access, recorder)
    spools = LeftSpools(spool, store)
    data = StatusData(registry, store, tokens=certificates.tokens(settings), spools=spools)
    status = StatusSources(access, arms, spool, shipper, metrics, data, links(settings), drain, own_arms=own_arms)
    completions_app = create_completions_app(gateway, feedback, status, hosts)
    feedback_app = create_feedback_app(feedback, metrics, hosts, drain, completions_app, serving.port)
    return Parts(
        metrics,
        access,
        redactor,
        recorder,
        shipper,
        spools,
        (follower, *projects.values()),
        choices,
        data,
        completions_app,
        feedback_app,
    )


def threads(loops: int) -> ThreadPoolExecutor:
    """Return the threads of calls that wait for other servers."""
    return ThreadPoolExecutor(THREADS + LOOP_THREADS * loops, "calls")


def in_background(*runs: Coroutine[Any, Any, None]) -> list[asyncio.Task[None]]:
    """Start what runs beside the requests. What ends with an error is logged at once, since the app serves on without it."""

    def ended(task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()):
            log.error("%r has ended, start the app again: %s", task.get_coro(), error, exc_info=error)

    tasks = [asyncio.create_task(run) for run in runs]
    for task in tasks:
        task.add_done_callback(ended)
    return tasks


async def serve(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT, then end as serving.drain says."""
    serving = settings.serving
    metrics, drain = Metrics(CLIENT_NAMES), Drain(serving.drain)
    try:
        traces = switch.traces("tabloop", os.environ, metrics.spans_lost.inc)
    except ValueError as error:
        raise SystemExit(f"serving: {error}") from None
    connections = make_connections(serving.limits, metrics)
    connections.fit_to_descriptors()
    async with client.session() as http:
        traced = CompletionTraces(traces, settings.model.name, CLIENT_NAMES) if traces else None
        parts = wire(settings, http, metrics, drain, traced)
        asyncio.get_running_loop().set_default_executor(threads(len(parts.followers)))
        access, recorder, shipper = parts.access, parts.recorder, parts.shipper
        gc_pauses.freeze()
        background = in_background(
            *(follower.run() for follower in parts.followers),
            shipper.run(),
            parts.spools.follow(),
            parts.redactor.long_texts.start(),
            parts.choices.follow(),
            access.tokens.follow(),
            certificates.follow(settings, parts.data.certificates),
            connections.close_expired(),
            gc_pauses.collect_when_quiet(connections),
        )
        try:
            options: dict[str, Any] = {"host": to_listen(serving.host), "timeout_graceful_shutdown": serving.drain.stream_seconds}
            await drain.serve(
                make_server(parts.completions, connections, port=serving.port, **options),
                make_server(parts.feedback, connections, port=serving.feedback_port, **options),
            )
        finally:
            for task in background:
                task.cancel()
            await asyncio.gather(*background, return_exceptions=True)
            await recorder.settle()
            await recorder.spool.close()
            await access.aclose()
            drain.recorded = True
            with contextlib.suppress(TimeoutError):
                if await asyncio.wait_for(shipper.ship(), drain.seconds_left - EXIT_SECONDS):
                    await asyncio.wait_for(parts.spools.end(), drain.seconds_left - EXIT_SECONDS)
            if traces:
                await asyncio.to_thread(traces.flush, min(FLUSH_SECONDS, drain.seconds_left - EXIT_SECONDS))


def expect_folders(settings: Settings) -> None:
    """Make the folders that the app writes into. Exits with the setting of one that cannot be written."""
    for name in ("spool", "state"):
        folder = settings_.path(getattr(settings.serving, name))
        try:
            folder.mkdir(parents=True, exist_ok=True)
            reason = "" if os.access(folder, os.W_OK | os.X_OK) else "this user may not write it"
        except OSError as error:
            reason = error.strerror or str(error)
        if reason:
            variable = f"{settings_.PREFIX}SERVING__{name.upper()}"
            raise SystemExit(f"serving: serving.{name} = {folder}: {reason}; set {variable} to a folder that this user may write")


def main() -> int:
    argparse.ArgumentParser(prog="python -m serving", description="Serve completions and feedback until SIGTERM.").parse_args()
    os.umask(files.PRIVATE)
    settings = settings_.load_for("serving")
    logs.configure(settings.serving.log_format)
    expect_folders(settings)
    uvloop.run(serve(settings))
    return 0


if __name__ == "__main__":
    sys.exit(main())
