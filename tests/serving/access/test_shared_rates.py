"""All replicas count a token's requests together while Valkey answers; while it does not, each counts alone and says so."""

import asyncio
import contextlib
import hashlib
import logging
import socket
import ssl
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from hypothesis import example, given, settings
from hypothesis import strategies as st
from limits.aio.storage import MemoryStorage
from pydantic import ValidationError
from tokenizers import Tokenizer
from valkey.asyncio import Valkey

from infra.settings import DEMO, SettingsError, load
from infra.settings.schema import Serving
from serving.access import Access, Denied, shared_rates
from serving.access.shared_rates import RETRY_SECONDS, TIMEOUT_SECONDS, SharedRates
from serving.metrics import Metrics
from tests.serving.access.valkey_server import valkey_server
from tests.serving.fakes import EDITOR, House
from tests.serving.helpers import ADMINISTRATOR
from tests.stack import free_ports

PASSWORD = "s3cr3t-of-valkey"
OF_ADA = {"Authorization": "Bearer of-ada"}


def ada(per_minute: int, token: str = "of-ada") -> dict[str, Any]:
    digest = hashlib.sha256(token.encode()).hexdigest()
    return {"ada": {"sha256": digest, "user": "ada-the-user", "requests_per_minute": per_minute}}


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a server of a test answer late: the machine may be busy."""
    monkeypatch.setattr(shared_rates, "TIMEOUT_SECONDS", 20.0)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class BreakableStorage(MemoryStorage):
    """A storage that fails while it is broken."""

    broken = False

    async def acquire_sliding_window_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        if self.broken:
            raise OSError(111, "refused")
        return await super().acquire_sliding_window_entry(key, limit, expiry, amount)


async def test_replicas_over_one_storage_share_a_count() -> None:
    storage = MemoryStorage()
    replicas = [SharedRates(storage), SharedRates(storage)]
    waits = [await replicas[number % 2].wait("ada", 5) for number in range(7)]
    assert waits[:5] == [0.0] * 5 and all(0 < wait <= 60 for wait in waits[5:])
    assert await replicas[0].wait("bob", 5) == 0.0, "the rate of one credential does not limit another"


@settings(deadline=None, max_examples=200)
@example([0.0, 0.0], 1)  # the window begins with the request
@example([30.0, 25.0, 0.0], 1)  # it ends before the second request is due
@example([40.0, 0.0, 0.0, 25.0, 0.0, 0.0, 0.0], 3)  # two windows count
@given(st.lists(st.floats(0, 25), max_size=40), st.integers(1, 12))
def test_who_waits_as_long_as_told_is_admitted(pauses: list[float], per_minute: int) -> None:
    now = 1_800_000_000.0
    admitted: list[float] = []

    async def ask_and_wait() -> None:
        nonlocal now
        storage = MemoryStorage()
        replicas = [SharedRates(storage), SharedRates(storage)]
        for number, pause in enumerate(pauses):
            now += pause
            if wait := await replicas[number % 2].wait("ada", per_minute):
                assert wait <= 60
                arrived = now
                now = arrived + wait - 0.01
                assert wait < 0.01 or await replicas[number % 2].wait("ada", per_minute) > 0, "not a moment too long"
                now = arrived + int(wait) + 1.001  # Retry-After, and the request's way
                assert await replicas[number % 2].wait("ada", per_minute) == 0.0
            admitted.append(now)

    with mock.patch.object(time, "time", lambda: now):
        asyncio.run(ask_and_wait())
    # The window before is taken as evenly filled, so a minute admits less than twice the rate, and on average the rate.
    for start in admitted:
        assert sum(start <= each < start + 60 for each in admitted) < 2 * per_minute + 1
    if admitted:
        assert len(admitted) <= per_minute * ((admitted[-1] - admitted[0]) / 60 + 2)


def write_certificate(host: str, certificate: Path, key: Path) -> None:
    """Write a self-signed certificate of a host, and its key."""
    private, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
    now = datetime.now(UTC)
    signed = (
        x509.CertificateBuilder(name, name, private.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
        .sign(private, hashes.SHA256())
    )
    certificate.write_bytes(signed.public_bytes(Encoding.PEM))
    key.write_bytes(private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))


@contextlib.asynccontextmanager
async def silent_server(tls: ssl.SSLContext | None = None) -> AsyncIterator[tuple[int, list[object]]]:
    """Yield the port of a server that reads and never answers, and its connections."""
    connections: list[object] = []

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        with contextlib.suppress(OSError):
            await reader.read()
        writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=tls)
    try:
        yield server.sockets[0].getsockname()[1], connections
    finally:
        server.close()


@pytest.mark.timing(reason="counts connections by the seconds that pass")
async def test_a_server_that_hangs_costs_one_timeout_and_is_reported(
    tmp_path: Path, tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    async with silent_server() as (port, connections):
        values = {"valkey": f"valkey://:{PASSWORD}@127.0.0.1:{port}", "tokens": ada(3)}
        began = time.monotonic()
        async with House(tmp_path, tokenizer, settings=values) as house:
            responses = [await house.complete(headers=OF_ADA) for _ in range(4)]
            assert [response.status_code for response in responses] == [200] * 3 + [429], "the replica counts alone"
            assert 1 <= int(responses[-1].headers["retry-after"]) <= 20
            assert 1 <= len(connections) <= 1 + (time.monotonic() - began) / RETRY_SECONDS, "the others did not wait"
            status = (await house.client.get(house.urls[0] + "/admin/status", headers=ADMINISTRATOR)).json()
            assert "no answer" in status["problems"]["valkey"] and status["ready"]
            assert b"tabloop_unshared_rates_total 4.0" in house.metrics_text()  # three of ada's, and the administrator's
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING and "serving.valkey" in record.message]
    assert len(warnings) == 1 and PASSWORD not in caplog.text


async def test_a_dead_server_is_asked_once_in_five_seconds(caplog: pytest.LogCaptureFixture) -> None:
    clock, metrics = Clock(), Metrics()
    async with silent_server() as (port, connections):
        serving = Serving(token=EDITOR, user_secret="salt", valkey=f"redis://127.0.0.1:{port}")
        access = Access(serving, on_unshared_rate=metrics.unshared_rates.inc, clock=clock)
        await access.check({"api-key": EDITOR}, "complete")
        for asked in (2, 3):
            clock.now += RETRY_SECONDS
            await asyncio.gather(*(access.check({"api-key": EDITOR}, "complete") for _ in range(20)))
            assert len(connections) == asked
        await access.aclose()
    assert metrics.registry.get_sample_value("tabloop_unshared_rates_total") == 41
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) == 1


async def test_an_answer_that_came_while_the_process_stood_still_counts() -> None:
    class SlowStorage(MemoryStorage):
        async def acquire_sliding_window_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
            await asyncio.sleep(TIMEOUT_SECONDS / 10)
            return await super().acquire_sliding_window_entry(key, limit, expiry, amount)

    rates = SharedRates(SlowStorage())
    asking = asyncio.create_task(rates.wait("ada", 1))
    await asyncio.sleep(0)
    time.sleep(2 * TIMEOUT_SECONDS)  # the whole process
    assert await asking == 0.0 and not rates.problem


@pytest.mark.usefixtures("patient")
async def test_a_server_that_refuses_fails_no_request() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"valkey://127.0.0.1:{closed.getsockname()[1]}"
        access = Access(Serving(token=EDITOR, user_secret="salt", valkey=address, requests_per_minute=2), clock=lambda: 0.0)
        for _ in range(2):
            await access.check({"api-key": EDITOR}, "complete")
        with pytest.raises(Denied, match="too many requests"):
            await access.check({"api-key": EDITOR}, "complete")
        assert "connecting to 127.0.0.1" in access.problems["valkey"]


async def test_the_count_is_shared_again_when_the_storage_is_back(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    storage, clock = BreakableStorage(), Clock()
    rates = SharedRates(storage, clock=clock)
    assert await rates.wait("ada", 1) == 0.0 and await rates.wait("ada", 1) > 0
    storage.broken = True
    assert await rates.wait("ada", 1) == 0.0 and "refused" in rates.problem
    storage.broken = False
    clock.now += RETRY_SECONDS / 2
    assert await rates.wait("ada", 1) == 0.0, "it is not asked yet"
    clock.now += RETRY_SECONDS / 2
    assert await rates.wait("ada", 1) > 0 and not rates.problem
    said = [record.levelname for record in caplog.records if "serving.valkey" in record.message]
    assert said == ["WARNING", "INFO"]


@pytest.mark.usefixtures("patient")
async def test_two_replicas_share_a_count_in_a_server_and_tell_it_no_name(
    tmp_path: Path, tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    [port] = free_ports(1)
    values = {"valkey": f"valkey://:{PASSWORD}@127.0.0.1:{port}/3", "tokens": ada(6)}
    with valkey_server(tmp_path, port, PASSWORD):
        async with (
            House(tmp_path / "first", tokenizer, settings=values) as first,
            House(tmp_path / "second", tokenizer, settings=values) as second,
        ):
            replicas = (first, second)
            responses = [await replicas[number % 2].complete(headers=OF_ADA) for number in range(8)]
            assert [response.status_code for response in responses] == [200] * 6 + [429] * 2
            for response in responses[6:]:
                assert 1 <= int(response.headers["retry-after"]) <= 61
                assert "token ada: too many requests" in response.json()["error"]["message"]
            assert (await second.complete()).status_code == 200
            assert b"tabloop_unshared_rates_total 0.0" in first.metrics_text()
            assert first.access.problems == second.access.problems == {}
        client = Valkey(port=port, db=3, password=PASSWORD)
        keys = [key.decode() for key in await client.keys("*")]
        times = [await client.pttl(key) for key in keys]
        await client.aclose()
    assert len(keys) == 2 and not any(name in key for key in keys for name in ("ada", "proxy", "of-")), keys
    assert all(0 < milliseconds <= 120_000 for milliseconds in times), "each key expires"
    assert PASSWORD not in caplog.text


async def test_the_certificate_of_another_host_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    write_certificate("localhost", certificate, key)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    async with silent_server(context) as (port, _):
        of_another, right = (
            Access(Serving(token=EDITOR, user_secret="salt", valkey=f"valkeys://{host}:{port}"))
            for host in ("127.0.0.1", "localhost")
        )
        await right.check({"api-key": EDITOR}, "complete")
        assert "no answer" in right.problems["valkey"]
        monkeypatch.setattr(shared_rates, "TIMEOUT_SECONDS", 20.0)
        await of_another.check({"api-key": EDITOR}, "complete")
        assert "certificate is not valid for '127.0.0.1'" in of_another.problems["valkey"]
        await right.aclose()


@pytest.mark.usefixtures("patient")
async def test_a_replaced_token_keeps_its_count_and_a_server_may_restart(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    [port], clock = free_ports(1), Clock()
    address = f"valkey://:{PASSWORD}@127.0.0.1:{port}"

    def replica(token: str) -> Access:
        return Access(Serving(token=EDITOR, user_secret="salt", valkey=address, tokens=ada(2, token)), clock=clock)

    before, after = replica("old"), replica("new")
    with valkey_server(tmp_path, port, PASSWORD):
        await before.check({"api-key": "old"}, "complete")
        await after.check({"api-key": "new"}, "complete")
        with pytest.raises(Denied, match="too many requests"):
            await after.check({"api-key": "new"}, "complete")
    clock.now += 60
    await after.check({"api-key": "new"}, "complete")
    assert after.problems["valkey"]
    clock.now += RETRY_SECONDS
    with valkey_server(tmp_path, port, PASSWORD):
        await after.check({"api-key": "new"}, "complete")
        assert after.problems == {}
        await before.check({"api-key": "old"}, "complete")
        with pytest.raises(Denied, match="too many requests"):
            await before.check({"api-key": "old"}, "complete")
        await before.aclose()
        await after.aclose()
    assert [r.levelname for r in caplog.records if "serving.valkey" in r.message] == ["WARNING", "INFO"]
    assert PASSWORD not in caplog.text


@pytest.mark.usefixtures("patient")
async def test_a_wrong_password_is_reported_without_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    [port] = free_ports(1)
    with valkey_server(tmp_path, port, "another"):
        address = f"valkey://:{PASSWORD}@127.0.0.1:{port}"
        access = Access(Serving(token=EDITOR, user_secret="salt", valkey=address))
        await access.check({"api-key": EDITOR}, "complete")
        assert "password" in access.problems["valkey"]
        await access.aclose()
    assert PASSWORD not in caplog.text + str(access.problems)


@pytest.mark.parametrize(
    "address",
    [
        f"http://:{PASSWORD}@host:1",
        f"valkey://:{PASSWORD}@host",
        f"valkey://:{PASSWORD}@host:99999",
        f"valkey://:{PASSWORD}/@host:1",
        f"valkey://:{PASSWORD}@host:1?socket_timeout=60",
        f"{PASSWORD}@host:1",
        f"valkey://:{PASSWORD}@host:1/name",
        "",
    ],
)
def test_a_wrong_address_is_refused_without_its_password(address: str) -> None:
    with pytest.raises(SettingsError, match=r"serving\.valkey = \(hidden\): .*expected valkey://HOST:PORT") as refused:
        load(DEMO, {"TABLOOP_SERVING__VALKEY": address})
    assert PASSWORD not in str(refused.value)
    with pytest.raises(ValidationError):
        Serving(valkey=address)


@pytest.mark.parametrize("scheme", ["valkey", "valkeys", "redis", "rediss"])
@pytest.mark.parametrize("rest", ["host:6379", ":p%40ss@127.0.0.1:1/0", "user:pass@[::1]:65535", "valkey.tabloop.svc:6379/15"])
def test_addresses_of_both_servers_with_and_without_tls_are_taken(scheme: str, rest: str) -> None:
    serving = load(DEMO, {"TABLOOP_SERVING__VALKEY": f"{scheme}://{rest}"}).serving
    assert serving.valkey and serving.valkey.get_secret_value() == f"{scheme}://{rest}" and rest not in repr(serving)
