"""The bench `fleet`: it uses the documented configuration, and reports losses, users who changed arm, and the p99."""

import asyncio
import math
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, cast

import aiohttp
import dns.message
import dns.rdatatype
import dns.rrset
import pytest
from aiohttp import web

from evals.bench import suite
from evals.bench.fleet import parts
from evals.bench.fleet.load import ArmCounts, Event, Request, Watched, arm_counts, back_after, lost, p99
from evals.bench.rigs import postgresql
from evals.bench.rigs.postgresql import NotInstalled
from evals.bench.rigs.servers import Server, ServerError, is_listening, until
from infra.records import Completion, ExperimentRecord, Feedback
from tests.stack import free_ports
from tests.tasks.made import completion, feedback

PATIENCE_SECONDS = 60.0
TEST = ExperimentRecord(id="fleet", champion="1", challenger="2", share=0.5, started=100.0)


def haproxy() -> str:
    """Return HAProxy's path; where it is not installed, the test is skipped."""
    if (program := parts.haproxy_program()) is None:
        pytest.skip("HAProxy is not installed (Debian's package `haproxy`)")
    return program


def answered(sent: float, ms: float = 50.0, error: str = "") -> Request:
    return Request(sent, ms, error)


def test_one_failure_of_a_hundred_may_be_and_two_may_not() -> None:
    requests = [answered(0.0, float(ms)) for ms in range(1, 101)]
    assert p99(requests) == 99.01
    assert p99([*requests[1:], answered(0.0, error="503")]) == pytest.approx(100.0)
    assert p99([*requests[2:], *[answered(0.0, error="503")] * 2]) == math.inf
    assert math.isnan(p99(requests[:19])), "few requests tell nothing"


def test_p99_is_back_in_the_first_window_that_is_quiet() -> None:
    slow = [answered(1000.0 + n / 10, 900.0) for n in range(70)]
    quick = [answered(1007.0 + n / 10) for n in range(200)]
    assert back_after(slow + quick, 1000.0, 1027.0, 100.0) == 7.0
    assert back_after(quick, 1007.0, 1027.0, 100.0) == 0.0
    assert back_after(slow, 1000.0, 1020.0, 100.0) == math.inf
    assert back_after([], 1000.0, 1020.0, 100.0) == math.inf, "no answer is no quick answer"


def test_failures_are_those_sent_in_the_time() -> None:
    watched = Watched([answered(1.0, error="503"), answered(2.0), answered(3.0, error="503")], [Event(2.0, "a", False)])
    assert watched.failures(1.0, 3.0) == ([answered(1.0, error="503")], [Event(2.0, "a", False)])


def test_an_acknowledged_event_that_is_not_stored_is_lost_and_an_unacknowledged_one_is_not() -> None:
    events = [Event(1.0, "a", True), Event(1.0, "a", True), Event(2.0, "b", True), Event(3.0, "c", False)]
    rows: list[Feedback] = [feedback(client_id="a"), feedback(client_id="b"), feedback(client_id="c")]
    assert lost(Watched(events=events).acknowledged, rows) == 1


def test_arms_are_counted_by_user_and_by_the_version_that_answered() -> None:
    def row(user: str, arm: str, version: str, time: float, assigned: str = "fleet") -> Completion:
        return completion(user=user, assigned=assigned, assigned_arm=arm, policy_version=version, time=time)

    rows = [
        row("ada", "champion", "1", 99.0, ""),  # before the test
        row("ada", "champion", "1", 101.0),
        row("ada", "champion", "2", 150.0),  # its engine is away
        row("bob", "challenger", "2", 101.0),
        row("bob", "champion", "1", 160.0),
        row("bob", "challenger", "1", 170.0),
        row("cleo", "", "1", 110.0, ""),
    ]
    counts = arm_counts(rows, TEST, [(140.0, 165.0)])
    assert counts == ArmCounts(requests=6, users=2, changed=1, without=1, elsewhere=2, elsewhere_outside=1)


