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
def test_a_secret_is_replaced_and_the_rest_of_its_line_is_kept(redactor: Redactor, before: str, secret: str, after: str) -> None:
    redacted = redactor.text(f"x = 1\n{before}{secret}{after}\ny = 2")
    assert secret not in redacted and REDACTED in redacted
    assert redacted.startswith("x = 1\n") and redacted.endswith(after + "\ny = 2")


@given(begin=st.integers(0, 7), end=st.integers(0, 8))
def test_no_line_of_a_cut_private_key_is_kept(begin: int, end: int) -> None:
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
def test_no_part_of_a_secret_across_the_cursor_is_kept(
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


def test_the_cache_of_lines_is_bounded_by_their_length() -> None:
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


def test_code_without_secrets_is_unchanged(redactor: Redactor) -> None:
    files = list(sources())
    lines = [line for text in files for line in text.split("\n")]
    changed = [line for line in lines if redactor.text(line) != line]
    assert len(files) > 50 and len(changed) < len(lines) / 1000, changed


def test_a_very_long_line_is_scanned(redactor: Redactor) -> None:
    assert redactor.text("x " * 2500) == "x " * 2500
    for before in range(1980, 2001):  # across the end of a part
        assert redactor.text("x" + " " * before + 'password = "correct horse battery" ' + "x " * 900) == REDACTED


def test_a_short_token_is_redacted() -> None:
    assert REDACTOR.text('token = "xoxA-0-0"') == 'token = "[redacted]"'


def test_a_token_whose_pattern_has_an_empty_group_is_redacted() -> None:
    token = "glcbt-" + "0" * 20
    assert REDACTOR.text(f'token = "{token}"') == 'token = "[redacted]"'


@given(st.data())
def test_every_pattern_of_a_detector_is_redacted_in_a_line_of_code(data: st.DataObject) -> None:
    """The quick filter before the detectors drops no line that they match."""
    detector = data.draw(st.sampled_from([d for d in REDACTOR._detectors if isinstance(d, RegexBasedDetector)]))
    pattern = data.draw(st.sampled_from(list(detector.denylist)))
    secret = data.draw(st.from_regex(pattern, alphabet=st.characters(codec="ascii")))
    assume("\n" not in secret and len(secret) < 1000 and list(detector.analyze_string(secret)))
    assert REDACTED in REDACTOR.text(secret)


def test_no_detector_verifies_a_secret_with_its_provider() -> None:
    assert not any("verification" in name for name in get_settings().filters)


class CountingRedactor(Redactor):
    """Counts its scans and records the threads that scan feedback."""

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
async def test_long_text_in_any_field_is_scanned_in_another_thread(tmp_path: Path, name: str) -> None:
    counting_redactor, spool = CountingRedactor(), Spool(tmp_path, 1 << 30)
    recorder = Recorder(spool, Metrics(), counting_redactor)
    empty_feedback = feedback(**dict.fromkeys(FEEDBACK_TEXTS, ""))
    for text in ("x", "x" * 9_000):
        await recorder.record_feedback(empty_feedback.model_copy(update={name: text}))
    short_text_thread, long_text_thread = counting_redactor.threads
    assert short_text_thread is threading.main_thread() and long_text_thread is not short_text_thread
    await spool.close()


async def test_a_prompt_with_a_secret_is_served_and_the_secret_is_not_spooled(house: House) -> None:
    before, secret, after = SECRETS[2]
    prompt = f"<|fim_prefix|>{before}{secret}{after}\nx = <|fim_suffix|>\n<|fim_middle|>"
    response = await house.client.post(house.urls[0] + "/v1/completions", json={"prompt": prompt, "stop": []})
    text = response.json()["choices"][0]["text"]
    assert text
    data = {"completionId": "c1", "accepted": True, "prompt": prompt, "completion": text}
    assert (await house.send_feedback("/v1/continue/events", {"name": "autocomplete", "data": data})).status_code == 200
    (row,) = house.rows("completions")
    assert row.redacted and row.prefix == f"{before}{REDACTED}{after}\nx = " and row.text == text
    assert row.prompt_token_ids == row.token_ids == row.logprobs == row.token_ends == ()
    (event,) = house.rows("feedback")
    assert event.prefix == row.prefix
    spool_texts = [file.read_text() for file in (house.directory / "spool").rglob("*.jsonl")]
    assert spool_texts and not any(secret in line for line in spool_texts)
    assert "tabloop_redacted_total 1.0" in house.metrics_text().decode()


async def test_lines_around_the_cursor_are_scanned_while_the_engine_samples(house: House) -> None:
    prefix, suffix = "".join(f"seen_{n} = token({n})\n" for n in range(40)), "\nlast_one = token()\n"
    house.recorder.scan_ahead(prefix, suffix)
    await asyncio.sleep(0)
    line_cache = house.recorder._redactor._remembered
    misses_before = line_cache.cache_info().misses
    assert misses_before > 40
    await house.recorder.record_completion(completion(prefix=prefix, suffix=suffix, text="a new line"))
    assert line_cache.cache_info().misses - misses_before <= 2, (
        "only the line at the cursor is scanned, with and without the completion"
    )


async def test_one_text_of_a_burst_is_scanned_in_each_turn_of_the_event_loop(tmp_path: Path) -> None:
    counting_redactor, spool = CountingRedactor(), Spool(tmp_path, 1 << 30)
    recorder, scan_counts = Recorder(spool, Metrics(), counting_redactor), []
    for number in range(3):
        recorder.scan_ahead(f"line_{number} = 1\n", "")
    for _ in range(5):
        scan_counts.append(counting_redactor.scans)
        await asyncio.sleep(0)
    assert scan_counts == [0, 1, 2, 3, 3]
    await spool.close()


async def test_no_text_is_scanned_before_the_first_token(house: House) -> None:
    engine, line_cache = house.engines[0], house.recorder._redactor._remembered
    generate, arrived, release = engine.generate, asyncio.Event(), asyncio.Event()

    async def wait_for_release(request: EngineRequest) -> AsyncIterator[Delta]:
        arrived.set()
        await release.wait()
        async for delta in generate(request):
            yield delta

    engine.generate = wait_for_release
    misses_before = line_cache.cache_info().misses
    body = {"prompt": "never_seen_before = 1\n", "stream": True}
    response = asyncio.create_task(house.client.post(house.urls[0] + "/v1/completions", json=body))
    await arrived.wait()
    await asyncio.sleep(0.05)
    assert line_cache.cache_info().misses == misses_before
    release.set()
    assert (await response).status_code == 200
    assert line_cache.cache_info().misses > misses_before


@pytest.mark.parametrize("word", DENYLIST)
@given(data=st.data())
def test_every_name_of_a_password_is_matched(word: str, data: st.DataObject) -> None:
    assert KEYWORD.search(data.draw(st.from_regex(re.compile(word, re.IGNORECASE), fullmatch=True)))
