"""The app compared with plain vLLM: added time to first token, share of the throughput, and the cost of a swap.

Both servers run the base model on this machine with the same engine arguments. They get the same prompts, a block each in turn,
so that other load on the machine affects both. Both get text: the app gets an editor's prompt, plain vLLM a text with the same
token ids as the prompt that the app sends to its engine. Throughput counts tokens, since sampled completions differ in length by
chance. The CPU time of each process per token shows where the time goes.

The 99 % quantile and the throughput are compared block by block, and the target applies to the median. Over all requests, other
load during one or two blocks sets the quantile (two plain servers differed by 227 ms), so that figure has no target.
"""

import asyncio
import secrets
import statistics
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from functools import partial
from itertools import cycle, islice
from operator import sub, truediv
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import psutil
from scipy.stats import binom

from evals import developers
from evals.bench.figures import Bench, Figure, Size, figure
from evals.bench.rigs.apps import plain_vllm
from evals.bench.rigs.servers import until
from evals.bench.streams import StreamResult, bearer, first_token_percentiles, session, stream_completion, stream_completions
from infra import settings as configuration
from infra.model import fim
from infra.registry.client import CHAMPION, Registry
from infra.settings import Settings
from tasks.evaluation import positions
from tasks.evaluation.heldout.build import scored_sources
from tasks.evaluation.models.base import Text

BLOCKS = Size(full={1: 36, 16: 36}, quick={1: 6, 16: 6})
"""Number of blocks, by concurrent streams. With 16 streams the first 16 requests, which arrive together, set a block's 99 %
quantile: it differs by 30 ms from block to block, so the median of 36 differences varies by 6 ms from run to run."""
REQUESTS = Size(full={1: 100, 16: 200}, quick={1: 20, 16: 64})
"""Requests of a block, by concurrent streams. Longer blocks let other load affect one side alone: with 12 and 24 blocks of
150, runs of one program gave 0.92 to 1.01 of plain vLLM's throughput with one stream."""
PROMPTS_PER_SPARE = 50  # one spare position for this many prompts, since about one in a thousand is unusable
MAX_ADDED_MS = (3.0, 10.0)  # targets for the time to first token that the app adds: median and 99 % quantile
MIN_THROUGHPUT = 0.95  # target for the app's share of plain vLLM's throughput
SWAPS = Size(full=5, quick=2)  # with one swap, its two latest requests alone would set the 99 % quantile
STREAMS, SECONDS_BEFORE, SECONDS_AFTER, MAX_SECONDS = 8, 6.0, 4.0, 60.0
MAX_P99_RATIO = 1.5


class CpuTime:
    """A context manager that adds up the CPU seconds of the processes that listen on the given ports.

    `seconds` holds them by name; child processes, such as vLLM's engine core, count as `NAME_core`.
    """

    def __init__(self, ports: Mapping[str, int | None]) -> None:
        listening = {c.laddr.port: c.pid for c in psutil.net_connections("tcp") if c.status == psutil.CONN_LISTEN}
        self._processes: dict[str, list[psutil.Process]] = {}
        for name, port in ports.items():
            server = psutil.Process(listening[port])
            self._processes[name] = [server]
            if children := server.children(recursive=True):
                self._processes[f"{name}_core"] = children
        self.seconds = dict.fromkeys(self._processes, 0.0)

    def __enter__(self) -> None:
        self._before = self._now()

    def __exit__(self, *error: object) -> None:
        for name, now in self._now().items():
            self.seconds[name] += now - self._before[name]

    def _now(self) -> dict[str, float]:
        return {name: sum(sum(p.cpu_times()[:2]) for p in processes) for name, processes in self._processes.items()}


class Side:
    """One server's results at one concurrency."""

    def __init__(self, url: str, ports: Mapping[str, int | None]) -> None:
        self._url, self.cpu = url, CpuTime(ports)
        self.results: list[StreamResult] = []
        self.block_p99: list[float] = []
        self.block_throughput: list[float] = []

    async def run_block(self, http: aiohttp.ClientSession, bodies: Sequence[dict[str, Any]], concurrency: int) -> None:
        """Stream one block of completions. Raises RuntimeError if a request failed."""
        with self.cpu:
            results, seconds = await stream_completions(http, self._url, bodies, concurrency)
        self.results += results
        self.block_p99.append(first_token_percentiles(results)[1])
        self.block_throughput.append(sum(result.tokens for result in results) / seconds)

    @property
    def tokens(self) -> int:
        """Sampled tokens of all blocks."""
        return sum(result.tokens for result in self.results)


