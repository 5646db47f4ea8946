"""Clients that connect and send nothing: `python -m evals.bench.hostile.silent_clients PORT COUNT PEERS`.

It writes a line once it has started, connects after it has read one, and writes another. It closes at the end of its input. A
process of its own, so that it takes nothing from the one that measures.
"""

import resource
import socket
import sys


def main(port: int, count: int, peers: int) -> None:
    """Hold `count` connections, from `peers` addresses by turns."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    print("started", flush=True)
    sys.stdin.readline()
    held = [_connected(port, f"127.0.1.{number % peers + 1}") for number in range(count)]
    print(len(held), flush=True)
    sys.stdin.read()


def _connected(port: int, address: str) -> socket.socket:
    made = socket.socket()
    made.bind((address, 0))
    made.connect(("127.0.0.1", port))
    return made


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