def test_the_documented_configuration_gets_this_machines_addresses(tmp_path: Path) -> None:
    replicas = [(21001, 22001), (21002, 22002), (21003, 22003)]
    text = parts.haproxy_configuration(parts.PAGE.read_text(), (20001, 20002), replicas)
    assert "tabloop.svc" not in text and "bind 127.0.0.1:20001 " in text and "bind 127.0.0.1:20002" in text
    servers = [line.split()[1:] for line in text.splitlines() if line.lstrip().startswith("server ")]
    assert servers == [[f"replica-{n}", f"127.0.0.1:{ports[side]}"] for side in (0, 1) for n, ports in enumerate(replicas)]
    program = haproxy()
    (tmp_path / "haproxy.cfg").write_text(text)
    checked = subprocess.run((program, "-c", "-f", tmp_path / "haproxy.cfg"), capture_output=True, text=True, check=False)
    assert checked.returncode == 0 and "WARNING" not in checked.stderr, checked.stderr


def test_the_bench_names_the_packages_that_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> Path:
        raise NotInstalled("no initdb")

    monkeypatch.setattr(postgresql, "programs", missing)
    monkeypatch.setattr(parts, "haproxy_program", lambda: None)
    with pytest.raises(suite.CannotRun, match=r"not installed: haproxy \(.*\), postgresql \(no initdb\)"):
        suite.chosen(["fleet"])


def test_the_bench_runs_only_if_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "fleet_lacks", lambda: [])
    assert "fleet" not in suite.chosen([]) and suite.chosen(["fleet"]) == ["fleet"]


def test_a_killed_database_keeps_what_it_acknowledged(tmp_path: Path) -> None:
    with postgresql.running(free_ports(1)[0], tmp_path / "log", ("made_up",)) as database:
        database.query("made_up", "CREATE TABLE numbers (number int)")
        database.query("made_up", "INSERT INTO numbers VALUES (7)")
        database.server.kill()
        assert not database.server.serves()
        database.server.start()
        database.server.wait()
        assert database.query("made_up", "SELECT number FROM numbers") == "7"
        with pytest.raises(ServerError, match="missing"):
            database.query("made_up", "SELECT * FROM missing")


def test_a_server_that_ends_while_starting_is_reported_with_its_log(tmp_path: Path) -> None:
    command = (sys.executable, "-c", "raise SystemExit('no port')")
    server = Server("made-up", command, {}, tmp_path / "log", lambda: False)
    server.start()
    with pytest.raises(ServerError, match=r"made-up: it ended while starting(.|\n)*no port"):
        server.wait()


def test_a_server_that_does_not_end_is_killed_with_its_children(tmp_path: Path) -> None:
    child = (
        "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], start_new_session=True)"
    )
    text = (
        f"import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); {child}; open('{tmp_path}/up', 'w'); time.sleep(60)"
    )
    server = Server("made-up", (sys.executable, "-c", text), {}, tmp_path / "log", lambda: (tmp_path / "up").exists())
    server.start()
    server.wait()
    with pytest.raises(ServerError, match="made-up: did not end within 0 s"):
        server.stop(0.2)
    assert server.process and server.process.returncode == -9


class Replica:
    """A stand-in for a replica of the app: it shows on both ports whether it is ready, and answers with its number."""

    def __init__(self, number: int, ports: tuple[int, int], host: str = "127.0.0.1") -> None:
        self.number = number
        self.ports = ports
        self.host = host
        self.ready = True
        self._runners: list[web.AppRunner] = []

    async def start(self) -> None:
        for port in self.ports:
            app = web.Application()
            app.router.add_get("/ready", self._ready)
            app.router.add_post("/{path:.*}", self._answer)
            runner = web.AppRunner(app, shutdown_timeout=0.1)
            await runner.setup()
            await web.TCPSite(runner, self.host, port).start()
            self._runners.append(runner)

    async def stop(self) -> None:
        await asyncio.gather(*(runner.cleanup() for runner in self._runners))
        self._runners.clear()

    async def _ready(self, _: web.Request) -> web.Response:
        return web.json_response({}, status=200 if self.ready else 503)

    async def _answer(self, request: web.Request) -> web.Response:
        await request.read()
        await asyncio.sleep(0.02)
        return web.Response(text=str(self.number))


