"""Simulated developers against a server like serving: it streams, detects closed connections, and stores every event."""

import asyncio
import json
import random
import threading
import time
import zlib
from collections import Counter, defaultdict
from contextlib import asynccontextmanager
from dataclasses import fields, replace
from inspect import signature
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st

from evals.compare.gains import by_user
from evals.demo.comparison import changes
from evals.developers import Address, Counts, Decision, Pin, Quirks, RunSettings, code_from, measure, run
from evals.developers.live_session import Pacer
from evals.developers.protocol import OPTIONS, STOPS, Impression, event_body, prompt
from evals.developers.runs import Workplace
from evals.developers.schedule import Schedule
from infra.cli import main
from infra.cli.measure import developers
from infra.model import fim
from tasks.evaluation.positions import Code, Source

MARK = "zq{}qz"
"""Part of every line, so that a leak of the text that a developer is about to write is visible anywhere."""
CODE = Code(
    [
        Source(
            f"package/module_{f}.py",
            "".join(
                f"def name_{MARK.format(f'{f}x{i}')}(first, second):\n    return first.{MARK.format(f'{f}y{i}')}(second + {i})\n"
                for i in range(60)
            ),
        )
        for f in range(12)
    ]
)


class Server:
    """Serves a text for each prompt, by a seeded rule, and stores the requests and events."""

    def __init__(self, delay: float = 0.0, broken: float = 0.0, nothing: str = "") -> None:
        self.requests: list[tuple[dict, dict]] = []
        self.events: list[tuple[dict, dict]] = []
        self.native: list[dict] = []
        self.disconnects = 0
        self._delay, self._broken, self._nothing = delay, broken, nothing

    def text(self, sent_prompt: str, version: str) -> str:
        rng = random.Random(version + sent_prompt)
        line = "\n".join(fim.parse_prompt(sent_prompt).prefix.rstrip(" ").split("\n")[-2:])  # the marks show the place
        source = next((s.text for s in CODE.sources if line.strip() and line in s.text), line)
        cursor = source.index(line) + len(line)
        truth = source[cursor:].split("\n", 1)[0]
        guesses = (truth, truth[: len(truth) // 2], truth[:4] + "nonsense", "other", "", truth + "\n    more(", " " + truth)
        return rng.choices(guesses, (5, 2, 2, 3, 1, 1, 1) if version != "2" else (9, 1, 1, 1, 1, 1, 1))[0]

    async def complete(self, request: web.Request) -> web.StreamResponse:
        body, headers = await request.json(), dict(request.headers)
        self.requests.append((headers, body))
        version = headers.get("X-Tabloop-Version", "1")
        if random.Random(body["prompt"]).random() < self._broken:
            return web.json_response({"error": {"message": "no engine"}}, status=503)
        text = "" if version == self._nothing else self.text(body["prompt"], version)
        name = f"cmpl-{zlib.crc32(body['prompt'].encode())}"
        if not body.get("stream"):
            return web.json_response({"id": "c", "choices": [{"text": text}]}, headers={"X-Tabloop-Version": version})
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "X-Tabloop-Version": version})
        await response.prepare(request)
        try:
            for start in range(0, len(text), 3):
                choice = {"text": text[start : start + 3], "index": 0, "finish_reason": None}
                await response.write(b"data: " + json.dumps({"id": name, "choices": [choice]}).encode() + b"\n\n")
                await asyncio.sleep(self._delay)
            await response.write(b'data: {"choices": [{"text": "", "index": 0, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n')
        except ConnectionResetError:
            self.disconnects += 1
        return response

    async def feedback(self, request: web.Request) -> web.Response:
        self.events.append((dict(request.headers), await request.json()))
        return web.json_response({"status": "submitted"})

    async def native_feedback(self, request: web.Request) -> web.Response:
        self.native.append(await request.json())
        return web.json_response({"status": "recorded", "id": "f"})

    @asynccontextmanager
    async def running(self):
        app = web.Application()
        app.router.add_post("/v1/completions", self.complete)
        app.router.add_post("/v1/continue/events", self.feedback)
        app.router.add_post("/v1/feedback", self.native_feedback)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        yield Address(url, f"{url}/continue/events", token="secret", timeout_seconds=10)
        await runner.cleanup()


