"""How long a usual long text waits beside hostile clients: python -m evals.bench.redaction.queue, a part of bench `redaction`.

HOSTILE clients with a credential each send texts of made-up secrets, of the most characters that are kept, without a pause. Their
search runs in processes of its own, as in the app, and nothing is sent over the network. Written are the CPU milliseconds of
others' texts for which each usual text waited, as a JSON list.
"""

import asyncio
import json
import random
import string
import sys
from collections.abc import Callable

from infra.redaction.texts import Kept, Texts
from serving.recording.long_texts import LongTexts

HOSTILE = 8
ANSWERS = 100
CHARACTERS = 30_000
"""More than is kept."""
PAUSE = 0.1
"""Seconds between two usual texts."""


def made_up_secrets(rng: random.Random) -> Texts:
    """Return texts full of secrets, as long as they are kept."""

    def drawn(count: int) -> str:
        return "".join(rng.choices(string.ascii_letters + string.digits, k=count))

    lines = "".join(f'password = "{drawn(12)}" # ghp_{drawn(36)}\n' for _ in range(CHARACTERS // 70))
    return Kept().cut(Texts(lines, (lines[:4_000],), lines))


def usual_code(rng: random.Random) -> Texts:
    """Return code around a cursor, longer than the event loop's process searches."""
    lines = "".join(f"    total_{n} = add(items[{rng.randrange(99)}], offset_{n})\n" for n in range(200))
    return Texts(lines[:8_000], ("pass",), lines[:1_000], "py")


async def waits(answers: int, make: Callable[[Callable[[str, float], None]], LongTexts]) -> list[float]:
    """Return the CPU seconds of others' texts for which each usual text waited; `make` returns the queue, with this callback."""
    waited: list[float] = []
    long = make(lambda who, seconds: waited.append(seconds) if who == "usual" else None)
    hostile, usual = made_up_secrets(random.Random(0)), usual_code(random.Random(0))
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


def main() -> int:
    """Measure, and print the CPU milliseconds."""
    found = asyncio.run(waits(ANSWERS, lambda waited: LongTexts(waited=waited)))
    print(json.dumps([seconds * 1e3 for seconds in found]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
