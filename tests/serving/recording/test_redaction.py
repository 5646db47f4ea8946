"""Secrets in code do not reach the disk, and code without secrets is recorded unchanged."""

import asyncio
import re
import threading
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from detect_secrets.plugins.base import RegexBasedDetector
from detect_secrets.plugins.keyword import DENYLIST
from detect_secrets.settings import get_settings
from hypothesis import assume, given
from hypothesis import strategies as st

from infra.records import Feedback
from infra.redaction import FEEDBACK_TEXTS, KEYWORD, REDACTED, Redactor
from serving.engine.protocol import Delta, EngineRequest
from serving.metrics import Metrics
from serving.recording.recorder import Recorder
from serving.recording.spool import Spool
from tests.serving.fakes import House
from tests.tasks.made import completion, feedback

BODY = [f"{'Ab3/' * 16}"[:-1] + letter for letter in "abcdef"]
KEY = ["-----BEGIN RSA PRIVATE KEY-----", *BODY, "-----END RSA PRIVATE KEY-----"]
SECRETS = [
    ('aws = "AKIA', "IOSFODNN7EXAMPLE", '"'),
    ("# old key: ghp_", "a1b2c3d4e5f6a1b2c3d4e5f6a1b2c3d4e5f6", ""),
    ('password = "', "correct horse battery", '"'),
    ("engine = connect('", "postgresql://ada:l0velace@db.example/x", "')"),
    ('salt = "', "7d9fb36e1c2a48500dcab6ff", '"'),
    ('seed = "', "qZ8vX2mK5tR7wB3nJ6hD9cF4gL1pS0aYuTe", '"'),
]
"""Split, so that a scanner of this repository finds no secret."""


@pytest.fixture(scope="module")
def redactor() -> Redactor:
    return Redactor()


@pytest.mark.parametrize(("before", "secret", "after"), SECRETS)
def test_a_secret_is_taken_out_and_the_rest_of_its_line_stays(redactor: Redactor, before: str, secret: str, after: str) -> None:
    redacted = redactor.text(f"x = 1\n{before}{secret}{after}\ny = 2")
    assert secret not in redacted and REDACTED in redacted
    assert redacted.startswith("x = 1\n") and redacted.endswith(after + "\ny = 2")


@given(begin=st.integers(0, 7), end=st.integers(0, 8))
def test_of_a_private_key_nothing_stays_wherever_the_text_was_cut(begin: int, end: int) -> None:
    redacted = REDACTOR.text("\n".join(["x = 1", *KEY[begin:end], "y = 2" if end == 8 else ""]))
    assert not any(line in redacted for line in BODY)
    assert "y = 2" in redacted or end < 8


REDACTOR = Redactor()


@given(
    secret=st.sampled_from([*SECRETS, ("", "\n".join(KEY), "")]),
    first=st.integers(0, 500),
    second=st.integers(0, 500),
    between=st.booleans(),
    in_feedback=st.booleans(),
)
def test_of_a_secret_across_the_cursor_no_part_stays(
    secret: tuple[str, str, str], first: int, second: int, between: bool, in_feedback: bool
) -> None:
    """The completion is the middle of the secret, or other code in the middle of it."""
    before, hidden, after = secret
    line = f"x = 1\n{before}{hidden}{after}\ny = 2"
    begin = len("x = 1\n" + before)
    cuts = sorted(begin + cut % (len(hidden) + 1) for cut in (first, first if between else second))
    prefix, middle, suffix = line[: cuts[0]], "f(x)" if between else line[cuts[0] : cuts[1]], line[cuts[1] :]
    if in_feedback:
        event = REDACTOR.feedback(feedback(prefix=prefix, shown=middle, suffix=suffix))
        texts = (event.prefix, event.shown, event.suffix)
    else:
        row = completion(prefix=prefix, text=middle, suffix=suffix)
        redacted = REDACTOR.completion(row)
        assert redacted.redacted and redacted.token_ids == redacted.prompt_token_ids == ()
        texts = (redacted.prefix, redacted.text, redacted.suffix)
    pieces = {hidden[at : at + 4] for at in range(len(hidden) - 3)}
    assert not [piece for piece in pieces if any(piece in text for text in texts)], texts
    assert "\n" in hidden or (texts[0].startswith("x = 1\n") and texts[2].endswith("\ny = 2"))


def test_what_is_remembered_of_lines_is_bounded_by_their_length() -> None:
    redactor = Redactor()
    tracemalloc.start()
    for number in range(60):
        redactor.text("x " * 25_000 + str(number))
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size < 1 << 20


def sources() -> Iterator[str]:
    for package in ("flows", "tasks", "serving", "evals", "infra"):
        for file in Path(package).rglob("*.py"):
            yield file.read_text()


def test_code_without_secrets_stays_as_it_is(redactor: Redactor) -> None:
    read = list(sources())
    lines = [line for text in read for line in text.split("\n")]
    changed = [line for line in lines if redactor.text(line) != line]
    assert len(read) > 50 and len(changed) < len(lines) / 1000, changed


def test_a_line_longer_than_any_person_writes_is_looked_at_too(redactor: Redactor) -> None:
    assert redactor.text("x " * 2500) == "x " * 2500
    for before in range(1980, 2001):  # across the end of a part
        assert redactor.text("x" + " " * before + 'password = "correct horse battery" ' + "x " * 900) == REDACTED


def test_a_short_token_is_found() -> None:
    assert REDACTOR.text('token = "xoxA-0-0"') == 'token = "[redacted]"'