MANY_QUIRKS = Quirks(late_accepts=0.2, superseded=0.1, cache_hits=0.2, duplicates=0.2, silent_editors=0.1, native_editors=0.0)


async def run_developers(server: Server, **changes):
    decisions: list[Decision] = []
    async with server.running() as address:
        settings = RunSettings(address=address, users=40, seed=5, requests=300, speed=50000, concurrency=8, run_id="r", **changes)
        tally = await run(settings, CODE, on_decision=decisions.append)
    return tally, decisions


@pytest.fixture(scope="module")
def quirky_run():
    """One run with many quirks: its server, sums and decisions."""
    server = Server()
    return server, *asyncio.run(run_developers(server, quirks=MANY_QUIRKS))


def test_counts_add_up_and_equal_those_of_the_server(quirky_run):
    server, tally, decisions = quirky_run
    total = tally.total
    assert total.requests == len(server.requests) == len(decisions) and 250 <= total.requests <= 300
    assert total.requests == total.cancelled + total.errors + total.nothing + total.shown
    assert total.shown == total.judged + total.unreported and 0 < total.silent < total.unreported
    assert total.completed == total.nothing + total.judged + total.unreported > total.telling, "as the gate counts"
    assert total.judged == total.accepted + total.rejected
    assert total.errors == total.lost_events == 0
    assert min(total.cancelled, total.nothing, total.accepted, total.rejected, total.unreported, total.reused) > 0
    assert min(total.late, total.cache_hits, total.duplicates) > 0
    # Every decision has an event; a late accept, a cache hit and a duplicate each have one more.
    bodies = [body["data"] for _, body in server.events]
    outcomes = {d["completionId"]: d["accepted"] for d in bodies if not d["cacheHit"]}  # the last event counts
    assert Counter(outcomes.values()) == {True: total.accepted, False: total.rejected}
    assert len(bodies) == total.judged + total.late + total.cache_hits + total.duplicates
    assert sum(d["cacheHit"] for d in bodies) >= total.cache_hits
    assert sum(len(d["completion"]) for d in bodies if d["accepted"]) >= total.accepted_characters
    assert 0 < total.kept_characters <= total.accepted_characters
    assert sum(tally.by_user().values(), Counts()) == total
    assert sum(tally.by_version().values(), Counts()) == replace(total, written_keys=0, writing_ms=0)
    assert set(tally.by_version()) == {"1"}


async def test_native_editors_tell_why_nothing_was_taken_and_how_long_it_was_seen():
    server = Server()
    tally, _ = await run_developers(server, quirks=Quirks(silent_editors=0.0, native_editors=1.0, duplicates=0.0))
    total = tally.total
    assert not server.events and total.lost_events == total.cache_hits == 0
    outcomes = Counter(body.get("outcome", "") for body in server.native)
    assert outcomes["accepted"] == total.accepted > 0 and outcomes["rejected"] == total.rejected + total.late
    reasons = Counter(body["reason"] for body in server.native if body.get("outcome") == "rejected")
    assert reasons["rejected"] > 0 and reasons["typed_away"] > reasons["rejected"]
    cancelled = [body for body in server.native if "outcome" not in body]
    assert 0 < len(cancelled) <= total.cancelled and all(body["reason"] == "cancelled" for body in cancelled)
    seen = [body["seen_ms"] for body in server.native if body.get("outcome") == "rejected"]
    quick = sum(ms < 750 for ms in seen) / len(seen)
    assert 0.05 < quick < 0.35
    served = {f"cmpl-{zlib.crc32(body['prompt'].encode())}" for _, body in server.requests}
    assert {body["completion_id"] for body in server.native} <= served


