"""An engine without a model, behind a real engine's routes: each completion is the same tokens, one at a time.

It leaves the app as the only part that computes, so that the app's limit is measured and not that of an engine on the same cores.

python -m evals.bench.rigs.given_tokens --port PORT --version VERSION --tokens ID [--tokens ID ...]
"""

import argparse
import asyncio
import os
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass

from aiohttp import web

from infra import settings as settings_
from infra.model.batches import Batch, BatchResult
from serving.engine.endpoints import Endpoints
from serving.engine.protocol import Delta, EngineRequest, Health, SwapRefused, SwapResult
from serving.engine.unauthenticated import Unauthenticated

STEP_SECONDS = 0.005
"""Between two tokens of a completion, as an engine on a GPU takes."""
LOGPROB = -0.1


@dataclass
class GivenTokens:
    """Holds one version, and samples given tokens for every prompt."""

    version: str
    tokens: Sequence[int]
    fatal_error: str = ""
    running: int = 0

    def holds(self, version: str) -> bool:
        """Whether it can sample with a version."""
        return version == self.version

    def keep(self, version: str) -> None:
        """Do nothing."""

    async def generate(self, request: EngineRequest) -> AsyncGenerator[Delta]:
        """Yield the tokens, up to the maximum that the request names."""
        tokens = self.tokens[: request.max_tokens]
        self.running += 1
        try:
            for index, token in enumerate(tokens):
                await asyncio.sleep(STEP_SECONDS)
                last = index == len(tokens) - 1
                spans = ((self.version, 0, len(tokens)),) if last else ()
                yield Delta([token], [LOGPROB], self.version, "length" if last else None, spans)
        finally:
            self.running -= 1

    async def batch(self, batch: Batch) -> AsyncGenerator[BatchResult]:
        """Yield the tokens for each prompt."""
        for row in range(len(batch.prompts)):
            yield BatchResult(row, tuple(self.tokens), ())

    async def swap(self, path: str, version: str, *, idle: bool = False) -> SwapResult:
        """Refuse another version: it has no weights."""
        if version != self.version:
            raise SwapRefused(f"version {version}: this engine has no weights; it was started as version {self.version}")
        return SwapResult(version, 0.0, 0.0, 0.0)

    def health(self) -> Health:
        """Return the engine's state."""
        return Health(self.version, os.getpid(), self.running)


async def serve(engine: GivenTokens, port: int, token: str) -> None:
    """Serve until the process is ended."""
    app = Endpoints(engine, token, {"127.0.0.1"}, Unauthenticated()).app()
    runner = web.AppRunner(app, access_log=None, keepalive_timeout=75.0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    await asyncio.Event().wait()


def main() -> None:
    """Serve as the command line says."""
    parser = argparse.ArgumentParser(prog="python -m evals.bench.rigs.given_tokens", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--version", required=True, help="version that it holds")
    parser.add_argument("--tokens", type=int, action="append", required=True, help="a token of every completion")
    options = parser.parse_args()
    token = settings_.load().serving.engine_token
    if not token:
        raise SystemExit("given_tokens: serving.engine_token is not set: start it with the environment of a stack")
    asyncio.run(serve(GivenTokens(options.version, options.tokens), options.port, token.get_secret_value()))


if __name__ == "__main__":
    main()