async def run(settings: Settings, bench: Bench) -> AsyncIterator[Figure]:
    """Compare the app with plain vLLM, then measure swaps under load.

    Raises RuntimeError where a server does not start, or requests fail.
    """
    blocks, requests = BLOCKS.of(bench.quick), REQUESTS.of(bench.quick)
    pairs = prompts(settings, sum(blocks[concurrency] * requests[concurrency] for concurrency in blocks))
    developers.simulation_token(settings)  # raises where it is missing
    app = f"{settings.serving.completions_url}/v1/completions"
    async with session(settings.serving.simulation_token) as http:
        async with plain_vllm(settings, http) as plain:
            async for one in compare(http, settings, pairs, (app, plain), bench):
                yield one
        for one in await measure_swaps(http, settings, app, [editor_body(settings, prompt) for prompt, _ in pairs], bench):
            yield one


def prompts(settings: Settings, count: int) -> list[tuple[str, str]]:
    """Return (editor's prompt, plain text with the token ids that the app makes of it) for positions in held-out code.

    No position repeats and every run uses other ones, since the engine caches the prompts of earlier runs. Skips the few prompts
    whose text encodes to other token ids.

    Raises RuntimeError where too few prompts remain.
    """
    base = Text.of(configuration.path(settings.model.base), settings.model)
    pairs = []
    for position in positions.sample_positions(scored_sources(), count + count // PROMPTS_PER_SPARE, seed=secrets.randbits(32)):
        prefix, suffix = position.prefix[-2000:], position.suffix[:1000]
        ids = base.renderer.render(prefix, suffix)
        text = base.tokenizer.decode(ids, skip_special_tokens=False)
        if base.tokenizer.encode(text, add_special_tokens=False).ids == ids:
            pairs.append((f"{fim.PREFIX}{prefix}{fim.SUFFIX}{suffix}{fim.MIDDLE}", text))
    if len(pairs) < count:
        raise RuntimeError(f"only {len(pairs)} of {count} prompts encode to the same ids; check the tokenizer of model.base")
    return pairs[:count]


def editor_body(settings: Settings, prompt: str) -> dict[str, Any]:
    """Return the body that Continue sends."""
    return {"model": settings.model.name, "prompt": prompt, "max_tokens": settings.serving.sampling.max_tokens, "stream": True}


async def compare(
    http: aiohttp.ClientSession, settings: Settings, pairs: Sequence[tuple[str, str]], servers: tuple[str, str], bench: Bench
) -> AsyncIterator[Figure]:
    """Send the same prompts to both servers, the app and plain vLLM, in blocks."""
    app, plain = servers
    sampling, waiting = settings.serving.sampling, iter(pairs)
    plain_body = {"model": "plain", "max_tokens": sampling.max_tokens, "temperature": sampling.temperature, "stream": True}
    status = f"{settings.serving.completions_url}/admin/status"
    async with http.get(status, headers=bearer(settings.serving.admin_token)) as response:
        slots = (await response.json())["slots"]
    champion = next(slot["url"] for slot in slots if slot["role"] == "champion")
    app_ports = {"app": settings.serving.port, "engine": urlsplit(champion).port}
    for concurrency, blocks in BLOCKS.of(bench.quick).items():
        own_side, plain_side = Side(app, app_ports), Side(plain, {"plain": urlsplit(plain).port})
        with bench.part(f"{concurrency} at once, blocks", blocks, share=0.45) as part:
            for block in range(blocks):
                block_pairs = [next(waiting) for _ in range(REQUESTS.of(bench.quick)[concurrency])]
                own_bodies = [editor_body(settings, prompt) for prompt, _ in block_pairs]
                plain_bodies = [plain_body | {"prompt": text} for _, text in block_pairs]
                turns = [(own_side, own_bodies), (plain_side, plain_bodies)]
                for side, bodies in turns if block % 2 else reversed(turns):
                    await side.run_block(http, bodies, concurrency)
                part.advance()
        for one in _comparison_figures(f"{concurrency}_at_once", own_side, plain_side):
            yield one


def _comparison_figures(name: str, own: Side, plain: Side) -> list[Figure]:
    (median, p99), (plain_median, plain_p99) = (first_token_percentiles(side.results) for side in (own, plain))
    added_p99 = map(sub, own.block_p99, plain.block_p99)
    throughput = map(truediv, own.block_throughput, plain.block_throughput)
    sides = {"own": own, "plain": plain}
    return [
        figure(f"{name}.first_token.plain_median", plain_median, "ms"),
        figure(f"{name}.first_token.plain_p99", plain_p99, "ms"),
        figure(f"{name}.first_token.added_median", median - plain_median, "ms", most=MAX_ADDED_MS[0]),
        *median_figures(f"{name}.first_token.added_p99", added_p99, "ms", most=MAX_ADDED_MS[1]),
        figure(f"{name}.first_token.added_p99_of_all", p99 - plain_p99, "ms"),
        figure(f"{name}.plain_tokens_per_second", statistics.fmean(plain.block_throughput), "1/s"),
        *median_figures(f"{name}.throughput_of_plain", throughput, "ratio", least=MIN_THROUGHPUT),
        *(figure(f"{name}.{key}_tokens_a_completion", side.tokens / len(side.results), "") for key, side in sides.items()),
        *(
            figure(f"{name}.cpu_a_token.{process}", 1e3 * seconds / side.tokens, "ms")
            for side in (own, plain)
            for process, seconds in side.cpu.seconds.items()
        ),
    ]


def median_figures(name: str, block_values: Iterable[float], unit: str, **target: float) -> list[Figure]:
    """Return the median of the blocks' values, with the target, and the bounds of its 95 % interval by the sign test."""
    values = sorted(block_values)
    tail = int(binom.ppf(0.025, len(values), 0.5))
    assert tail, f"{len(values)} blocks: bounds of a median need at least 6"
    ends = (("low", values[tail - 1]), ("high", values[-tail]))
    found = figure(name, statistics.median(values), unit, **target)
    return [found, *(figure(f"{name}.{end}", value, unit) for end, value in ends)]


async def measure_swaps(
    http: aiohttp.ClientSession, settings: Settings, url: str, bodies: Sequence[dict[str, Any]], bench: Bench
) -> list[Figure]:
    """Register the champion's weights as a new version SWAPS times, each time move its alias there while STREAMS streams run.

    The versions stay in the registry: their requests are in the log, and a cycle refuses a window with many of unknown versions.

    Raises RuntimeError where no version is champion, or a version is not served in time.
    """
    registry = Registry.connect(settings.registry)
    champion = registry.aliases().champion
    if champion is None:
        raise RuntimeError("registry: no version is champion, so there is nothing to swap; run `tabloop status`")
    source, stop, results = registry.version(champion).source, asyncio.Event(), list[StreamResult]()
    swaps: list[tuple[str, float, float]] = []  # version, begin, end

    async def stream(offset: int) -> None:
        for body in islice(cycle(bodies), offset, None, STREAMS):
            if stop.is_set():
                return
            results.append(await stream_completion(http, url, body))

    def has_answered(version: str) -> bool:
        return any(result.version == version for result in results)

    async def is_back() -> bool:
        return (await stream_completion(http, url, bodies[0])).version == champion

    streams = [asyncio.create_task(stream(number)) for number in range(STREAMS)]
    try:
        with bench.part("swaps", SWAPS.of(bench.quick), share=0.1) as part:
            for _ in range(SWAPS.of(bench.quick)):
                await asyncio.sleep(SECONDS_BEFORE)
                version = registry.create_version(source, {"bench": "swap"}, "The champion once more, to measure a swap.").version
                moved = time.monotonic()
                registry.set_alias(CHAMPION, version)
                late = f"serving: version {version}, to which the alias moved, is not served"
                await until(partial(has_answered, version), MAX_SECONDS, late, every=0.02)
                await asyncio.sleep(SECONDS_AFTER)
                swaps.append((version, moved, time.monotonic()))
                part.advance()
    finally:
        stop.set()
        await asyncio.gather(*streams)
        registry.set_alias(CHAMPION, champion)
    await until(is_back, MAX_SECONDS, f"serving: version {champion} is not served again", every=0.5)
    return _swap_figures(results, swaps)


def _swap_figures(results: Sequence[StreamResult], swaps: Sequence[tuple[str, float, float]]) -> list[Figure]:
    during = [result for result in results if any(begin <= result.sent_at < end for _, begin, end in swaps)]
    before = [result for result in results if not any(begin <= result.sent_at < end for _, begin, end in swaps)]
    p99, p99_during = (first_token_percentiles(part)[1] for part in (before, during))
    delays = [min(r.sent_at + r.first_ms / 1e3 for r in results if r.version == version) - moved for version, moved, _ in swaps]
    return [
        figure("swap.failed_requests", sum(bool(result.error) for result in results), "", most=0),
        figure("swap.first_token_p99_before", p99, "ms"),
        figure("swap.first_token_p99_ratio", p99_during / p99, "ratio", most=MAX_P99_RATIO),
        figure("swap.alias_to_first_token", statistics.median(delays), "s"),
        figure("swap.alias_to_first_token.longest", max(delays), "s"),
    ]
