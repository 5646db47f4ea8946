"""Redaction: cost of an ordinary request, delay beside hostile ones, kinds of secrets found, ordinary code that loses anything.

Ordinary code is the standard library and the installed packages without their tests, cut at random places as editors send it. The
delay is that of the stack's answer to an innocent request while others send texts of a megabyte.
"""

import asyncio
import json
import random
import re
import statistics
import subprocess
import sys
import sysconfig
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import httpx

from evals.bench.figures import Bench, Figure, Size, figure
from evals.bench.redaction import project_files
from evals.bench.redaction.made_up_secrets import cases, draw, private_key
from infra.redaction.redactor import REDACTED, Redactor
from infra.redaction.texts import Kept, Texts
from infra.settings import ROOT, Settings

REQUESTS = Size(full=4_000, quick=400)
PREFIX, SUFFIX = 3_000, 1_000
"""Most characters before and after the cursor that editors send."""
ENDINGS = (".py", ".pyi", ".js", ".ts", ".h", ".c", ".cpp", ".sh", ".md", ".toml", ".yaml", ".yml", ".cfg", ".ini")
WITH_SECRETS = re.compile(r"/(tests?|testing|examples?|idlelib)/|/test_|_test\.|conftest|detect_secrets|/ssl/")
"""Files that hold made-up secrets on purpose."""
PROJECT_FILES = (("kind_told", True, 2.0), ("kind_not_told", False, 3.5))
MEGABYTE = 900_000
SEEDS = Size(full=3, quick=1)
SECONDS, AT_ONCE, LEAST_ANSWERS = Size(full=5.0, quick=1.0), 4, 40


def ordinary_requests(folders: Sequence[Path], count: int, rng: random.Random) -> Iterator[Texts]:
    """Yield requests at random places of random files; every second one names its kind of file."""
    files = sorted(path for folder in folders for path in folder.rglob("*.*") if path.name.endswith(ENDINGS))
    files = [path for path in files if not WITH_SECRETS.search(str(path))]
    made = 0
    while made < count:
        path = rng.choice(files)
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        if text.strip():
            cursor = rng.randrange(len(text))
            language = path.suffix[1:] if made % 2 else ""
            yield Texts(text[max(0, cursor - PREFIX) : cursor], (), text[cursor : cursor + SUFFIX], language)
            made += 1


def changed(redactor: Redactor, request: Texts) -> list[str]:
    """Return the lines of a request that lose anything."""
    redacted = redactor.redact(request)
    pairs = ((request.prefix, redacted.prefix), (request.suffix, redacted.suffix))
    return [line for before, after in pairs for line in after.split("\n") if before != after and REDACTED in line]


