"""Long texts take turns by credential, and a credential cannot fill the queue of others."""

import asyncio
import random
from pathlib import Path

import pytest

from evals.bench.redaction import waits
from evals.bench.redaction.corpus import draw, hostile_texts
from infra.redaction.redactor import Redactor
from infra.redaction.texts import Kept, Texts
from serving.metrics import Metrics
from serving.recording.event_redactor import EventRedactor
from serving.recording.long_texts import LongTexts, TooManyTexts
from serving.recording.opt_outs import OptOuts
from serving.recording.recorder import Recorder
from serving.recording.spool import Spool
from serving.recording.turns import COSTLY, COSTLY_FOR, HALF_LIFE, Turns
from tests.tasks.made import completion, feedback

TOKEN = draw("ghp_{a36}", random.Random(2))
LONG = "x = 1\n" * 1_000


def order(turns: Turns[str], now: float, *, costly: bool = False) -> list[str]:
    taken = []
    while waiting := turns.take(now, costly=costly):
        taken.append(waiting.job)
    return taken


def test_who_used_the_least_comes_first_and_of_their_texts_the_shortest() -> None:
    turns = Turns[str](8)
    turns.used("busy", 0.9 * COSTLY, 0.0)
    for who, characters in (("busy", 10), ("new", 900), ("new", 20), ("busy", 5)):
        turns.add(who, characters, f"{who} {characters}")
    assert order(turns, 0.0) == ["new 20", "new 900", "busy 5", "busy 10"]


def test_time_is_forgotten_by_halves() -> None:
    turns = Turns[str](8)
    turns.used("earlier", 0.9 * COSTLY, 0.0)
    turns.used("later", 0.6 * COSTLY, HALF_LIFE)
    for who in ("later", "earlier"):
        turns.add(who, 1, who)
    assert order(turns, HALF_LIFE) == ["earlier", "later"]


def test_a_costly_credential_leaves_the_lane_of_others_for_a_while() -> None:
    turns = Turns[str](8)
    turns.add("costly", 1, "waits already")
    turns.used("costly", COSTLY * 1.1, 0.0)
    turns.used("many", COSTLY * 0.9, 0.0)
    turns.used("many", COSTLY * 0.9, 0.0)
    turns.add("many", 1, "small texts")
    assert order(turns, 1.0) == ["small texts"]
    assert order(turns, 1.0, costly=True) == ["waits already"]
    assert turns.is_costly("costly", COSTLY_FOR - 1) and not turns.is_costly("costly", COSTLY_FOR + 1)


def test_the_texts_of_one_credential_are_bounded_and_no_others() -> None:
    turns = Turns[str](2)
    assert [turns.add("a", 1, "x") for _ in range(3)] == [True, True, False]
    assert turns.add("b", 1, "y")
    order(turns, 0.0)
    assert turns.add("a", 1, "x")


def test_credentials_without_recent_time_are_not_remembered() -> None:
    turns = Turns[str](2)
    for number in range(500):
        turns.used(f"c{number}", 0.001, number * HALF_LIFE)
    assert len(turns._accounts) < 5


async def test_beyond_the_bound_a_completion_has_no_text_and_feedback_is_refused(tmp_path: Path) -> None:
    metrics, spool = Metrics(), Spool(tmp_path / "spool", 1 << 30)
    long = LongTexts(most_waiting=1)
    recorder = Recorder(spool, metrics, EventRedactor(Redactor(), long, Kept()), OptOuts(b"key", tmp_path / "o.jsonl"))
    rows = [completion(f"c{number}", prefix=LONG + f'entry = "{TOKEN}"\n', credential="one") for number in range(4)]
    recorded = [asyncio.create_task(recorder.record_completion(row)) for row in rows]
    other = asyncio.create_task(recorder.record_completion(completion("d", prefix=LONG, credential="other")))
    while not long.lanes[False].serving:
        await asyncio.sleep(0)
    with pytest.raises(TooManyTexts, match="send fewer"):
        await recorder.record_feedback(feedback("f", prefix=LONG, credential="one"))
    await asyncio.gather(*recorded, other)
    await recorder.settle()
    await spool.close()
    lines = "".join(file.read_text() for file in spool.directory.rglob("*.jsonl")).splitlines()
    without = [line for line in lines if '"prefix":""' in line]
    assert len(lines) == 5 and 2 <= len(without) <= 3 and not any(TOKEN in line for line in lines)
    assert all('"redacted":true' in line and '"token_ids":[]' in line for line in without)
    assert metrics.registry.get_sample_value("tabloop_texts_dropped_total") == len(without)


async def test_a_cancelled_request_does_not_shift_the_answers_of_others() -> None:
    """Its answer was still in the process's output, and the next request took it for its own."""
    long = LongTexts()
    await long.start()
    hostile = hostile_texts(random.Random(0))["made-up secrets"][:20_000]
    first = asyncio.create_task(long.redact(Texts(hostile, (), ""), "a"))
    await asyncio.sleep(0.02)
    first.cancel()
    assert (await long.redact(Texts(LONG, (), "mine"), "b")).suffix == "mine"
    await long.close()


async def test_a_usual_text_hardly_waits_beside_eight_that_send_made_up_secrets() -> None:
    """Of the CPU time of others' texts: wall time would measure this machine's other work."""
    waited = await waits(40, lambda callback: LongTexts(waited=callback))
    assert len(waited) == 40
    assert sorted(waited)[len(waited) // 2] <= 0.02
