"""The app beside plain vLLM: what it adds to the time to first token, what it takes from throughput, what a swap costs.

Both serve the base model on this machine with the same engine arguments. They get the same prompts, a block each in turn, so that
what else the machine does meets both. Both get text, as editors send it: plain vLLM the one of which it makes the token ids that
the app sends its engine. Throughput is compared in tokens, since what is sampled is longer on one side by chance. The CPU time of
each process, by the token, says where it goes.

The late quantile and throughput are compared block by block, and the median counts: of all requests together, what else the
machine did in one or two blocks sets the quantile (that of two plain servers differed by 227 ms); it is told without a target.
"""

import asyncio
import math
import os
import secrets
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from operator import sub, truediv
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import psutil
from scipy.stats import binom
from tokenizers import Tokenizer

from evals import positions
from evals.bench.figures import Figure, figure
from evals.bench.streams import Shot, session, shoot, volley
from evals.heldout import held_out_files, site_packages
from infra import fim
from infra import settings as configuration
from infra.registry import CHAMPION, Registry
from infra.settings import ROOT, Settings

PLAIN = ("-m", "vllm.entrypoints.launchers.api_server.entry")
PLAIN_SECONDS = 240.0
BLOCKS = {1: 36, 16: 36}
"""By streams at once. At 16, a block's late quantile is set by its first 16 requests, which come in one instant: it differs by
30 ms from block to block, the median of 36 differences hence by 6 from run to run."""
REQUESTS = {1: 100, 16: 200}
"""Requests of a block, by streams at once. The longer the blocks, the more of what the machine does meets one side alone: with 12
and 24 of 150, runs of one program gave 0.92 to 1.01 of plain vLLM's throughput at one stream."""
SPARE = 50
"""One prompt more for so many, since some are left out: one in a thousand."""
ADDED_MS = (3.0, 10.0)
"""What the app may add to the time to first token: median, 99 % quantile."""
THROUGHPUT = 0.95
SWAPS = 5
"""The 99 % quantile of one swap's requests is that of its two latest."""
SWAP_STREAMS, SWAP_BEFORE, SWAP_AFTER, SWAP_MOST = 8, 6.0, 4.0, 60.0
SWAP_SLOWER = 1.5


async def run(settings: Settings) -> list[Figure]:
    """Beside plain vLLM, then a swap under load.

    Raises:
        RuntimeError: a server does not come up, or requests fail.
    """
    asked = prompts(settings, sum(BLOCKS[at_once] * requests for at_once, requests in REQUESTS.items()))
    token = settings.serving.token.get_secret_value() if settings.serving.token else ""
    ours = f"http://{settings.serving.host}:{settings.serving.port}/v1/completions"
    async with session(token) as http:
        async with plain_vllm(settings, http) as plain:
            found = await beside(http, settings, asked, ours, plain)
        return found + await swap(http, settings, ours, [editor_body(settings, sent) for sent, _ in asked])


