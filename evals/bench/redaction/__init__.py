"""Redaction: cost of a request, wait of a long text beside hostile ones, secrets that stay, ordinary code that is lost.

Ordinary code is the standard library and the installed packages without their tests, cut at random places as editors send it. A
usual long text waits in the queue beside HOSTILE clients with a credential each, who send texts of made-up secrets, of the most
characters that are kept, without a pause; their search runs in processes of its own, as in the app, and nothing is sent over the
network. `tabloop bench hostile` measures what the app's other requests wait beside such texts.
"""

import asyncio
import random
import statistics
import string
import sysconfig
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from evals.bench.figures import Bench, Figure, Size, figure
from evals.bench.redaction.corpus import ordinary_requests, project_files
from evals.bench.rigs.servers import in_new_process
from infra.model.language import language
from infra.redaction.redactor import REDACTED, Redactor
from infra.redaction.texts import Kept, Texts
from infra.settings import Settings
from serving.recording.long_texts import LongTexts

REQUESTS = Size(full=4_000, quick=400)
PROJECT_FILES = (("kind_told", True, 2.0), ("kind_not_told", False, 3.5))
PIECE = 7
"""Neighbouring characters of a secret that must not stay: fewer mean nothing and occur in other text by chance."""
SEEDS = Size(full=3, quick=1)
HOSTILE, ANSWERS = 8, 100
CHARACTERS = 30_000  # more than is kept
PAUSE = 0.1  # seconds between two usual texts


def run(settings: Settings, bench: Bench) -> Iterator[Figure]:
    """Measure the search for secrets, then the queue of long texts."""
    yield from _ordinary(bench)
    with bench.part("project files", share=0.2):
        yield from _project_files(SEEDS.of(bench.quick))
    with bench.part("queue", share=0.4):
        waited = in_new_process(usual_waits)
    yield figure("queue.delay.median_cpu", statistics.median(waited) * 1e3, "ms", most=20.0)
    yield figure("queue.delay.p95_cpu", statistics.quantiles(waited, n=20)[18] * 1e3, "ms")


def _ordinary(bench: Bench) -> Iterator[Figure]:
    redactor, seconds, lost, count = Redactor(), [], 0, REQUESTS.of(bench.quick)
    folders = [Path(sysconfig.get_paths()[name]) for name in ("stdlib", "purelib")]
    with bench.part("ordinary requests", count, share=0.2) as part:
        for request in ordinary_requests(folders, count, random.Random(0)):
            cut = Kept().cut(request)
            began = time.process_time()
            redactor.redact(cut)
            seconds.append(time.process_time() - began)
            lost += bool(changed(redactor, request))
            part.advance()
    yield figure("ordinary.median", statistics.median(seconds) * 1e3, "ms", most=1.0)
    yield figure("ordinary.p99", statistics.quantiles(seconds, n=100)[98] * 1e3, "ms")
    yield figure("ordinary.requests_that_lose_anything", 100 * lost / count, "%", most=0.5)


def changed(redactor: Redactor, request: Texts) -> list[str]:
    """Return the lines of a request that lose anything."""
    redacted = redactor.redact(request)
    pairs = ((request.prefix, redacted.prefix), (request.suffix, redacted.suffix))
    return [line for before, after in pairs for line in after.split("\n") if before != after and REDACTED in line]


def _project_files(seeds: int) -> Iterator[Figure]:
    """Yield the share of project files' secrets of which a part stays."""
    redactor = Redactor()
    for name, named, most in PROJECT_FILES:
        counts = [missed_in_files(redactor, random.Random(seed), named=named) for seed in range(seeds)]
        staying = sum(len(secrets) for _, files in counts for secrets in files.values())
        share = 100 * staying / sum(count for count, _ in counts)
        yield figure(f"project_files.{name}", share, "% of the secrets stay", most=most)


def missed_in_files(redactor: Redactor, rng: random.Random, *, named: bool) -> tuple[int, dict[str, list[str]]]:
    """Return the number of secrets, and by file those of which a part stays; `named`: the client names the kind of file."""
    tried, missed = 0, dict[str, list[str]]()
    for file in project_files(rng):
        redacted = redactor.text(file.text, language(file.path) if named else "")
        tried += len(file.secrets)
        if staying := [secret for secret in file.secrets if stays(secret, redacted)]:
            missed[file.path] = staying
    return tried, missed


def stays(secret: str, text: str) -> bool:
    """Return whether PIECE neighbouring characters of a secret are in a text; fewer only of a shorter secret."""
    size = min(len(secret), PIECE)
    return any(secret[at : at + size] in text for at in range(len(secret) - size + 1))


def usual_waits() -> list[float]:
    """Return the CPU seconds of others' texts for which each usual text waits in the app's queue."""
    return asyncio.run(waits(ANSWERS, lambda waited: LongTexts(waited=waited)))


async def waits(answers: int, make: Callable[[Callable[[str, float], None]], LongTexts]) -> list[float]:
    """Return the CPU seconds of others' texts for which each usual text waited; `make` returns the queue, with this callback."""
    waited: list[float] = []
    long = make(lambda who, seconds: waited.append(seconds) if who == "usual" else None)
    hostile, usual = texts_of_queue()
    done = asyncio.Event()

    async def attack(who: str) -> None:
        while not done.is_set():
            await long.redact(hostile, who)

    attacks = [asyncio.create_task(attack(f"hostile {number}")) for number in range(HOSTILE)]
    for _ in range(answers):
        await asyncio.sleep(PAUSE)
        await long.redact(usual, "usual")
    done.set()
    await asyncio.gather(*attacks)
    await long.close()
    return waited


def texts_of_queue() -> tuple[Texts, Texts]:
    """Return texts full of made-up secrets, as long as they are kept, and code longer than the event loop's process searches."""
    keys, rng, letters = random.Random(0), random.Random(0), string.ascii_letters + string.digits
    pairs = [["".join(keys.choices(letters, k=count)) for count in (12, 36)] for _ in range(CHARACTERS // 70)]
    secrets = "".join(f'password = "{password}" # ghp_{token}\n' for password, token in pairs)
    code = "".join(f"    total_{n} = add(items[{rng.randrange(99)}], offset_{n})\n" for n in range(200))
    return Kept().cut(Texts(secrets, (secrets[:4_000],), secrets)), Texts(code[:8_000], ("pass",), code[:1_000], "py")
