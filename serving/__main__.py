"""Start the serving app: `python -m serving`; completions and feedback on their ports, one process, one event loop."""

import asyncio
import contextlib
import gc
import logging
import signal
import sys
from collections.abc import Iterator

import aiohttp
import uvicorn
import uvloop
from fastapi import FastAPI

from infra import settings as settings_
from infra.fim import Renderer
from infra.redaction import Redactor
from infra.registry import Registry
from infra.settings import Settings
from infra.store import ObjectStore
from serving import completions, engines, feedback
from serving.access import Access
from serving.arms import Arms, Slot
from serving.board import Board, Links
from serving.cycles import Cycles
from serving.engines import Engine, EngineClient
from serving.external import ExternalEngine
from serving.follower import Follower
from serving.generation import Policy
from serving.metrics import Metrics
from serving.recording import Recorder
from serving.shipping import Shipper
from serving.spool import Spool
from serving.standing import Serving
from serving.text import load_tokenizer, stop_token_ids
from serving.versions import Versions

log = logging.getLogger("serving")
LAST_SHIPPING_SECONDS = 10.0


class _Server(uvicorn.Server):
    """Signals are handled once for both servers."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def policy(settings: Settings) -> Policy:
    """How prompts are rendered and sampled."""
    model = settings.model
    champion = settings.serving.sampling
    challenger = settings.serving.challenger_sampling or champion
    tokenizer = load_tokenizer(settings_.path(model.base))
    renderer = Renderer(tokenizer, model.fim_order, model.max_prefix_tokens, model.max_suffix_tokens)
    made = Policy(tokenizer, renderer, {"champion": champion, "challenger": challenger}, stop_token_ids(tokenizer))
    room = settings.serving.engine_arguments.get("max_model_len")
    if room is not None and room < made.room:
        raise SystemExit(
            f"serving.engine_arguments.max_model_len = {room}: prompts and completions need {made.room} (model.max_*_tokens)"
        )
    return made


def links(settings: Settings) -> Links:
    """Where the status page points to."""
    registry, orchestration = settings.registry, settings.orchestration
    mlflow = registry.page or registry.uri
    prefect = orchestration.page or orchestration.api.removesuffix("/api")
    return Links(mlflow.rstrip("/"), prefect.rstrip("/"), registry.model)


def engine(http: aiohttp.ClientSession, slot: int, settings: Settings, policy: Policy) -> Engine:
    """What serves a slot."""
    found, token = settings.serving.engines[slot], settings.serving.token
    if isinstance(found, str):
        return EngineClient(http, found, token.get_secret_value() if token else None)
    return ExternalEngine(http, found, policy)


async def serve(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT; what was acknowledged is on disk, what can be shipped is."""
    serving = settings.serving
    metrics = Metrics()
    spool = Spool(settings_.path(serving.spool), serving.spool_bytes)
    store = ObjectStore.connect(settings.store)
    shipper = Shipper(spool, store, serving.ship_seconds)
    recorder = Recorder(spool, metrics, Redactor())
    access = Access(serving)
    sampled = policy(settings)
    async with engines.session() as http:
        arms = Arms((Slot(0, engine(http, 0, settings, sampled)), Slot(1, engine(http, 1, settings, sampled))))
        versions = Versions(settings_.path(serving.state))
        registry = Registry.connect(settings.registry)
        follower = Follower(arms, registry, store, versions, metrics, serving.follow_seconds)
        board = Board(registry, Cycles(store))
        app = completions.create_app(
            Serving(settings.model.name, access, arms, sampled, recorder, metrics, shipper, board, links(settings))
        )
        judging = feedback.Judging(access, recorder, metrics)
        feedback.add_feedback(app, judging)
        judge = feedback.create_app(judging)
        gc.collect()
        gc.freeze()  # what stands now stays: not to be looked through again, in the middle of a completion
        background = [asyncio.create_task(follower.run()), asyncio.create_task(shipper.run())]
        try:
            await _serve_both(_server(app, serving.host, serving.port), _server(judge, serving.host, serving.feedback_port))
        finally:
            for task in background:
                task.cancel()
            await asyncio.gather(*background, return_exceptions=True)
            await recorder.settle()
            await spool.close()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(shipper.ship(), LAST_SHIPPING_SECONDS)


async def _serve_both(*servers: _Server) -> None:
    def stop() -> None:
        for server in servers:
            server.should_exit = True

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)

    async def run(server: _Server) -> None:
        try:
            await server.serve()
        finally:
            stop()  # one port alone is no service

    await asyncio.gather(*(run(server) for server in servers))


def _server(app: FastAPI, host: str, port: int) -> _Server:
    config = uvicorn.Config(app, host=host, port=port, log_level="warning", access_log=False, timeout_graceful_shutdown=5)
    return _Server(config)


def main() -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    uvloop.run(serve(settings_.load()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