def prompts(settings: Settings, count: int) -> list[tuple[str, str]]:
    """What an editor sends, and the text that holds the token ids which the app makes of it, for places in held-out code.

    Each place once, and other ones at each run, since the engine still has an earlier run's in its cache. The few prompts that
    are other token ids when they are read as one text are left out.
    """
    model = settings.model
    tokenizer = Tokenizer.from_file(str(configuration.path(model.base) / "tokenizer.json"))
    renderer = fim.Renderer(tokenizer, model.fim_order, model.max_prefix_tokens, model.max_suffix_tokens)
    sources = positions.read_sources(held_out_files(), [site_packages()])
    found = []
    for place in positions.sample_positions(positions.scored_sources(sources), count + count // SPARE, seed=secrets.randbits(32)):
        prefix, suffix = place.prefix[-2000:], place.suffix[:1000]
        ids = renderer.render(prefix, suffix)
        text = tokenizer.decode(ids, skip_special_tokens=False)
        if tokenizer.encode(text, add_special_tokens=False).ids == ids:
            found.append((f"{fim.PREFIX}{prefix}{fim.SUFFIX}{suffix}{fim.MIDDLE}", text))
    if len(found) < count:
        raise RuntimeError(f"only {len(found)} of {count} prompts are the same token ids as one text; is model.base changed?")
    return found[:count]


def editor_body(settings: Settings, prompt: str) -> dict[str, Any]:
    """What Continue would send."""
    return {"model": settings.model.name, "prompt": prompt, "max_tokens": settings.serving.sampling.max_tokens, "stream": True}


async def beside(
    http: aiohttp.ClientSession,
    settings: Settings,
    asked: Sequence[tuple[str, str]],
    ours: str,
    plain: str,
) -> list[Figure]:
    """The same prompts to both, in blocks."""
    sampling, waiting = settings.serving.sampling, iter(asked)
    same = {"model": "plain", "max_tokens": sampling.max_tokens, "temperature": sampling.temperature, "stream": True}
    processes = {
        ours: {"app": settings.serving.port, "engine": urlsplit(await _champion(http, settings)).port},
        plain: {"plain": urlsplit(plain).port},
    }
    figures, sides = [], {"own": ours, "plain": plain}
    for at_once, requests in REQUESTS.items():
        shots: dict[str, list[Shot]] = {ours: [], plain: []}
        late: dict[str, list[float]] = {ours: [], plain: []}
        pace: dict[str, list[float]] = {ours: [], plain: []}
        spent = {url: Cpu(ports) for url, ports in processes.items()}
        for block in range(BLOCKS[at_once]):
            pairs = [next(waiting) for _ in range(requests)]
            bodies = {
                ours: [editor_body(settings, sent) for sent, _ in pairs],
                plain: [same | {"prompt": text} for _, text in pairs],
            }
            for url in (ours, plain) if block % 2 else (plain, ours):
                with spent[url]:
                    found, took = await volley(http, url, bodies[url], at_once)
                if failed := [shot.error for shot in found if shot.error]:
                    raise RuntimeError(f"{url}: {len(failed)} of {len(found)} requests failed: {failed[0]}; `make status`")
                shots[url] += found
                late[url].append(percentiles(found)[1])
                pace[url].append(sum(shot.tokens for shot in found) / took)
        (median, all_late), (plain_median, plain_late) = (percentiles(shots[url]) for url in (ours, plain))
        tokens = {of: sum(shot.tokens for shot in found) for of, found in shots.items()}
        name = f"{at_once}_at_once"
        figures += [
            figure(f"{name}.first_token.plain_median", plain_median, "ms"),
            figure(f"{name}.first_token.plain_p99", plain_late, "ms"),
            figure(f"{name}.first_token.added_median", median - plain_median, "ms", most=ADDED_MS[0]),
            *matched(f"{name}.first_token.added_p99", map(sub, late[ours], late[plain]), "ms", most=ADDED_MS[1]),
            figure(f"{name}.first_token.added_p99_of_all", all_late - plain_late, "ms"),
            figure(f"{name}.plain_tokens_per_second", statistics.fmean(pace[plain]), "1/s"),
            *matched(f"{name}.throughput_of_plain", map(truediv, pace[ours], pace[plain]), "ratio", least=THROUGHPUT),
            *(figure(f"{name}.{said}_tokens_a_completion", tokens[url] / len(shots[url]), "") for said, url in sides.items()),
            *(
                figure(f"{name}.cpu_a_token.{process}", 1e3 * used / tokens[url], "ms")
                for url in (ours, plain)
                for process, used in spent[url].seconds.items()
            ),
        ]
    return figures


def matched(name: str, of_blocks: Iterable[float], unit: str, **target: float) -> list[Figure]:
    """The median of what was found block by block, and between what it lies (95 %, by the sign test)."""
    found = sorted(of_blocks)
    tail = int(binom.ppf(0.025, len(found), 0.5))
    assert tail, f"{len(found)} blocks: 6 are the fewest that bound a median"
    bounds = {"low": found[tail - 1], "high": found[-tail]}
    return [
        figure(name, statistics.median(found), unit, **target),
        *(figure(f"{name}.{bound}", value, unit) for bound, value in bounds.items()),
    ]


async def swap(http: aiohttp.ClientSession, settings: Settings, url: str, bodies: Sequence[dict[str, Any]]) -> list[Figure]:
    """Some times make the champion's weights a new version and move its alias while developers stream; then put all back."""
    registry = Registry.connect(settings.registry)
    champion = registry.aliases().champion
    if champion is None:
        raise RuntimeError("registry: no version is champion, so that none can be exchanged; `make status`")
    source = registry.version(champion).source
    shots: list[Shot] = []
    first: dict[str, float] = {}
    moves: list[tuple[str, float, float]] = []
    stop = asyncio.Event()

    async def stream(offset: int) -> None:
        number = offset
        while not stop.is_set():
            shot = await shoot(http, url, bodies[number % len(bodies)])
            shots.append(shot)
            first[shot.version] = min(first.get(shot.version, math.inf), shot.at + shot.first_ms / 1e3)
            number += SWAP_STREAMS

    streams = [asyncio.create_task(stream(n)) for n in range(SWAP_STREAMS)]
    try:
        for _ in range(SWAPS):
            await asyncio.sleep(SWAP_BEFORE)
            new = registry.create_version(source, {"bench": "swap"}, "The champion once more, to measure a swap.").version
            moved = time.monotonic()
            registry.set_alias(CHAMPION, new)
            while new not in first:
                if time.monotonic() > moved + SWAP_MOST:
                    raise RuntimeError(
                        f"serving: version {new} does not serve {SWAP_MOST:.0f} s after the alias moved; `make status`"
                    )
                await asyncio.sleep(0.02)
            await asyncio.sleep(SWAP_AFTER)
            moves.append((new, moved, time.monotonic()))
    finally:
        stop.set()
        await asyncio.gather(*streams)
        registry.set_alias(CHAMPION, champion)
    await _serves(http, url, bodies[0], champion)
    for new, _, _ in moves:
        registry.delete_version(new)
    amid = [any(begin <= shot.at < end for _, begin, end in moves) for shot in shots]
    before, during = (percentiles([s for s, moving in zip(shots, amid, strict=True) if moving is of])[1] for of in (False, True))
    waits = [first[new] - moved for new, moved, _ in moves]
    return [
        figure("swap.failed_requests", sum(bool(shot.error) for shot in shots), "", most=0),
        figure("swap.first_token_p99_before", before, "ms"),
        figure("swap.first_token_p99_ratio", during / before, "ratio", most=SWAP_SLOWER),
        figure("swap.alias_to_first_token", statistics.median(waits), "s"),
        figure("swap.alias_to_first_token.longest", max(waits), "s"),
    ]


async def _serves(http: aiohttp.ClientSession, url: str, body: dict[str, Any], version: str) -> None:
    deadline = time.monotonic() + SWAP_MOST
    while (await shoot(http, url, body)).version != version:
        if time.monotonic() > deadline:
            raise RuntimeError(f"serving: version {version} does not serve again; `make status`")
        await asyncio.sleep(0.5)


async def _champion(http: aiohttp.ClientSession, settings: Settings) -> str:
    """Address of the engine that serves the champion."""
    token = settings.serving.admin_token or settings.serving.token
    headers = {"Authorization": f"Bearer {token.get_secret_value() if token else ''}"}
    url = f"http://{settings.serving.host}:{settings.serving.port}/admin/status"
    async with http.get(url, headers=headers) as answer:
        slots = (await answer.json())["slots"]
    return next(slot["url"] for slot in slots if slot["role"] == "champion")


class Cpu:
    """CPU time of the processes that listen on some ports, while this is entered; a child's (vLLM's engine core) by itself."""

    def __init__(self, ports: Mapping[str, int | None]) -> None:
        listening = {c.laddr.port: c.pid for c in psutil.net_connections("tcp") if c.status == psutil.CONN_LISTEN}
        self._processes: dict[str, list[psutil.Process]] = {}
        for name, port in ports.items():
            first = psutil.Process(listening[port])
            self._processes[name] = [first]
            if children := first.children(recursive=True):
                self._processes[f"{name}_core"] = children
        self.seconds = dict.fromkeys(self._processes, 0.0)

    def __enter__(self) -> None:
        self._before = self._now()

    def __exit__(self, *error: object) -> None:
        for name, now in self._now().items():
            self.seconds[name] += now - self._before[name]

    def _now(self) -> dict[str, float]:
        return {name: sum(sum(p.cpu_times()[:2]) for p in found) for name, found in self._processes.items()}


def percentiles(shots: Sequence[Shot]) -> tuple[float, float]:
    """Median and 99 % quantile of the time to first token, milliseconds."""
    cuts = statistics.quantiles([shot.first_ms for shot in shots], n=100, method="inclusive")
    return cuts[49], cuts[98]


@asynccontextmanager
async def plain_vllm(settings: Settings, http: aiohttp.ClientSession) -> AsyncIterator[str]:
    """vLLM's own server with the base model; the URL of its completions."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    flags = [f"--{name.replace('_', '-')}" + ("" if value is True else f"={value}") for name, value in engine_arguments(settings)]
    command = (sys.executable, *PLAIN, "--model", str(configuration.path(settings.model.base)), "--served-model-name", "plain")
    log = Path(configuration.path(settings.stack.state)) / "logs" / "plain-vllm.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            (*command, "--host", "127.0.0.1", "--port", str(port), *flags),
            cwd=ROOT,
            env=os.environ | environment(settings),
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + PLAIN_SECONDS
        while not await _answers(http, f"http://127.0.0.1:{port}/health"):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"plain vLLM does not come up; its log: {log}")
            await asyncio.sleep(0.5)
        url = f"http://127.0.0.1:{port}/v1/completions"
        await shoot(http, url, {"model": "plain", "prompt": "x", "max_tokens": 4, "stream": True})
        yield url
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def engine_arguments(settings: Settings) -> list[tuple[str, Any]]:
    return [(name, value) for name, value in settings.serving.engine_arguments.items() if value is not False]


def environment(settings: Settings) -> dict[str, str]:
    """As our engines have it (serving/engine): one thread, the worker in the engine's process, no compiler where it is eager."""
    cache = configuration.path(settings.stack.state).parent / "cache"
    found = {"OMP_NUM_THREADS": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    found |= {"VLLM_CACHE_ROOT": str(cache / "vllm"), "HF_HOME": str(cache / "huggingface")}
    eager = settings.serving.engine_arguments.get("enforce_eager")
    return found | ({"TORCHDYNAMO_DISABLE": "1"} if eager else {})


async def _answers(http: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with http.get(url) as answer:
            return answer.status == 200
    except (aiohttp.ClientError, OSError):
        return False