async def test_developers_decide_the_same_about_the_same_text(quirky_run):
    def by_position(decisions):
        return {(d.user, d.visit, d.offset, d.way, d.stop): replace(d, elapsed_ms=0, settled=None) for d in decisions}

    immediate = by_position(quirky_run[2])
    delayed = by_position((await run_developers(Server(delay=0.002), quirks=MANY_QUIRKS))[1])
    positions = immediate.keys() & delayed.keys()  # timing affects the end of a run only
    assert len(positions) > 200
    assert {key: immediate[key] for key in positions} == {key: delayed[key] for key in positions}


def test_requests_and_events_never_contain_the_text_after_the_cursor(quirky_run):
    server, _, decisions = quirky_run
    assert len({mark for d in decisions for mark in _marks(d.truth)}) > 50
    served = {server.text(body["prompt"], "1") for _, body in server.requests}
    truths = {(d.user, prompt(d.prefix, d.suffix)): d.truth for d in decisions if d.way == "writes"}
    checked = 0
    for headers, body in server.requests:
        truth = truths.get((headers["X-User-ID"], body["prompt"]), "")
        for mark in _marks(truth):
            checked += 1
            assert mark not in json.dumps([headers, body])
    assert checked > 100
    for headers, body in server.events:
        data = body["data"]
        rest = {k: v for k, v in data.items() if k not in ("prompt", "prefix", "suffix", "completion")}
        assert not _marks(json.dumps([headers, {**body, "data": rest}]))
        assert any(data["completion"] in text for text in served)  # events return served text only
        assert data["prompt"] == prompt(data["prefix"], data["suffix"])


def test_what_became_of_a_place_is_what_later_requests_show(quirky_run):
    """The last request that begins as an earlier one shows the settled text of its place, as far as the cursor has come."""
    _, _, decisions = quirky_run
    kinds = Counter(d.settled.kind for d in decisions)
    assert kinds["typed"] > 50 and kinds["accepted"] > 10 and kinds["rewritten"] > 0 and kinds["deleted"] > 0
    assert all(
        d.shown in d.settled.text[: 6 + len(d.shown)] for d in decisions if d.settled.kind == "accepted"
    )  # typed on before
    last: dict[Any, str] = {}
    for earlier in decisions:
        tail = earlier.prefix[-60:]
        for later in decisions:
            same = (later.user, later.visit, later.way) == (earlier.user, earlier.visit, "writes") and earlier.settled.whole
            if same and later.offset > earlier.offset and len(tail) == 60 and later.prefix.count(tail) == 1:
                last[earlier] = max(last.get(earlier, ""), later.prefix.split(tail)[1], key=len)
    agree = [earlier.settled.text.startswith(shown[: len(earlier.settled.text)]) for earlier, shown in last.items()]
    assert len(agree) > 30 and sum(agree) >= 0.95 * len(agree)  # what was corrected last is not shown again


async def test_a_silent_editor_reports_nothing():
    server = Server()
    tally, decisions = await run_developers(server, quirks=Quirks(silent_editors=1.0))
    total = tally.total
    assert server.requests and not server.events
    assert total.silent == total.unreported == total.shown > 0 and total.judged == total.cache_hits == total.duplicates == 0
    assert any(d.accepted and d.settled.text for d in decisions)
    for headers, body in server.requests:
        assert body.keys() == {"model", "prompt", "max_tokens", "stop"} and len(body["stop"]) == 4
        assert headers["User-Agent"].startswith("Zed/") and "api-key" not in headers
    assert total.cancelled > 0 == total.errors


