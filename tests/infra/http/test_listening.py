"""A server that listens on "::" is reached by IPv4 and by IPv6."""

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import pytest
import uvloop

from infra.http.listening import to_listen
from tests.stack import free_ports


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
@pytest.mark.parametrize(
    ("host", "families"),
    [("::", ["127.0.0.1", "::1"]), ("0.0.0.0", ["127.0.0.1"]), ("127.0.0.1", ["127.0.0.1"]), ("::1", ["::1"])],
)
def test_two_colons_are_the_addresses_of_both_families(run: Callable[[Any], Any], host: str, families: list[str]) -> None:
    (port,) = free_ports(1)

    async def reached() -> list[str]:
        server = await asyncio.get_running_loop().create_server(asyncio.Protocol, to_listen(host), port)
        try:
            return [address for address in ("127.0.0.1", "::1") if answers(address, port)]
        finally:
            server.close()

    if "::1" in families and not has_ipv6():
        pytest.skip("this machine has no IPv6")
    assert run(reached()) == families


def answers(address: str, port: int) -> bool:
    try:
        socket.create_connection((address, port), 5).close()
    except OSError:
        return False
    return True


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True