async def test_waiting_ends_with_what_holds_instead() -> None:
    async def never() -> bool:
        return False

    for holds in (lambda: False, never):
        with pytest.raises(RuntimeError, match="made-up: it is not ready after 0 s"):
            await until(holds, 0.05, "made-up: it is not ready", every=0.01)


@pytest.fixture
async def balanced(tmp_path: Path) -> AsyncIterator[tuple[Sequence[Replica], tuple[int, int]]]:
    """Three stand-ins behind HAProxy with the documented configuration, and its two ports."""
    program = haproxy()
    first, second, *others = free_ports(2 + 2 * parts.REPLICAS)
    replicas = [Replica(number, (others[2 * number], others[2 * number + 1])) for number in range(parts.REPLICAS)]
    text = parts.haproxy_configuration(parts.PAGE.read_text(), (first, second), [replica.ports for replica in replicas])
    (tmp_path / "haproxy.cfg").write_text(text)
    for replica in replicas:
        await replica.start()
    with (tmp_path / "log").open("wb") as log:
        running = subprocess.Popen((program, "-db", "-f", tmp_path / "haproxy.cfg"), stdout=log, stderr=log)
    try:
        await until(lambda: is_listening(second), PATIENCE_SECONDS, "HAProxy does not listen")
        yield replicas, (first, second)
    finally:
        running.kill()
        running.wait()
        for replica in replicas:
            await replica.stop()


@pytest.mark.long(reason="it lets hundreds of developers type for 20 s; only a change of the balancer's page can break it")
async def test_the_documented_balancer_keeps_developers_at_a_replica_and_fails_no_request(
    balanced: tuple[Sequence[Replica], tuple[int, int]],
) -> None:
    replicas, ports = balanced
    users = [f"user{n}" for n in range(60)]
    async with aiohttp.ClientSession() as http:

        async def ask(user: str, side: int, header: str = "Authorization") -> str:
            token = "Bearer t" if header == "Authorization" else "t"
            url, headers = f"http://127.0.0.1:{ports[side]}/v1/x", {header: token, "X-User-ID": user}
            async with http.post(url, data="x" * 3000, headers=headers) as answer:
                assert answer.status == 200, await answer.text()
                return await answer.text()

        async def where() -> dict[str, set[str]]:
            """Return the replicas that each user meets: for completions, for events, and where the token is sent otherwise."""
            return {user: {await ask(user, 0), await ask(user, 1), await ask(user, 0, "api-key")} for user in users}

        async def ask_on() -> None:
            for number in range(10_000):
                await ask(users[number % len(users)], number % 2)

        before = await where()
        assert all(len(met) == 1 for met in before.values()) and set().union(*before.values()) == {"0", "1", "2"}
        asking = [asyncio.create_task(ask_on()) for _ in range(4)]
        replicas[1].ready = False  # it drains
        await asyncio.sleep(parts.NOTICE_SECONDS)
        await replicas[1].stop()
        away = await where()
        assert all("1" not in met for met in away.values())
        assert all(away[user] == met for user, met in before.items() if met != {"1"})
        replicas[1].ready = True
        await replicas[1].start()

        async def as_before() -> bool:
            return await where() == before

        await until(as_before, PATIENCE_SECONDS, "not every developer is back at their replica")
        assert not any(task.done() for task in asking), "a request failed"
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)