@pytest.mark.parametrize("value", ["1.5", "-0.1", "half", "nan"])
def test_a_share_of_silent_editors_is_a_share(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert signature(developers).parameters["silent"].default == Quirks().silent_editors == 0.25
    assert main(["developers", f"--silent={value}"]) == 2
    said = capsys.readouterr().err
    assert "--silent" in said and "0<=x<=1" in said and value in said


def _marks(text: str) -> set[str]:
    return {f"zq{part.split('qz')[0]}qz" for part in text.split("zq")[1:] if "qz" in part}


async def test_requests_have_continues_format():
    server = Server()
    await run_developers(server, quirks=Quirks(silent_editors=0))
    for headers, body in server.requests:
        assert set(body) == {"model", "max_tokens", "temperature", "stream", "stop", "prompt"}
        assert (body["stream"], body["temperature"], body["max_tokens"]) == (True, 0.01, 4096)
        assert "qwen" in body["model"] and "coder" in body["model"] and body["stop"] == list(STOPS)
        assert body["prompt"].startswith("<|fim_prefix|>") and body["prompt"].endswith("<|fim_middle|>")
        assert headers["Authorization"] == "Bearer secret" and headers["api-key"] == "secret"
        assert headers["X-User-ID"].startswith("developer-") and headers["Content-Type"] == "application/json"
        assert "X-Tabloop-Version" not in headers
    assert len({headers["X-User-ID"] for headers, _ in server.requests}) > 10


def test_every_event_matches_a_request(quirky_run):
    """The event's prefix is that of one of the user's requests plus typed text; its completion is a part of that stream."""
    server, tally, _ = quirky_run
    requests = defaultdict(list)
    for headers, body in server.requests:
        requests[headers["X-User-ID"]].append((fim.parse_prompt(body["prompt"]), server.text(body["prompt"], "1")))
    reused = 0
    for headers, body in server.events:
        data, matched = body["data"], False
        for context, text in requests[headers["X-User-ID"]]:
            typed = data["prefix"].removeprefix(context.prefix)
            if context.suffix == data["suffix"] and data["prefix"] == context.prefix + typed:
                rest = text.removeprefix(typed)
                matched |= text.startswith(typed) and any(rest.startswith(" " * n + data["completion"]) for n in range(3))
                reused += bool(typed and matched)
        assert matched
    assert reused and tally.total.reused


async def test_late_accepts_keep_their_id():
    server = Server()
    tally, _ = await run_developers(server, quirks=Quirks(late_accepts=1.0, duplicates=0, cache_hits=0, native_editors=0))
    by_id = defaultdict(list)
    for _, body in server.events:
        by_id[body["data"]["completionId"]].append(body["data"]["accepted"])
    assert [False, True] in by_id.values() and [True] not in by_id.values()
    assert sum(v == [False, True] for v in by_id.values()) == tally.total.accepted == tally.total.late


async def test_a_developer_who_types_another_text_closes_the_connection():
    server = Server(delay=0.02)
    async with server.running() as address:
        await run(RunSettings(address=address, users=20, seed=5, requests=120, speed=5000, concurrency=12), CODE)
        await asyncio.sleep(0.1)
    assert server.disconnects > 0


async def test_errors_and_lost_events_are_counted_and_do_not_end_the_run():
    tally, decisions = await run_developers(Server(broken=0.5))
    assert 50 < tally.total.errors < tally.total.requests
    assert any(d.reason.startswith("503: ") for d in decisions if d.outcome == "error")
    async with Server().running() as address:
        unreachable = replace(address, feedback_url="http://127.0.0.1:9/none")
        tally = await run(
            RunSettings(address=unreachable, requests=60, speed=5000, quirks=Quirks(duplicates=0, cache_hits=0)), CODE
        )
    assert tally.total.lost_events == tally.total.judged + tally.total.late > 0
    tally = await run(RunSettings(address=Address("http://127.0.0.1:9/v1", "http://127.0.0.1:9"), requests=5, speed=5000), CODE)
    assert tally.total.errors == tally.total.requests == 5


@pytest.mark.timing(reason="counts the requests of a run that ends by time")
async def test_a_run_ends_at_the_stop_event_and_at_its_time_limit():
    async with Server().running() as address:
        stop, progress_reports = asyncio.Event(), []

        def progress(tally):
            progress_reports.append(tally.total.requests)
            stop.set()

        tally = await asyncio.wait_for(
            run(RunSettings(address=address, speed=5000, rate=50, concurrency=4), CODE, stop=stop, progress=progress), 10
        )
        assert progress_reports and 25 <= tally.total.requests <= 100
        started_at = time.monotonic()
        await run(RunSettings(address=address, speed=5000, seconds=0.5), CODE)
        assert time.monotonic() - started_at < 8


async def test_each_version_is_measured_with_the_same_developers_at_the_same_positions():
    server = Server()
    async with server.running() as address:
        settings = RunSettings(address=address, users=30, seed=3, concurrency=6)
        paired = await measure(settings, CODE, [Pin("1"), Pin("2"), Pin("1")], 200)
        repeated = await measure(settings, CODE, [Pin("1"), Pin("2"), Pin("1")], 200)
    assert paired.pairs == repeated.pairs and len(paired.pairs) == 200 and paired.dropped == 0
    assert all(pair.outcomes[0] == pair.outcomes[2] for pair in paired.pairs)  # the same version: the same draws
    assert not server.events
    requests = defaultdict(set)
    for headers, body in server.requests:
        requests[headers["X-Tabloop-Version"]].add((headers["X-User-ID"], body["prompt"]))
    assert requests["1"] == requests["2"]
    accepted = [[pair.outcomes[pin].accepted for pair in paired.pairs] for pin in range(3)]
    sums = by_user([pair.user for pair in paired.pairs], {str(pin): values for pin, values in enumerate(accepted)})
    assert sums.requests.sum() == 200
    assert all(o.kept <= len(o.shown) for pair in paired.pairs for o in pair.outcomes)
    assert sum(o.kept_characters for pair in paired.pairs for o in pair.outcomes) > 0
    base_accepted, second_accepted = (float(sums.values[pin].sum()) for pin in ("0", "1"))
    assert second_accepted > base_accepted
    # An outcome holds the probability of an accept, slips included: sums are near the drawn ones, and no decision is certain.
    assert abs(base_accepted - paired.tallies[0].total.accepted) < 8
    assert all(0.01 <= o.accepted <= 0.99 for pair in paired.pairs for o in pair.outcomes if o.shown)
    assert paired.tallies[1].total.requests == 200


async def test_a_position_at_which_one_version_shows_nothing_is_a_gain_of_the_other():
    async with Server(nothing="1").running() as address:
        paired = await measure(RunSettings(address=address, users=30, seed=3), CODE, [Pin("1"), Pin("2")], 100)
    accepted = paired.tallies[1].total.accepted
    assert paired.tallies[0].total.nothing == 100 and accepted > 10
    assert changes(paired).gains == pytest.approx(accepted, abs=2), "a place that two positions share counts once"
    assert all(not example.base and example.champion_accepted for example in changes(paired).examples)


async def test_a_position_without_a_response_of_one_version_is_dropped_for_every_version():
    async with Server(broken=0.3).running() as address:
        paired = await measure(RunSettings(address=address, users=30), CODE, [Pin("1"), Pin("2")], 100)
    assert paired.dropped > 10 and paired.dropped + len(paired.pairs) == 100


def test_events_have_continues_format():
    impression = Impression("8d6c", "u", "a/b.py", "x = ", "\n", "1", requested_at=0.0, elapsed_ms=812.4, model="m")
    body = event_body(impression, True)
    assert (body["name"], body["schema"], body["level"], body["profileId"]) == ("autocomplete", "0.2.0", "all", "local")
    data = body["data"]
    expected = {*OPTIONS, "eventName", "schema", "timestamp", "userId", "userAgent", "selectedProfileId", "accepted", "time"}
    expected |= {"prefix", "suffix", "prompt", "completion", "modelProvider", "modelName", "cacheHit", "filepath"}
    assert set(data) == expected | {"completionId", "uniqueId"}
    assert data["timestamp"] == "1970-01-01T00:00:00.000Z" and data["time"] == 812 and data["userId"] == ""
    assert data["filepath"] == "file:///workspace/a/b.py" and data["accepted"] is True and data["cacheHit"] is False
    json.dumps(body)


@settings(max_examples=50)
@given(st.lists(st.tuples(*[st.integers(0, 9)] * len(fields(Counts))), min_size=2, max_size=2))
def test_the_sum_of_two_counts_adds_each_field(rows):
    first, second = (Counts(*row) for row in rows)
    assert all(getattr(first + second, f.name) == getattr(first, f.name) + getattr(second, f.name) for f in fields(Counts))


def test_code_is_read_from_directories(tmp_path):
    (tmp_path / "a.py").write_text("x = 1\n")
    assert [source.name for source in code_from([tmp_path]).sources] == ["a.py"]
    with pytest.raises(ValueError, match="no such directory"):
        code_from([tmp_path / "none"])


def test_the_command_writes_the_report_and_the_decisions(tmp_path, capsys):
    server, ready, done = Server(), threading.Event(), threading.Event()
    address: list[Address] = []

    async def serve():
        async with server.running() as server_address:
            address.append(server_address)
            ready.set()
            while not done.is_set():
                await asyncio.sleep(0.01)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    ready.wait(10)
    code = tmp_path / "code"
    for source in CODE.sources:
        file = code / source.name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(source.text)
    report, decisions = tmp_path / "out" / "report.json", tmp_path / "out" / "decisions.jsonl"
    common = ["--code", str(code), "--requests", "40", "--speed", "5000", "--token", "t"]
    try:
        assert (
            main(
                [
                    "developers",
                    *("--url", address[0].api_base, "--feedback-url", address[0].feedback_url, "--version", "7", *common),
                    *("--report", str(report), "--decisions", str(decisions)),
                ]
            )
            == 0
        )
    finally:
        done.set()
        thread.join()
    report_json = json.loads(report.read_text())
    assert set(report_json["by_version"]) == {"7"} and report_json["total"]["requests"] == 40
    assert len(decisions.read_text().splitlines()) == 40
    assert "of the answered" in capsys.readouterr().out
    assert main(["developers", "--url", "http://127.0.0.1:9/v1", "--feedback-url", "http://127.0.0.1:9", *common]) == 1
    assert "tabloop status" in capsys.readouterr().err


async def test_a_waiting_developer_continues_once_the_rate_limit_ends() -> None:
    rate = 0.1
    pace = Pacer(None, None, lambda: rate, None)
    waiting = [asyncio.create_task(pace()) for _ in range(20)]
    await asyncio.sleep(0.05)
    assert not any(turn.done() for turn in waiting)
    rate = 0.0
    assert await asyncio.wait_for(asyncio.gather(*waiting), 60) == [True] * 20
    assert await asyncio.wait_for(pace(), 60)


async def test_a_developer_who_is_away_comes_back_at_the_end_of_the_run() -> None:
    stop = asyncio.Event()
    pace, started_at = Pacer(None, None, lambda: 0.0, stop), time.monotonic()
    asyncio.get_running_loop().call_later(0.05, stop.set)
    await pace.sleep(600)
    assert time.monotonic() - started_at < 60 and pace.over
    await pace.sleep(600)
    assert not await pace()


async def test_turns_are_spaced_by_the_rate() -> None:
    pace, started_at = Pacer(None, None, lambda: 50.0, None), time.monotonic()
    await asyncio.gather(*(pace() for _ in range(20)))
    assert time.monotonic() - started_at >= 20 / 50


async def test_a_free_file_is_written_however_many_sessions_wait_for_a_long_one() -> None:
    schedule = Schedule(3, 0, CODE)
    long = schedule.session(0)
    other = next(one for number in range(1, 100) if (one := schedule.session(number)).source.name != long.source.name)
    workplace = Workplace(iter([long] * 2000 + [other]))
    async with workplace.session() as (first, _), asyncio.timeout(5), workplace.session() as (second, _):
        assert (first.source.name, second.source.name) == (long.source.name, other.source.name)