def hostile_texts(rng: random.Random) -> dict[str, str]:
    """Return texts of a megabyte on which a search for secrets might take long."""
    token, key = draw("ghp_{a36}", rng), private_key(rng)
    parts = {
        "blanks": " ",
        "a password and blanks": "password" + " " * 600 + "=",
        "made-up secrets": f'password = "{draw("{a12}", rng)}" # {token}\n',
        "private keys": key + "\n",
        "starts of web tokens": "eyJ",
        "quotes after names": 'secret="',
    }
    return {name: (part * (MEGABYTE // len(part) + 1))[:MEGABYTE] for name, part in parts.items()}


def missed(redactor: Redactor, seeds: int) -> tuple[set[str], set[str]]:
    """Return the kinds that are tried, and those that stay in some form."""
    tried, found_not = set(), set()
    for seed in range(seeds):
        for kind, _, ending, text, secret in cases(random.Random(seed)):
            tried.add(kind)
            for language in (ending, ""):
                if secret[:8] in redactor.text(text, language) or secret[-8:] in redactor.text(text, language):
                    found_not.add(kind)
    return tried, found_not


async def run(settings: Settings, bench: Bench) -> AsyncIterator[Figure]:
    """Measure the search for secrets, then the app's answers beside hostile requests."""
    folders = [Path(sysconfig.get_paths()[name]) for name in ("stdlib", "purelib")]
    seeds = SEEDS.of(bench.quick)
    for one in _ordinary(folders, bench):
        yield one
    for name, measure in {"kinds of secrets": lambda: _kinds(seeds), "megabytes": _growth, "queue": _queue}.items():
        with bench.part(name, share=0.2):
            found = await asyncio.to_thread(measure)
        for one in found:
            yield one
    async for one in _delays(settings, bench):
        yield one


def _ordinary(folders: Sequence[Path], bench: Bench) -> list[Figure]:
    redactor, seconds, lost, count = Redactor(), [], 0, 0
    with bench.part("ordinary requests", REQUESTS.of(bench.quick), share=0.2) as part:
        for request in ordinary_requests(folders, REQUESTS.of(bench.quick), random.Random(0)):
            cut = Kept().cut(request)
            began = time.process_time()
            redactor.redact(cut)
            seconds.append(time.process_time() - began)
            lost += bool(changed(redactor, request))
            count += 1
            part.advance()
    return [
        figure("ordinary.median", statistics.median(seconds) * 1e3, "ms", most=1.0),
        figure("ordinary.p99", statistics.quantiles(seconds, n=100)[98] * 1e3, "ms"),
        figure("ordinary.requests_that_lose_anything", 100 * lost / count, "%", most=0.5),
    ]


def _kinds(seeds: int) -> list[Figure]:
    tried, not_found = missed(Redactor(), seeds)
    figures = [figure("kinds.found", len(tried - not_found), "", least=80), figure("kinds.missed", len(not_found), "", most=0)]
    return [*figures, *(_in_project_files(name, seeds, named=named, most=most) for name, named, most in PROJECT_FILES)]


def _in_project_files(name: str, seeds: int, *, named: bool, most: float) -> Figure:
    redactor = Redactor()
    counts = [project_files.missed(redactor, random.Random(seed), named=named) for seed in range(seeds)]
    staying = sum(len(secrets) for _, files in counts for secrets in files.values())
    return figure(f"project_files.{name}", 100 * staying / sum(tried for tried, _ in counts), "% of the secrets stay", most=most)


def _growth() -> list[Figure]:
    """Return the time of a megabyte, without the cut to what is kept, and how it grows from a tenth of it."""
    redactor, figures = Redactor(), []
    for name, text in hostile_texts(random.Random(0)).items():
        short, long = (_cpu_seconds(redactor, text[:size]) for size in (MEGABYTE // 10, MEGABYTE))
        label = name.replace(" ", "_").replace("-", "_")
        figures.append(figure(f"megabyte.{label}", long, "s"))
        figures.append(figure(f"megabyte.{label}.per_tenth", long / max(short, 1e-4), "", most=20))
    return figures


def _cpu_seconds(redactor: Redactor, text: str) -> float:
    began = time.process_time()
    redactor.text(text)
    return time.process_time() - began


def _queue() -> list[Figure]:
    """Return for how long a usual text waits for others' beside eight hostile clients, by CPU time."""
    command = (sys.executable, "-m", "evals.bench.redaction.queue")
    waited = json.loads(subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout)
    return [
        figure("queue.delay.median_cpu", statistics.median(waited), "ms", most=20.0),
        figure("queue.delay.p95_cpu", statistics.quantiles(waited, n=20)[18], "ms"),
    ]


async def _delays(settings: Settings, bench: Bench) -> AsyncIterator[Figure]:
    """Yield by how much hostile requests, AT_ONCE at a time, delay an innocent one (95th percentile)."""
    serving, seconds = settings.serving, SECONDS.of(bench.quick)
    headers = {"Authorization": f"Bearer {serving.token.get_secret_value()}"} if serving.token else {}
    address = f"http://{serving.host}:{serving.feedback_port}"
    async with httpx.AsyncClient(base_url=address, headers=headers, timeout=60) as client:
        quiet = await _answer_seconds(client, asyncio.create_task(asyncio.sleep(seconds)))
        yield figure("answer.quiet", quiet * 1e3, "ms")
        for name, text in hostile_texts(random.Random(0)).items():
            with bench.part(f"answers beside {name}", share=0.02):
                beside = await _answer_seconds(client, asyncio.create_task(_attack(client, text, seconds)))
            label = name.replace(" ", "_").replace("-", "_")
            yield figure(f"answer.delay.{label}", (beside - quiet) * 1e3, "ms", most=20.0)


async def _answer_seconds(client: httpx.AsyncClient, until: "asyncio.Task[None]") -> float:
    """Return the 95th percentile of the seconds of an answer that waits for nothing but the event loop, until a task ends."""
    seconds: list[float] = []
    while not until.done() or len(seconds) < LEAST_ANSWERS:
        began = time.perf_counter()
        (await client.get("/health")).raise_for_status()
        seconds.append(time.perf_counter() - began)
        await asyncio.sleep(0.01)
    await until
    return statistics.quantiles(seconds, n=20)[18]


async def _attack(client: httpx.AsyncClient, text: str, seconds: float) -> None:
    """Send events with a megabyte in their prefix, AT_ONCE at a time, for some seconds."""
    event = {"name": "autocomplete", "data": {"completionId": "bench", "accepted": True, "prefix": text, "completion": "x"}}
    body, until = json.dumps(event).encode(), time.monotonic() + seconds

    async def send() -> None:
        while time.monotonic() < until:
            await client.post("/v1/continue/events", content=body, headers={"Content-Type": "application/json"})

    await asyncio.gather(*(send() for _ in range(AT_ONCE)))