class Names(asyncio.DatagramProtocol):
    """A DNS server with one name, whose addresses change."""

    def __init__(self) -> None:
        self.addresses: list[str] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, address: tuple[str | Any, int]) -> None:
        query = dns.message.from_wire(data)
        answer, asked = dns.message.make_response(query), query.question[0]
        if asked.rdtype == dns.rdatatype.A and self.addresses:
            answer.answer.append(dns.rrset.from_text(asked.name, 1, "IN", "A", *self.addresses))
        self._transport.sendto(answer.to_wire(), address)


def by_name(page: str, ports: tuple[int, int], of_replicas: tuple[int, int], nameserver: int) -> str:
    """Return the page's configuration of replicas that come and go, with ports and a DNS server of this machine."""
    fixed, named = re.findall(r"^```haproxy\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    resolvers, _, template = named.partition("backend completions")
    (line,) = re.findall(r"^ +server-template .*$", template, re.MULTILINE)
    sides = [line.replace(":8081 ", f":{port} ") for port in of_replicas]
    text = re.sub(r"(?:^ +server replica-.*\n)+", lambda _: f"{sides.pop(0)}\n", fixed, flags=re.MULTILINE)
    assert not sides, "the page has two backends"
    text += resolvers.replace("parse-resolv-conf  ", f"nameserver cluster 127.0.0.1:{nameserver}  ")
    for documented, port in zip(("8081", "8082"), ports, strict=True):
        text = text.replace(f"bind :{documented}", f"bind 127.0.0.1:{port}")
    return text


async def test_a_balancer_in_a_cluster_follows_replicas_that_come_and_go(tmp_path: Path) -> None:
    program = haproxy()
    first, second, *of_replicas, nameserver = free_ports(5)
    loop, on = asyncio.get_running_loop(), (of_replicas[0], of_replicas[1])
    transport, names = await loop.create_datagram_endpoint(Names, local_addr=("127.0.0.1", nameserver))
    replicas = {number: Replica(number, on, f"127.0.0.{number}") for number in (2, 3)}
    (tmp_path / "haproxy.cfg").write_text(by_name(parts.PAGE.read_text(), (first, second), on, nameserver))
    checked = subprocess.run((program, "-c", "-f", tmp_path / "haproxy.cfg"), capture_output=True, text=True, check=False)
    assert checked.returncode == 0 and "WARNING" not in checked.stderr, checked.stderr
    for replica in replicas.values():
        await replica.start()
    running = subprocess.Popen((program, "-db", "-f", tmp_path / "haproxy.cfg"), stderr=subprocess.DEVNULL)
    try:
        async with aiohttp.ClientSession() as http:

            async def answering(port: int = first) -> set[str]:
                """Return who answers twelve users; a status where it is no 200."""
                answers = set()
                for number in range(12):
                    headers = {"Authorization": "Bearer t", "X-User-ID": f"user-{number}"}
                    async with http.post(f"http://127.0.0.1:{port}/v1/x", headers=headers) as answer:
                        answers.add(await answer.text() if answer.status == 200 else str(answer.status))
                return answers

            async def until_answered_by(*numbers: str) -> None:
                async def holds() -> bool:
                    return await answering() == set(numbers) == await answering(second)

                await until(holds, PATIENCE_SECONDS, f"{numbers} do not answer")

            await until(lambda: is_listening(second), PATIENCE_SECONDS, "HAProxy does not listen without a replica")
            assert await answering() == {"503"}
            for addresses in (["127.0.0.2"], ["127.0.0.2", "127.0.0.3"]):
                names.addresses = addresses
                await until_answered_by(*(address[-1] for address in addresses))
            replicas[2].ready = False
            await until_answered_by("3")
            names.addresses = ["127.0.0.3"]
            await replicas[2].stop()
            assert await answering() == {"3"}
            names.addresses = ["127.0.0.2"]  # a pod that comes back with another address
            await replicas[2].start()
            replicas[2].ready = True
            await replicas[3].stop()
            await until_answered_by("2")
    finally:
        running.kill()
        running.wait()
        transport.close()
        for replica in replicas.values():
            await replica.stop()