def test_a_token_whose_pattern_has_an_empty_group_is_found() -> None:
    token = "glcbt-" + "0" * 20
    assert REDACTOR.text(f'token = "{token}"') == 'token = "[redacted]"'


@given(st.data())
def test_all_that_a_detector_knows_is_found_in_a_line_of_code(data: st.DataObject) -> None:
    """The quick filter before the detectors misses nothing."""
    detector = data.draw(st.sampled_from([d for d in REDACTOR._detectors if isinstance(d, RegexBasedDetector)]))
    pattern = data.draw(st.sampled_from(list(detector.denylist)))
    secret = data.draw(st.from_regex(pattern, alphabet=st.characters(codec="ascii")))
    assume("\n" not in secret and len(secret) < 1000 and list(detector.analyze_string(secret)))
    assert REDACTED in REDACTOR.text(secret)


def test_no_detector_asks_a_provider_whether_a_secret_is_real() -> None:
    assert not any("verification" in name for name in get_settings().filters)


class Watched(Redactor):
    """Counts its scans, and notes the threads that scan feedback."""

    def __init__(self) -> None:
        super().__init__()
        self.scans = 0
        self.threads: list[threading.Thread] = []

    def around(self, prefix: str, middle: str, suffix: str) -> tuple[str, str, str]:
        self.scans += 1
        return super().around(prefix, middle, suffix)

    def feedback(self, row: Feedback) -> Feedback:
        self.threads.append(threading.current_thread())
        return super().feedback(row)


@pytest.mark.parametrize("name", FEEDBACK_TEXTS)
async def test_much_text_in_whichever_field_keeps_no_other_request_waiting(tmp_path: Path, name: str) -> None:
    watched, spool = Watched(), Spool(tmp_path, 1 << 30)
    recorder = Recorder(spool, Metrics(), watched)
    bare = feedback(**dict.fromkeys(FEEDBACK_TEXTS, ""))
    for text in ("x", "x" * 9_000):
        await recorder.record_feedback(bare.model_copy(update={name: text}))
    few, much = watched.threads
    assert few is threading.main_thread() and much is not few
    await spool.close()


async def test_the_client_is_served_and_the_spool_never_sees_the_secret(house: House) -> None:
    before, secret, after = SECRETS[2]
    prompt = f"<|fim_prefix|>{before}{secret}{after}\nx = <|fim_suffix|>\n<|fim_middle|>"
    answer = await house.client.post(house.urls[0] + "/v1/completions", json={"prompt": prompt, "stop": []})
    text = answer.json()["choices"][0]["text"]
    assert text
    data = {"completionId": "c1", "accepted": True, "prompt": prompt, "completion": text}
    assert (await house.send_feedback("/v1/continue/events", {"name": "autocomplete", "data": data})).status_code == 200
    (row,) = house.rows("completions")
    assert row.redacted and row.prefix == f"{before}{REDACTED}{after}\nx = " and row.text == text
    assert row.prompt_token_ids == row.token_ids == row.logprobs == row.token_ends == ()
    (event,) = house.rows("feedback")
    assert event.prefix == row.prefix
    spooled = [file.read_text() for file in (house.directory / "spool").rglob("*.jsonl")]
    assert spooled and not any(secret in line for line in spooled)
    assert "tabloop_redacted_total 1.0" in house.metrics_text().decode()


async def test_lines_around_a_cursor_are_looked_through_while_the_engine_works(house: House) -> None:
    prefix, suffix = "".join(f"seen_{n} = token({n})\n" for n in range(40)), "\nlast_one = token()\n"
    house.recorder.scan_ahead(prefix, suffix)
    await asyncio.sleep(0)
    remembered = house.recorder._redactor._remembered
    before = remembered.cache_info().misses
    assert before > 40
    await house.recorder.record_completion(completion(prefix=prefix, suffix=suffix, text="a new line"))
    assert remembered.cache_info().misses - before <= 2, "the line at the cursor, with and without what was put there"


async def test_of_a_burst_one_text_is_looked_through_in_a_turn_of_the_loop(tmp_path: Path) -> None:
    watched, spool = Watched(), Spool(tmp_path, 1 << 30)
    recorder, looked = Recorder(spool, Metrics(), watched), []
    for number in range(3):
        recorder.scan_ahead(f"line_{number} = 1\n", "")
    for _ in range(5):
        looked.append(watched.scans)
        await asyncio.sleep(0)
    assert looked == [0, 1, 2, 3, 3]
    await spool.close()


async def test_nothing_is_looked_through_before_the_first_token(house: House) -> None:
    engine, remembered = house.engines[0], house.recorder._redactor._remembered
    sampled, arrived, first = engine.generate, asyncio.Event(), asyncio.Event()

    async def slow(request: EngineRequest) -> AsyncIterator[Delta]:
        arrived.set()
        await first.wait()
        async for delta in sampled(request):
            yield delta

    engine.generate = slow
    before = remembered.cache_info().misses
    body = {"prompt": "never_seen_before = 1\n", "stream": True}
    answer = asyncio.create_task(house.client.post(house.urls[0] + "/v1/completions", json=body))
    await arrived.wait()
    await asyncio.sleep(0.05)
    assert remembered.cache_info().misses == before
    first.set()
    assert (await answer).status_code == 200
    assert remembered.cache_info().misses > before


@pytest.mark.parametrize("word", DENYLIST)
@given(data=st.data())
def test_no_name_of_a_password_is_passed_over(word: str, data: st.DataObject) -> None:
    assert KEYWORD.search(data.draw(st.from_regex(re.compile(word, re.IGNORECASE), fullmatch=True)))
